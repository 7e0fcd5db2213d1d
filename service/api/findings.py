"""`/api/findings`: the findings of scan runs on the account's pages, and whether they are fixed."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.findings import FindingHistoryResponse, FindingResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, TokenKind, TokenPrincipal
from schemas.triage.export_filter import ListPosition
from schemas.triage.finding_filter import FINDING_FILTERS, finding_query_from
from service.api.routes import ApiContext, ApiRoute, Endpoint, read, shown_as
from service.http.auth import Bearer
from service.http.filtered_paging import read_filtered_page, send_filtered_page
from service.http.request_pipeline import Operation
from storage.intake import finding_history, finding_list

#: Maximum number of scan runs in the history of a finding.
MAX_RUNS: Final = 200


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of findings."""
    reader = Bearer(TokenKind.API, Ability.READ_FINDINGS, allows_project_roles=True)

    def list_page(req: falcon.Request, resp: falcon.Response) -> None:
        page = read_filtered_page(req, req.context.principal, Ability.READ_FINDINGS, FINDING_FILTERS, finding_query_from)
        after = None if page.after is None else page.after.id
        found = finding_list.list_page(page.query, utc_now(), page.fetch_limit, after)
        shown = found[: page.limit]
        last = ListPosition(shown[-1].id) if len(found) > page.limit else None
        send_filtered_page(resp, api.url(req), page, [dump(FindingResponse, each) for each in shown], last)

    yield ApiRoute("/api/findings", get=Endpoint(Operation(reader), list_page))
    yield ApiRoute("/api/findings/{finding_id}", get=read(reader, _with_history, shown_as(FindingHistoryResponse)))


def _with_history(finding_id: str, caller: TokenPrincipal) -> dict[str, Any]:
    """Return the finding with its history over scan runs."""
    finding = finding_list.get(finding_id, caller.account_id, utc_now())
    runs = [
        {"scan_run_id": each.scan_run_id, "at": each.seen_at, "outcome": each.outcome}
        for each in finding_history.list_runs(finding_id, MAX_RUNS)
    ]
    return {**asdict(finding), "history": runs}
