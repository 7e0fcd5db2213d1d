"""`/api/findings`: what scan runs found on the account's pages, and whether it is fixed."""

from dataclasses import asdict, replace
from typing import Final
from urllib.parse import urlencode

import falcon

from runtime.clock import utc_now
from schemas.api.findings import FindingHistoryResponse, FindingResponse
from schemas.api.response_fields import dump
from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenKind
from schemas.triage.export_filter import ExportSort, ListPosition, decode_cursor, encode_cursor
from schemas.triage.finding_filter import FINDING_FILTERS, FindingQuery, finding_query_from
from service.api.resources import ApiResource, by_method
from service.http.auth import Bearer
from service.http.paging import read_limit, read_text, send_record
from service.http.request_pipeline import Operation
from storage.intake import finding_history, finding_list

#: Scan runs of a finding's history.
MAX_RUNS: Final = 200
_READING: Final = Operation(Bearer(TokenKind.API, Ability.READ_FINDINGS, allows_project_roles=True))


class FindingsResource(ApiResource):
    """Lists findings."""

    path = "/api/findings"
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's findings, newest first."""
        problems: list[FieldProblem] = []
        given = {name: read_text(req, name) or "" for name in FINDING_FILTERS if name in req.params}
        caller, now, limit = req.context.principal, utc_now(), read_limit(req, problems)
        query, visible = FindingQuery(caller.account_id), caller.projects_with(Ability.READ_FINDINGS)
        try:
            query = replace(finding_query_from(given, caller.account_id), visible_projects=visible)
        except ValidationFailed as refused:
            problems += refused.problems
        cursor = read_text(req, "cursor")
        after = None if cursor is None else decode_cursor(query, ExportSort.NEWEST, cursor)
        if cursor is not None and after is None:
            problems.append(problem("/cursor", "invalid_cursor"))
        if problems:
            raise ValidationFailed(*problems)
        # One more than are shown, to find out whether there is a next page.
        found = finding_list.list_page(query, now, limit + 1, None if after is None else after.id)
        shown, following = found[:limit], None
        if len(found) > limit:
            following = encode_cursor(query, ExportSort.NEWEST, ListPosition(shown[-1].id))
            resp.set_header("Link", f'<{self._url}?{urlencode({**given, "limit": limit, "cursor": following})}>; rel="next"')
        send_record(resp, {"items": [dump(FindingResponse, each) for each in shown], "next_cursor": following})


class FindingResource(ApiResource):
    """Reads one finding."""

    path = "/api/findings/{finding_id}"
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, finding_id: str) -> None:
        """Return the finding with its history over scan runs."""
        finding = finding_list.get(finding_id, req.context.principal.account_id, utc_now())
        runs = [
            {"scan_run_id": each.scan_run_id, "at": each.seen_at, "outcome": each.outcome}
            for each in finding_history.list_runs(finding_id, MAX_RUNS)
        ]
        send_record(resp, dump(FindingHistoryResponse, {**asdict(finding), "history": runs}))
