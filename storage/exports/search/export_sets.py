"""The sets of exports that filters select, each in parts that an index has in the order of time, and the checks of each row.

A part has one value of the filter's column, because an index has the newest exports of one value in order, but not of
several.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from operator import itemgetter
from typing import Any, Final

from peewee import JOIN, SQL, Expression, NodeList, Select, Table, Value, fn

from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import ExportQuery, ExportSort
from storage.db import identifiers
from storage.db.columns import LAST_ULID
from storage.db.engine import database, is_sqlite
from storage.db.models import ExportRow, ExportSearchRow, ExportTermRow, TargetRow
from storage.exports.search.export_search import HOST, RULE, account_word

#: A set of up to this many exports for each filter is read and sorted as a whole; a page of a larger set is near the
#: beginning of an index.
MAX_SORTED: Final = 5_000
#: More parts in one query would cost more than reading all exports in order; SQLite allows 500.
_MAX_PARTS: Final = 50

#: If PostgreSQL's statistics say that a word is this many times as frequent as the limit, it is not counted: the text index
#: returns nothing before it has read all exports with the word, 100 ms for a word in half of a million. The estimate takes
#: 0.5 ms.
_FREQUENT: Final = 10

_AFTER_ALL: Final = f"{identifiers.EXPORT}_{LAST_ULID}"
#: How many findings an export has, for sorting.
FINDINGS: Final = fn.COALESCE(ExportRow.findings_total, 0)
#: The source of exports that have findings.
FINDING: Final = "finding"
_TEXT_INDEX: Final = Table("export_words")


@dataclass(frozen=True, slots=True)
class _PartValue:
    """A placeholder for a value of each part, in the query that all parts share."""

    position: int


#: Without a converter, because these are not values of a column.
_FIRST: Final = Value(_PartValue(0), converter=False)
_SECOND: Final = Value(_PartValue(1), converter=False)


@dataclass(frozen=True, slots=True)
class IndexParts:
    """A set of exports in an index, in a part for each of `values`. If it is not ordered, it is read and sorted as a whole.

    `model` is the table of the index, `id` its column of export ids, `where` the conditions on the index's first columns;
    `_FIRST` and `_SECOND` stand there for the values of a part. `implied` are members of a query that all these exports
    match.
    """

    model: Any
    id: Any
    where: tuple[Any, ...]
    implied: frozenset[str]
    values: Sequence[tuple[Any, ...]] = ((),)
    #: Whether the index has the exports of a part in the order of time.
    is_ordered: bool = True
    #: Whether an export may be in several parts.
    overlaps: bool = False
    #: The same exports, in as few parts as possible that an index has in the order of severity.
    by_severity: "IndexParts | None" = None

    @property
    def to_count(self) -> "IndexParts":
        """The parts that `count_rows` reads."""
        return self.by_severity or self

    def has_order(self, sort: ExportSort) -> bool:
        """Return whether indexes have the exports in this order."""
        if sort is ExportSort.SEVERITY:
            return self.by_severity is not None
        return self.is_ordered and sort is not ExportSort.FINDINGS

    def select(self, query: ExportQuery, columns: Sequence[Any], *conditions: Any, has_rows: bool = False) -> Any:
        """Return the query of `columns` for a part's exports that match a query; `has_rows` for columns of exports."""
        checks = [check for member, check in _checks(query) if member not in self.implied]
        wanted = [*self.where, *_bounds(query, self.id), *checks, *conditions]
        found = self.model.select(*columns)
        if self.model is ExportSearchRow and is_sqlite():
            # A join reads the matches one by one, and no further than the limit.
            is_match = _TEXT_INDEX.c.rowid == ExportSearchRow.id
            found = found.join(_TEXT_INDEX, JOIN.INNER, on=is_match).switch(ExportSearchRow)
        is_joined = self.model is not ExportRow and (checks or has_rows)
        return (found.join(ExportRow) if is_joined else found).where(*wanted)


def smallest(query: ExportQuery, sort: ExportSort = ExportSort.NEWEST) -> tuple[IndexParts, bool]:
    """Return the smallest set of a query, and whether it is small enough to be sorted as a whole.

    For an order by time, the set has that order or is small. If the only set has the wanted order, it is not counted, and
    does not count as small.
    """
    everything, sets = _everything(query), [*_sets(query)]
    if not sets:
        return everything, False
    if len(sets) == 1 and sets[0].has_order(sort):
        return sets[0], False
    # With more filters, a list in the order of an index skips more rows, so sorting a larger set is worth it.
    limit, found = MAX_SORTED * len(sets) + 1, None
    for each in sets:
        # Sets that are usually small come first; later sets are counted only up to the smallest size so far.
        size = _size(query, each, limit) if limit else limit
        if size < limit:
            limit, found = size, each
    if found is not None:
        return found, True
    return next((each for each in sets if each.is_ordered), everything), False


def ranked_parts(query: ExportQuery, sort: ExportSort) -> list[tuple[IndexParts, Any]]:
    """Return the parts that indexes have in an order other than time, each with its rank: a number, or a column."""
    if query.account_id is None:
        return [(_everything(query), ExportRow.severity_rank if sort is ExportSort.SEVERITY else FINDINGS)]
    if sort is ExportSort.SEVERITY:
        # Another filter may match nothing in a status. In parts by time, the index of that filter can show it.
        if not _is_narrow(query) and all(each.by_severity for each in _sets(query)):
            return [(_by_severity(query), ExportRow.severity_rank)]
        in_time = _by_status(query)
        return [(replace(in_time, values=tuple(each)), rank) for rank, each in groupby(in_time.values, itemgetter(1))]
    # Exactly the condition of the index.
    groups = (ExportRow.account == query.account_id, SQL("findings_total > 1"))
    single = (*_of(query, ExportRow.source_type, FINDING), ExportRow.findings_total == 1)
    others = tuple((each,) for each in SOURCE_TYPES if each != FINDING)
    return [
        (_parts(groups), ExportRow.findings_total),
        (_parts(single), 1),
        (_parts(_of(query, ExportRow.source_type, _FIRST), values=others), 0),
    ]


def first_rows(parts: IndexParts, select: Any, limit: int | None, order: str | None = None) -> SQL:
    """Return the first rows of all parts, in an order, as a table to select from; `select` is the query for each part.

    The SQL text of a part is built once, because peewee takes 0.5 ms for it.
    """
    # SQLite merges the parts row by row in the order of their indexes. With a limit in each part, it would sort them first.
    is_merged = is_sqlite() and len(parts.values) > 1 and not parts.overlaps
    part = select.order_by() if is_merged else Select([select.limit(limit).alias("part")], [SQL("*")])
    text, parameters = part.bind(database).sql()
    union = (" UNION " if parts.overlaps else " UNION ALL ").join(text for _ in parts.values)
    filled = [
        values[each.position] if isinstance(each, _PartValue) else each for values in parts.values for each in parameters
    ]
    ordered = union if order is None else f"{union} ORDER BY {order}"
    limited = ordered if limit is None else f"{ordered} LIMIT {limit}"
    return SQL(f"({limited}) AS found", filled)


def count_rows(parts: IndexParts, select: Any, limit: int) -> int:
    """Return how many rows all parts have, at most `limit`; `select` is the query for each part."""
    counted = Select([first_rows(parts, select, limit)], [fn.COUNT(SQL("1"))])
    return int(counted.bind(database).scalar())


def _sets(query: ExportQuery) -> Iterator[IndexParts]:
    """Yield the sets that the filters of a query select; those that are small in most installations come first."""
    if query.account_id is not None:
        yield from _small_sets(query)
    if query.words:
        yield _of_words(query)
    if query.target_ids:
        yield _of_targets(query.target_ids)
    if query.account_id is not None and (query.statuses or query.severities):
        by_status = _by_status(query)
        yield replace(by_status, by_severity=by_status if _is_narrow(query) else _by_severity(query))
    if query.project_ids:
        yield _parts((ExportRow.project == _FIRST,), "project_ids", values=_one_each(query.project_ids))
    if query.visible_projects is not None and len(query.visible_projects) <= _MAX_PARTS:
        visible = _one_each(query.visible_projects or _NO_PROJECT)
        yield _parts((ExportRow.project == _FIRST,), "visible_projects", values=visible)
    if query.account_id is not None and query.sources:
        of_source = _of(query, ExportRow.source_type, _FIRST)
        yield _parts(of_source, "account_id", "sources", values=_one_each(query.sources))


def _small_sets(query: ExportQuery) -> Iterator[IndexParts]:
    for kind, member, values in ((HOST, "hosts", query.hosts), (RULE, "rules", query.rules)):
        if values:
            yield _of_terms(query, kind, member, values)
    if query.is_snoozed:
        snoozed = (ExportRow.account == query.account_id, ExportRow.snoozed_at.is_null(False))
        yield _parts(snoozed, "account_id")


def _one_each(values: Sequence[Any]) -> tuple[tuple[Any], ...]:
    return tuple((value,) for value in values)


def _parts(where: tuple[Any, ...], *implied: str, values: tuple[tuple[Any, ...], ...] = ((),)) -> IndexParts:
    return IndexParts(ExportRow, ExportRow.id, where, frozenset(implied), values)


def _everything(query: ExportQuery) -> IndexParts:
    return _parts(() if query.account_id is None else (ExportRow.account == query.account_id,), "account_id")


def _of(query: ExportQuery, column: Any, value: Any) -> tuple[Any, ...]:
    return (ExportRow.account == query.account_id, column == value)


def _of_terms(query: ExportQuery, kind: str, member: str, values: Sequence[str]) -> IndexParts:
    term = ExportTermRow
    where = (term.account_id == query.account_id, term.kind == kind, term.value == _FIRST)
    implied = frozenset({member, "account_id"})
    return IndexParts(term, term.export, where, implied, _one_each(values), overlaps=kind == HOST)


def _of_words(query: ExportQuery) -> IndexParts:
    account = [] if query.account_id is None else [account_word(query.account_id)]
    words = [*account, *query.words]
    if is_sqlite():
        text = " AND ".join(f'"{word}"' for word in words)
        where = Expression(_TEXT_INDEX.c.export_words, "MATCH", Value(text))
    else:
        text = " & ".join(f"'{word}'" for word in words)
        # Exactly the expression of the index.
        vector = SQL("array_to_tsvector(string_to_array(words, ' '))")
        where = Expression(vector, "@@", Value(text).cast("tsquery"))
    implied = {"words", "account_id"} if account else {"words"}
    return IndexParts(ExportSearchRow, ExportSearchRow.export, (where,), frozenset(implied), is_ordered=False)


def _of_targets(target_ids: Sequence[str]) -> IndexParts:
    # The account, so that the index of accounts and targets is used; a target belongs to one account.
    account = TargetRow.select(TargetRow.account).where(TargetRow.id == _FIRST)
    return _parts((ExportRow.account == account, ExportRow.target == _FIRST), "target_ids", values=_one_each(target_ids))


def _by_status(query: ExportQuery) -> IndexParts:
    """Return a part for each status and severity, the highest severity first."""
    ranks = sorted((SEVERITIES.index(each) for each in query.severities or SEVERITIES), reverse=True)
    values = tuple((status, rank) for rank, status in product(ranks, _statuses(query)))
    where = (*_of(query, ExportRow.status, _FIRST), ExportRow.severity_rank == _SECOND)
    return _parts(where, "account_id", "statuses", "severities", values=values)


def _by_severity(query: ExportQuery) -> IndexParts:
    """Return a part for each status, in the order of severity of its index."""
    # With a bound on the severity, SQLite uses this index and not the account's.
    where = (*_of(query, ExportRow.status, _FIRST), ExportRow.severity_rank >= 0)
    return _parts(where, "account_id", "statuses", values=_one_each(_statuses(query)))


def _statuses(query: ExportQuery) -> Sequence[str]:
    return query.statuses or tuple(map(str, ExportStatus))


def _is_narrow(query: ExportQuery) -> bool:
    """Return whether severities or bounds on the time make the parts of `_by_status` smaller."""
    return bool(query.severities) or query.created_after is not None or query.created_before is not None


def _size(query: ExportQuery, of: IndexParts, limit: int) -> int:
    """Return how many exports a set has, at most `limit`."""
    alone = ExportQuery(query.account_id, created_after=query.created_after, created_before=query.created_before)
    select = of.to_count.select(alone, [SQL("1")])
    if not (of.is_ordered or is_sqlite()) and _estimate(select) > _FREQUENT * limit:
        return limit
    return count_rows(of.to_count, select, limit)


def _estimate(found: Any) -> int:
    """Return how many rows PostgreSQL's statistics predict for a query."""
    sql, parameters = found.sql()
    [[[explained]]] = database.execute_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
    return int(explained["Plan"]["Plan Rows"])


def _bounds(query: ExportQuery, export_id: Any) -> Iterator[Any]:
    """Yield the bounds of the ids, which begin with the time at which an export is prepared."""
    yield export_id < _AFTER_ALL
    if query.created_after is not None:
        yield export_id >= identifiers.first_id(identifiers.EXPORT, query.created_after)
    if query.created_before is not None:
        yield export_id < identifiers.first_id(identifiers.EXPORT, query.created_before)


def _checks(query: ExportQuery) -> Iterator[tuple[str, Any]]:
    """Yield the conditions on a row, each with its member of the query."""
    if query.account_id is not None:
        yield "account_id", ExportRow.account == query.account_id
    if query.visible_projects is not None:
        yield "visible_projects", ExportRow.project.in_(query.visible_projects or _NO_PROJECT)
    ranks = tuple(SEVERITIES.index(each) for each in query.severities)
    for member in COLUMNS:
        if values := ranks if member == "severities" else getattr(query, member):
            yield member, _column(member).in_(values)
    if query.hosts:
        term = ExportTermRow
        of_export = (term.account_id == ExportRow.account, term.kind == HOST, term.export == ExportRow.id)
        yield "hosts", _has(term.select(fn.COUNT(SQL("1"))).where(*of_export, term.value.in_(query.hosts)))
    if query.words:
        text, find = SQL("' ' || words || ' '"), fn.instr if is_sqlite() else fn.strpos
        has_words = [find(text, f" {word} ") > 0 for word in query.words]
        found = ExportSearchRow.select(fn.COUNT(SQL("1")))
        yield "words", _has(found.where(ExportSearchRow.export == ExportRow.id, *has_words))
    if query.is_snoozed is not None and query.now is not None:
        lasts = ExportRow.snoozed_until.is_null() | (ExportRow.snoozed_until > to_ms(query.now))
        is_snoozed = ExportRow.snoozed_at.is_null(False) & lasts
        yield "is_snoozed", is_snoozed if query.is_snoozed else ~is_snoozed
    if query.is_fixed is not None:
        is_fixed = fn.COALESCE(ExportRow.findings_fixed == ExportRow.findings_total, SQL("FALSE"))
        yield "is_fixed", is_fixed if query.is_fixed else ~is_fixed


#: An id that no project has, so that nothing is found.
_NO_PROJECT: Final = (0,)
COLUMNS: Final = {
    "statuses": ExportRow.status,
    "severities": ExportRow.severity_rank,
    "project_ids": ExportRow.project,
    "sources": ExportRow.source_type,
    "rules": ExportRow.rule,
    "target_ids": ExportRow.target,
}


def _column(member: str) -> Any:
    """Return the column of a filter; on SQLite, `+` prevents the use of an index if the column has few different values."""
    column: Any = COLUMNS[member]
    return NodeList((SQL("+"), column), glue="") if is_sqlite() and member in {"statuses", "severities"} else column


def _has(count: Any) -> Any:
    """Return the condition that a row's own subquery counts at least one; PostgreSQL would join an EXISTS over all rows."""
    return Expression(count, ">", 0)
