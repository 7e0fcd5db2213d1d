"""The sets of exports that filters name, each in parts that an index has in the order of time, and the checks of a row.

A part is of one value: an index has the newest of one value in order, not of several.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
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

#: A set of at most so many exports for each filter is read and sorted whole; of a larger one, a page is near the beginning
#: of an index.
MOST_SORTED: Final = 5_000

#: A word that PostgreSQL's statistics know so many times as frequent needs no count: its index returns nothing before it has
#: read all exports with the word, 100 ms for one that half of a million have. The estimate takes 0.5 ms.
_FREQUENT: Final = 10

_AFTER_ALL: Final = f"{identifiers.EXPORT}_{LAST_ULID}"
#: How many findings an export has, to sort by.
FINDINGS: Final = fn.COALESCE(ExportRow.findings_total, 0)
#: The source of exports that have findings.
FINDING: Final = "finding"
#: SQLite's text index.
_TEXT_INDEX: Final = Table("export_words")


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Exports that an index has: the model it is of, the column of the exports' ids, and what the index begins with.

    `implied` are the members of a query that hold for each of them.
    """

    model: Any
    id: Any
    where: tuple[Any, ...]
    implied: frozenset[str]
    #: Whether the index has them in the order of time.
    is_ordered: bool = True

    def select(self, query: ExportQuery, columns: Sequence[Any], *conditions: Any, has_rows: bool = False) -> Any:
        """Return the query of `columns` for what a query has of the part; `has_rows` if they are of the exports' rows."""
        checks = [check for member, check in _checks(query) if member not in self.implied]
        wanted = [*self.where, *_bounds(query, self.id), *checks, *conditions]
        found = self.model.select(*columns)
        if self.model is ExportSearchRow and is_sqlite():
            # As a join, the matches are read one by one and no further than the limit.
            is_match = _TEXT_INDEX.c.rowid == ExportSearchRow.id
            found = found.join(_TEXT_INDEX, JOIN.INNER, on=is_match).switch(ExportSearchRow)
        is_joined = self.model is not ExportRow and (checks or has_rows)
        return (found.join(ExportRow) if is_joined else found).where(*wanted)


@dataclass(frozen=True, slots=True)
class ExportSet:
    """The exports with one of the values of a filter. One that is not ordered is read and sorted whole."""

    parts: tuple[IndexPart, ...]
    #: Whether an export may be in several parts.
    overlaps: bool = False
    #: The same exports in parts that an index has in the order of severity, as few as possible.
    by_severity: tuple[IndexPart, ...] = ()

    @property
    def to_count(self) -> tuple[IndexPart, ...]:
        """The parts that are counted."""
        return self.by_severity or self.parts

    @property
    def is_ordered(self) -> bool:
        """Whether indexes have the exports in the order of time."""
        return all(part.is_ordered for part in self.parts)

    def has_order(self, sort: ExportSort) -> bool:
        """Return whether indexes have the exports in this order."""
        if sort is ExportSort.SEVERITY:
            return bool(self.by_severity)
        return self.is_ordered and sort is not ExportSort.FINDINGS


def smallest(query: ExportQuery, sort: ExportSort = ExportSort.NEWEST) -> tuple[ExportSet, bool]:
    """Return the smallest set of a query, and whether it is sorted whole.

    Of an order by time, the set is in that order or small. Where there is nothing to choose from, it is not counted, and is
    not small.
    """
    everything = ExportSet((_everything(query),))
    sets = [*_sets(query)]
    if not sets:
        return everything, False
    if len(sets) == 1 and sets[0].has_order(sort):
        return sets[0], False
    # Where there are more filters, more rows of a walk are left out.
    limit, found = MOST_SORTED * len(sets) + 1, None
    for each in sets:
        # Most of the first ones are small; of the others, no more than that is counted.
        size = _size(query, each, limit) if limit else limit
        if size < limit:
            limit, found = size, each
    if found is not None:
        return found, True
    return next((each for each in sets if each.is_ordered), everything), False


def ranked_parts(query: ExportQuery, sort: ExportSort) -> list[tuple[IndexPart, Any]]:
    """Return the parts that indexes have in an order that is not by time, each with its rank: a number, or a column."""
    if query.account_id is None:
        return [(_everything(query), ExportRow.severity_rank if sort is ExportSort.SEVERITY else FINDINGS)]
    if sort is ExportSort.SEVERITY:
        # Another filter may match nothing in a status. In parts that are in the order of time, its own index can tell.
        is_alone = all(each.by_severity for each in _sets(query))
        return [*(_by_severity(query) if is_alone else _by_status(query))]
    # Word by word the condition of the index.
    groups = (ExportRow.account == query.account_id, SQL("findings_total > 1"))
    single = (*_of(query, ExportRow.source_type, FINDING), ExportRow.findings_total == 1)
    others = [_of(query, ExportRow.source_type, each) for each in SOURCE_TYPES if each != FINDING]
    return [
        (_part(groups), ExportRow.findings_total),
        (_part(single), 1),
        *((_part(other), 0) for other in others),
    ]


def union(parts: Sequence[Any], limit: int | None, *, is_distinct: bool = False) -> Any:
    """Return one query for what the parts find; of those in the order that it is sorted by, it reads up to `limit` each."""
    if is_sqlite() and len(parts) > 1 and not is_distinct:
        # SQLite merges parts as their indexes have them, row by row; those with a limit it would sort first.
        selects = [part.order_by() for part in parts]
    else:
        selects = [Select([part.limit(limit).alias("part")], [SQL("*")]) for part in parts]
    return reduce(lambda one, other: one.union(other) if is_distinct else one.union_all(other), selects)


def _sets(query: ExportQuery) -> Iterator[ExportSet]:
    """Yield the sets that the filters of a query name, those that are small in most installations first."""
    if query.account_id is not None:
        yield from _small_sets(query)
    if query.words:
        yield ExportSet((_of_words(query),))
    if query.target_ids:
        yield ExportSet(tuple(_of_target(each) for each in query.target_ids))
    if query.account_id is not None and (query.statuses or query.severities):
        in_time, by_severity = (tuple(part for part, _ in of(query)) for of in (_by_status, _by_severity))
        yield ExportSet(in_time, by_severity=by_severity)
    if query.project_ids:
        yield ExportSet(tuple(_part((ExportRow.project == each,), "project_ids") for each in query.project_ids))
    if query.visible_projects is not None:
        of_project = (ExportRow.project == each for each in query.visible_projects or _NO_PROJECT)
        yield ExportSet(tuple(_part((each,), "visible_projects") for each in of_project))
    if query.account_id is not None and query.sources:
        yield ExportSet(
            tuple(_part(_of(query, ExportRow.source_type, each), "account_id", "sources") for each in query.sources)
        )


def _small_sets(query: ExportQuery) -> Iterator[ExportSet]:
    for kind, member, values in ((HOST, "hosts", query.hosts), (RULE, "rules", query.rules)):
        if values:
            yield ExportSet(tuple(_of_term(query, kind, member, each) for each in values), overlaps=kind == HOST)
    if query.is_snoozed:
        yield ExportSet((_part((ExportRow.account == query.account_id, ExportRow.snoozed_at.is_null(False)), "account_id"),))


def _part(where: tuple[Any, ...], *implied: str) -> IndexPart:
    return IndexPart(ExportRow, ExportRow.id, where, frozenset(implied))


def _everything(query: ExportQuery) -> IndexPart:
    return _part(() if query.account_id is None else (ExportRow.account == query.account_id,), "account_id")


def _of(query: ExportQuery, column: Any, value: str) -> tuple[Any, ...]:
    return (ExportRow.account == query.account_id, column == value)


def _of_term(query: ExportQuery, kind: str, member: str, value: str) -> IndexPart:
    term = ExportTermRow
    where = (term.account_id == query.account_id, term.kind == kind, term.value == value)
    return IndexPart(term, term.export, where, frozenset({member, "account_id"}))


def _of_words(query: ExportQuery) -> IndexPart:
    account = [] if query.account_id is None else [account_word(query.account_id)]
    words = [*account, *query.words]
    if is_sqlite():
        text = " AND ".join(f'"{word}"' for word in words)
        where = Expression(_TEXT_INDEX.c.export_words, "MATCH", Value(text))
    else:
        text = " & ".join(f"'{word}'" for word in words)
        # Word by word the expression of the index.
        vector = SQL("array_to_tsvector(string_to_array(words, ' '))")
        where = Expression(vector, "@@", Value(text).cast("tsquery"))
    implied = {"words", "account_id"} if account else {"words"}
    return IndexPart(ExportSearchRow, ExportSearchRow.export, (where,), frozenset(implied), is_ordered=False)


def _of_target(target_id: str) -> IndexPart:
    # The index of an account's targets; a target belongs to one account.
    account = TargetRow.select(TargetRow.account).where(TargetRow.id == target_id)
    return _part((ExportRow.account == account, ExportRow.target == target_id), "target_ids")


def _by_status(query: ExportQuery) -> Iterator[tuple[IndexPart, int]]:
    """Yield a part for each status and severity, with the severity's rank; the highest first."""
    statuses = query.statuses or tuple(map(str, ExportStatus))
    ranks = sorted((SEVERITIES.index(each) for each in query.severities or SEVERITIES), reverse=True)
    for rank, status in product(ranks, statuses):
        where = (*_of(query, ExportRow.status, status), ExportRow.severity_rank == rank)
        yield _part(where, "account_id", "statuses", "severities"), rank


def _by_severity(query: ExportQuery) -> Iterator[tuple[IndexPart, Any]]:
    """Yield a part for each status with the column of the ranks, by which its index is sorted.

    Where severities or bounds of the time narrow them, the parts of `_by_status` are smaller.
    """
    if query.severities or query.created_after is not None or query.created_before is not None:
        yield from _by_status(query)
        return
    # With a bound of the severity, SQLite reads this index, not that of the account.
    ranked = ExportRow.severity_rank >= 0
    for status in query.statuses or tuple(map(str, ExportStatus)):
        yield _part((*_of(query, ExportRow.status, status), ranked), "account_id", "statuses"), ExportRow.severity_rank


def _size(query: ExportQuery, of: ExportSet, limit: int) -> int:
    """Return how many exports a set has, or `limit` where they are as many or more."""
    alone = ExportQuery(query.account_id, created_after=query.created_after, created_before=query.created_before)
    parts = [part.select(alone, [SQL("1")]) for part in of.to_count]
    if not (of.is_ordered or is_sqlite()) and _estimate(parts[0]) > _FREQUENT * limit:
        return limit
    counted = Select([union(parts, limit).limit(limit).alias("found")], [fn.COUNT(SQL("1"))])
    return int(counted.bind(database).scalar())


def _estimate(found: Any) -> int:
    """Return how many rows PostgreSQL expects of a query, by its statistics."""
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
    """Yield what a row must be, by the member of the query."""
    if query.account_id is not None:
        yield "account_id", ExportRow.account == query.account_id
    if query.visible_projects is not None:
        yield "visible_projects", ExportRow.project.in_(query.visible_projects or _NO_PROJECT)
    ranks = tuple(SEVERITIES.index(each) for each in query.severities)
    for member in _COLUMNS:
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


#: The id of no project: finds nothing.
_NO_PROJECT: Final = (0,)
_COLUMNS: Final = {
    "statuses": ExportRow.status,
    "severities": ExportRow.severity_rank,
    "project_ids": ExportRow.project,
    "sources": ExportRow.source_type,
    "rules": ExportRow.rule,
    "target_ids": ExportRow.target,
}


def _column(member: str) -> Any:
    """Return the column of a filter; SQLite reads no index of one that has few values."""
    column: Any = _COLUMNS[member]
    return NodeList((SQL("+"), column), glue="") if is_sqlite() and member in {"statuses", "severities"} else column


def _has(count: Any) -> Any:
    """Return whether a row's own subquery finds one; PostgreSQL would join an EXISTS, over all rows."""
    return Expression(count, ">", 0)
