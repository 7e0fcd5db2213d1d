"""The list of exports: a page in any order, the number of matches, and the number with each value of a filter.

Each filter selects a set of exports that an index has in the order of time. A list reads the smallest of these sets and
checks the other filters on each row. If even the smallest set has more than MAX_SORTED exports, an order other than time
reads its own index, up to the end of the page.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from peewee import SQL, Select, Tuple, fn

from schemas.exports.record import Export
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import ExportQuery, ExportSort, ListPosition
from storage.db.engine import database, planned_for_values
from storage.db.models import ExportRow
from storage.db.queries import in_query, scalars, tuples
from storage.exports.queries import list_by_ids
from storage.exports.search.export_sets import COLUMNS, FINDINGS, IndexParts, count_rows, first_rows, ranked_parts, smallest

#: Totals are counted up to this number; a larger total is None.
MAX_COUNTED: Final = 10_000
#: How many exports the counts beside filters include, because each export is read.
MAX_FACETED: Final = 5_000

#: The parameters of the counts beside filters, with the member of the query for each.
_FACETS: Final = {
    "status": "statuses",
    "severity": "severities",
    "project_id": "project_ids",
    "source": "sources",
    "rule": "rules",
}
FACETS: Final = tuple(_FACETS)
#: The rank of exports in an order that is not by time.
_RANKS: Final = {ExportSort.SEVERITY: ExportRow.severity_rank, ExportSort.FINDINGS: FINDINGS}
_NEWEST_FIRST: Final = "id DESC"
#: The order of the page's ids in their query, and of its exports.
_ORDERS: Final = {
    ExportSort.NEWEST: (_NEWEST_FIRST, "e.id DESC"),
    ExportSort.OLDEST: ("id", "e.id"),
    ExportSort.SEVERITY: ("rank DESC, id DESC", "e.severity_rank DESC, e.id DESC"),
    ExportSort.FINDINGS: ("rank DESC, id DESC", "COALESCE(e.findings_total, 0) DESC, e.id DESC"),
}


@planned_for_values()
def list_page(
    query: ExportQuery, sort: ExportSort = ExportSort.NEWEST, limit: int | None = None, after: ListPosition | None = None
) -> list[Export]:
    """Return up to `limit` of the exports that match a query, in the order `sort`, or those that follow `after`.

    In an order by time, a walk over all pages returns each export that exists throughout exactly once.
    """
    return list_by_ids(_ids(query, sort, limit, after), _ORDERS[sort][1])


def position_of(export: Export, sort: ExportSort) -> ListPosition:
    """Return the position after this export, the last one of a page."""
    findings = export.findings[0] if export.findings else 0
    ranks = {ExportSort.SEVERITY: SEVERITIES.index(export.severity), ExportSort.FINDINGS: findings}
    return ListPosition(export.id, ranks.get(sort, 0))


@planned_for_values()
def count(query: ExportQuery, limit: int = MAX_COUNTED) -> int | None:
    """Return how many exports match a query; None if there are more than `limit`."""
    parts = smallest(query)[0].to_count
    number = count_rows(parts, parts.select(query, [parts.id.alias("id")]), limit + 1)
    return number if number <= limit else None


@planned_for_values()
def facets(query: ExportQuery, wanted: Sequence[str] = FACETS) -> dict[str, dict[str, int]]:
    """Return how many exports have each value of the facets; for each facet, all filters of the query apply but its own.

    Counts the newest MAX_FACETED exports.
    """
    counts: dict[str, dict[str, int]] = {}
    # Most facets have no filter of their own, so one query counts them together.
    by_query: dict[ExportQuery, list[tuple[str, Any]]] = {}
    for name in wanted:
        member = _FACETS[name]
        unfiltered: dict[str, Any] = {member: ()}
        by_query.setdefault(replace(query, **unfiltered), []).append((name, COLUMNS[member]))
    for others, columns in by_query.items():
        counts |= _count_values(others, columns)
    return {name: counts[name] for name in wanted}


@planned_for_values()
def count_by_severity(query: ExportQuery) -> dict[str, int]:
    """Return how many exports of each severity match a query; counts the newest MAX_FACETED exports."""
    return _count_values(query, [("severity", ExportRow.severity_rank)])["severity"]


@planned_for_values()
def ids_matching(query: ExportQuery, limit: int | None = None) -> list[tuple[str, int]]:
    """Return the ids and versions of up to `limit` exports that match a query, newest first."""
    ids = _ids(query, ExportSort.NEWEST, limit, None)
    found = ExportRow.select(ExportRow.id, ExportRow.version).where(in_query(ExportRow.id, ids))
    return [(export_id, version) for export_id, version in tuples(found.order_by(ExportRow.id.desc()))]


def _count_values(query: ExportQuery, columns: Sequence[tuple[str, Any]]) -> dict[str, dict[str, int]]:
    values = [column for _, column in columns]
    counts: dict[str, dict[str, int]] = {name: {} for name, _ in columns}
    of, _ = smallest(query)
    select = _page_of(of, SQL("0"), query, ExportSort.NEWEST, None, values)
    newest = first_rows(of, select, MAX_FACETED, _NEWEST_FIRST)
    counted = [SQL(column.column_name) for column in values]
    combinations = Select([newest], [*counted, fn.COUNT(SQL("1"))]).group_by(*counted).bind(database)
    # There are few combinations of values to add up.
    for row in tuples(combinations):
        *found, number = row
        for (name, _), value in zip(columns, found, strict=True):
            if value is not None:
                shown = SEVERITIES[value] if name == "severity" else str(value)
                counts[name][shown] = counts[name].get(shown, 0) + int(number)
    return counts


def _ids(query: ExportQuery, sort: ExportSort, limit: int | None, after: ListPosition | None) -> Any:
    """Return the ids of a page, or the query that finds them."""
    rank = _RANKS.get(sort)
    of, is_small = smallest(query, sort)
    if rank is not None and not is_small:
        return _ranked_ids(query, sort, limit, after)
    select = _page_of(of, SQL("0") if rank is None else rank, query, sort, after)
    return Select([first_rows(of, select, limit, _ORDERS[sort][0])], [SQL("id")])


def _ranked_ids(query: ExportQuery, sort: ExportSort, limit: int | None, after: ListPosition | None) -> list[str]:
    """Return the ids of a page that is read rank by rank: with five queries at most, and usually with the first one."""
    found: list[str] = []
    for parts, rank in ranked_parts(query, sort):
        rest = None if limit is None else limit - len(found)
        if rest == 0:
            break
        if after is not None and isinstance(rank, int) and rank > after.rank:
            # All exports of this part come before the page.
            continue
        # With a constant rank in the order, SQLite would sort all parts.
        order = _NEWEST_FIRST if isinstance(rank, int) else _ORDERS[sort][0]
        rows = first_rows(parts, _page_of(parts, rank, query, sort, after), rest, order)
        found += scalars(Select([rows], [SQL("id")]).bind(database))
    return found


def _page_of(
    parts: IndexParts,
    rank: Any,
    query: ExportQuery,
    sort: ExportSort,
    after: ListPosition | None,
    values: Sequence[Any] = (),
) -> Any:
    """Return the query for each part's ids and ranks, in the order of the list; `rank` is a column, or one value for all.

    `values` are further columns of the exports' rows to select.
    """
    is_constant = isinstance(rank, int | SQL)
    columns = [parts.id.alias("id"), (SQL(str(rank)) if isinstance(rank, int) else rank).alias("rank"), *values]
    # The concatenation keeps PostgreSQL from searching for a rare word in the order of the ids, which would read all texts.
    ordered = parts.id if parts.is_ordered else parts.id.concat(SQL("''"))
    order = [ordered if sort is ExportSort.OLDEST else ordered.desc()]
    # In a part with one rank, the exports are in the order of time.
    order = order if is_constant else [rank.desc(), *order]
    behind: list[Any] = []
    if after is not None and sort is ExportSort.OLDEST:
        behind = [parts.id > after.id]
    elif after is not None and is_constant:
        behind = [parts.id < after.id] if rank == after.rank or isinstance(rank, SQL) else []
    elif after is not None:
        behind = [Tuple(rank, parts.id) < Tuple(after.rank, after.id)]
    return parts.select(query, columns, *behind, has_rows=bool(values) or sort in _RANKS).order_by(*order)
