"""Lists in pages with the filters of `schemas.triage` and `?sort=`, in addition to `?limit=` and `?cursor=`.

A cursor is valid only with the filters and the order that it was created for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import falcon

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenPrincipal
from schemas.triage.export_filter import ExportQuery, ExportSort, ListPosition, decode_cursor, encode_cursor
from schemas.triage.finding_filter import FindingQuery
from service.http.paging import read_limit, read_text, send_record

_BOOLEANS: Final = ("true", "false")

Query = TypeVar("Query", ExportQuery, FindingQuery)


@dataclass(frozen=True, slots=True)
class FilteredPageRequest(Generic[Query]):
    """The requested part of a list; `parameters` are the filters and the order as the client sent them."""

    query: Query
    sort: ExportSort
    limit: int
    after: ListPosition | None
    parameters: Mapping[str, str]
    has_facets: bool = False

    @property
    def fetch_limit(self) -> int:
        """How many records to query: one more than the page shows, to find out whether there is a next page."""
        return self.limit + 1


def read_filtered_page(
    req: falcon.Request,
    caller: TokenPrincipal,
    ability: Ability,
    parameters: Iterable[str],
    query_from: Callable[[Mapping[str, str], int], Query],
) -> FilteredPageRequest[Query]:
    """Read the requested page of the records that a caller may see with `ability`.

    `parameters` names the filters, which `query_from` reads, and `sort` and `facets` if the list has them. Raises
    ValidationFailed with every problem.
    """
    problems: list[FieldProblem] = []
    given = {name: read_text(req, name) or "" for name in parameters if name in req.params}
    facets, sort = given.pop("facets", "false"), given.get("sort", ExportSort.NEWEST)
    limit = read_limit(req, problems)
    try:
        query = replace(query_from(given, caller.account_id), visible_projects=caller.projects_with(ability))
    except ValidationFailed as refused:
        problems += refused.problems
        query = query_from({}, caller.account_id)
    if sort not in [*ExportSort]:
        problems.append(problem("/sort", "not_allowed", ", ".join(ExportSort)))
        sort = ExportSort.NEWEST
    if facets not in _BOOLEANS:
        problems.append(problem("/facets", "not_allowed", ", ".join(_BOOLEANS)))
    cursor = read_text(req, "cursor")
    after = None if cursor is None else decode_cursor(query, ExportSort(sort), cursor)
    if cursor is not None and after is None:
        problems.append(problem("/cursor", "invalid_cursor"))
    if problems:
        raise ValidationFailed(*problems)
    return FilteredPageRequest(query, ExportSort(sort), limit, after, given, facets == "true")


def send_filtered_page(
    resp: falcon.Response,
    url: str,
    page: FilteredPageRequest[Any],
    records: Sequence[Mapping[str, Any]],
    last: ListPosition | None,
    **more: Any,
) -> None:
    """Send a page of the list at `url`; `last` is its last position if another page follows; `more` are further members."""
    cursor = None
    if last is not None:
        cursor = encode_cursor(page.query, page.sort, last)
        query = urlencode({**page.parameters, "limit": page.limit, "cursor": cursor})
        resp.set_header("Link", f'<{url}?{query}>; rel="next"')
    send_record(resp, {"items": records, "next_cursor": cursor, **more})
