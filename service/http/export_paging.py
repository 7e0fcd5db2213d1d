"""The list of exports in pages: filters and `?sort=` besides `?limit=` and `?cursor=`.

A cursor belongs to the filters and the order that it was created for; with others it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import falcon

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenPrincipal
from schemas.exports.record import Export, listed_record
from schemas.triage.export_filter import (
    FILTERS,
    ExportQuery,
    ExportSort,
    ListPosition,
    decode_cursor,
    encode_cursor,
    query_from,
)
from service.http.paging import read_limit, read_text, send_record
from storage.exports.search import export_list
from storage.exports.search.export_list import position_of

_BOOLEANS: Final = ("true", "false")


@dataclass(frozen=True, slots=True)
class ExportPageRequest:
    """The requested part of the list; `parameters` are the filters and the order as they were given."""

    query: ExportQuery
    sort: ExportSort
    limit: int
    after: ListPosition | None
    parameters: Mapping[str, str]
    has_facets: bool = False

    @property
    def fetch_limit(self) -> int:
        """How many exports to query: one more than are shown, to find out whether there is a next page."""
        return self.limit + 1


def read_export_page(req: falcon.Request, caller: TokenPrincipal) -> ExportPageRequest:
    """Read which of the exports that a caller may see are requested. Raises ValidationFailed with every problem."""
    problems: list[FieldProblem] = []
    given = {name: read_text(req, name) or "" for name in (*FILTERS, "sort") if name in req.params}
    limit, query, sort = read_limit(req, problems), ExportQuery(caller.account_id), ExportSort.NEWEST
    try:
        visible = caller.projects_with(Ability.READ_EXPORTS)
        query = replace(query_from(given, caller.account_id), visible_projects=visible)
    except ValidationFailed as refused:
        problems += refused.problems
    if given.get("sort", sort) in [*ExportSort]:
        sort = ExportSort(given.get("sort", sort))
    else:
        problems.append(problem("/sort", "not_allowed", ", ".join(ExportSort)))
    asked = read_text(req, "facets")
    if asked not in {None, *_BOOLEANS}:
        problems.append(problem("/facets", "not_allowed", ", ".join(_BOOLEANS)))
    cursor = read_text(req, "cursor")
    after = None if cursor is None else decode_cursor(query, sort, cursor)
    if cursor is not None and after is None:
        problems.append(problem("/cursor", "invalid_cursor"))
    if problems:
        raise ValidationFailed(*problems)
    return ExportPageRequest(query, sort, limit, after, given, asked == "true")


def send_export_page(
    resp: falcon.Response, url: str, page: ExportPageRequest, found: Sequence[Export], now: datetime
) -> None:
    """Send a page of the list at `url` with the total and the facets; `found` are up to `page.fetch_limit` exports."""
    cursor = None
    if len(found) > page.limit:
        cursor = encode_cursor(page.query, page.sort, position_of(found[page.limit - 1], page.sort))
        query = urlencode({**page.parameters, "limit": page.limit, "cursor": cursor})
        resp.set_header("Link", f'<{url}?{query}>; rel="next"')
    items = [listed_record(each, now) for each in found[: page.limit]]
    body: dict[str, Any] = {"items": items, "next_cursor": cursor, "total": export_list.count(page.query)}
    if page.has_facets:
        body["facets"] = export_list.facets(page.query)
    send_record(resp, body)
