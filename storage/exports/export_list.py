"""The list of exports: a page in any order, how many match, how many with each value of a filter."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from peewee import SQL, Select, Tuple, fn

from schemas.base.timestamps import to_ms
from schemas.exports.export_filter import ExportQuery, ExportSort, ListPosition
from schemas.exports.record import Export
from schemas.intake.scanner import SEVERITIES
from storage.db import identifiers
from storage.db.columns import LAST_ULID
from storage.db.engine import database
from storage.db.models import ExportRow, TargetRow
from storage.db.queries import tuples
from storage.exports.queries import list_by_ids

#: A total, and what the counts beside filters are of, ends here.
MOST_COUNTED: Final = 10_000

_AFTER_ALL: Final = f"{identifiers.EXPORT}_{LAST_ULID}"
#: How many findings an export has, to sort by.
_FINDINGS: Final = fn.COALESCE(ExportRow.findings_total, 0)
#: The counts beside filters: the parameter, the member of the query, the column.
_FACETS: Final = (
    ("status", "statuses", ExportRow.status),
    ("severity", "severities", ExportRow.severity_rank),
    ("project_id", "project_ids", ExportRow.project),
    ("source", "sources", ExportRow.source_type),
    ("rule", "rules", ExportRow.rule),
)
#: What ranks the exports of an order that is not by time, and the order as SQL of the whole page.
_RANKS: Final = {ExportSort.SEVERITY: ExportRow.severity_rank, ExportSort.FINDINGS: _FINDINGS}
_ORDERS: Final = {
    ExportSort.NEWEST: "e.id DESC",
    ExportSort.OLDEST: "e.id",
    ExportSort.SEVERITY: "e.severity_rank DESC, e.id DESC",
    ExportSort.FINDINGS: "COALESCE(e.findings_total, 0) DESC, e.id DESC",
}


def list_page(
    query: ExportQuery,
    sort: ExportSort = ExportSort.NEWEST,
    limit: int | None = None,
    after: ListPosition | None = None,
) -> list[Export]:
    """Return up to `limit` of the exports that a query has, in the order `sort`, or those that follow `after`.

    In an order by time, an export that exists throughout a walk over all pages is met exactly once.
    """
    ids = _ids(query, sort, limit, after)
    return list_by_ids(ids, _ORDERS[sort])


def position_of(export: Export, sort: ExportSort) -> ListPosition:
    """Return where a page that ends with this export ends."""
    findings = export.findings[0] if export.findings else 0
    ranks = {ExportSort.SEVERITY: SEVERITIES.index(export.severity), ExportSort.FINDINGS: findings}
    return ListPosition(export.id, ranks.get(sort, 0))


def count(query: ExportQuery, limit: int = MOST_COUNTED) -> int | None:
    """Return how many exports a query has; None where they are more than `limit`."""
    parts = [ExportRow.select(SQL("1")).where(*part) for part in _parts(query)]
    found = int(_union(parts, limit + 1).limit(limit + 1).count(database))
    return found if found <= limit else None


def facets(query: ExportQuery) -> dict[str, dict[str, int]]:
    """Return how many exports there are for each value of each facet, with all filters of the query but the facet's own.

    Counts the newest MOST_COUNTED exports.
    """
    return {name: _counts(_without(query, member), name, column) for name, member, column in _FACETS}


def ids_matching(query: ExportQuery, limit: int | None = None) -> list[tuple[str, int]]:
    """Return the ids and versions of up to `limit` exports that a query has, the newest first."""
    ids = _ids(query, ExportSort.NEWEST, limit, None)
    found = ExportRow.select(ExportRow.id, ExportRow.version).where(ExportRow.id.in_(ids))
    return [(export_id, version) for export_id, version in tuples(found.order_by(ExportRow.id.desc()))]


def _without(query: ExportQuery, member: str) -> ExportQuery:
    without: dict[str, Any] = {member: ()}
    return replace(query, **without)


def _counts(query: ExportQuery, name: str, column: Any) -> dict[str, int]:
    parts = [ExportRow.select(ExportRow.id, column.alias("value")).where(*part) for part in _parts(query)]
    ordered = [part.order_by(ExportRow.id.desc()) for part in parts]
    newest = _union(ordered, MOST_COUNTED).order_by(SQL("id DESC")).limit(MOST_COUNTED).alias("newest")
    counted = Select([newest], [newest.c.value, fn.COUNT(SQL("1"))]).group_by(newest.c.value).bind(database)
    values = {value: int(number) for value, number in counted.tuples() if value is not None}
    return {SEVERITIES[value] if name == "severity" else str(value): number for value, number in values.items()}


def _ids(query: ExportQuery, sort: ExportSort, limit: int | None, after: ListPosition | None) -> Any:
    """Return the query of the ids of a page."""
    rank = _RANKS.get(sort)
    is_after = _is_after(sort, after)
    columns = [ExportRow.id, (SQL("0") if rank is None else rank).alias("rank")]
    order = [ExportRow.id if sort is ExportSort.OLDEST else ExportRow.id.desc()]
    order = order if rank is None else [rank.desc(), *order]
    parts = [ExportRow.select(*columns).where(*part, *is_after).order_by(*order) for part in _parts(query)]
    by = SQL("id" if sort is ExportSort.OLDEST else "id DESC" if rank is None else "rank DESC, id DESC")
    return Select([_union(parts, limit).order_by(by).limit(limit).alias("page")], [SQL("id")])


def _is_after(sort: ExportSort, after: ListPosition | None) -> list[Any]:
    if after is None:
        return []
    if sort is ExportSort.OLDEST:
        return [ExportRow.id > after.id]
    rank = _RANKS.get(sort)
    return [ExportRow.id < after.id if rank is None else Tuple(rank, ExportRow.id) < Tuple(after.rank, after.id)]


def _parts(query: ExportQuery) -> list[list[Any]]:
    """Return the conditions of each part of a list: an index has the newest of one value in order, not of several."""
    by_column: dict[Any, Collection[Any]] = {
        ExportRow.target: query.target_ids,
        ExportRow.project: query.project_ids,
        ExportRow.status: query.statuses,
        ExportRow.source_type: query.sources,
    }
    given = [(column, values) for column, values in by_column.items() if values]
    shared = [*_bounds(query), *(column.in_(values) for column, values in given[1:])]
    if not given:
        return [shared]
    column, values = given[0]
    if column is ExportRow.target:
        # The index of an account's targets; a target belongs to one account.
        return [[*shared, column == value, ExportRow.account == _account_of(value)] for value in values]
    return [[*shared, column == value] for value in values]


def _bounds(query: ExportQuery) -> Iterator[Any]:
    """Yield the conditions that no index begins with."""
    if query.account_id is not None:
        yield ExportRow.account == query.account_id
    yield ExportRow.id < _AFTER_ALL
    # Ids begin with the time at which an export is prepared.
    if query.created_after is not None:
        yield ExportRow.id >= identifiers.first_id(identifiers.EXPORT, query.created_after)
    if query.created_before is not None:
        yield ExportRow.id < identifiers.first_id(identifiers.EXPORT, query.created_before)
    if query.severities:
        yield ExportRow.severity_rank.in_([SEVERITIES.index(each) for each in query.severities])
    if query.rules:
        yield ExportRow.rule.in_(query.rules)
    if query.is_snoozed is not None and query.now is not None:
        lasts = ExportRow.snoozed_until.is_null() | (ExportRow.snoozed_until > to_ms(query.now))
        is_snoozed = ExportRow.snoozed_at.is_null(False) & lasts
        yield is_snoozed if query.is_snoozed else ~is_snoozed
    if query.is_fixed is not None:
        is_fixed = fn.COALESCE(ExportRow.findings_fixed == ExportRow.findings_total, SQL("FALSE"))
        yield is_fixed if query.is_fixed else ~is_fixed


def _account_of(target_id: str) -> Any:
    return TargetRow.select(TargetRow.account).where(TargetRow.id == target_id)


def _union(parts: Sequence[Any], limit: int | None) -> Any:
    """Return one query for what the parts find, up to `limit` of each."""
    selects: list[Any] = [Select([part.limit(limit).alias("part")], [SQL("*")]) for part in parts]
    return reduce(lambda one, other: one.union_all(other), selects)
