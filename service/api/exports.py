"""`/api/ticket-exports`: prepare tickets by hand; list, poll and edit exports; get attempts, events and the receipt of one.

Decisions: approve, retry, dismiss, restore, snooze, split.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.deliveries import AttemptResponse, TicketEventResponse
from schemas.base.errors import ExportNotFound
from schemas.base.fields import Form, NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import to_ms
from schemas.exports.polled_record import PolledExport, entity_tag, next_attempt_of, record_json
from schemas.exports.record import ApprovalForAll, ApprovalForm, Export, PreparationForm, export_record, listed_record
from schemas.targets.validations import Validation
from schemas.triage.decision_forms import DismissalForm, EditForm, RetryForm, RetryRequest, SnoozeForm
from schemas.triage.export_filter import FILTERS, query_from
from service.api.routes import ApiContext, ApiRoute, Endpoint, of_account, read, shown_as
from service.http import conditional_requests
from service.http.auth import Bearer, PollingBearer
from service.http.filtered_paging import read_filtered_page, send_filtered_page
from service.http.idempotency import ApiResponse
from service.http.idempotent_batches import IdempotentBatches
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers
from storage.exports import attempts
from storage.exports.events import queries as events
from storage.exports.search import export_list

EXPORTS: Final = "/api/ticket-exports"
_EXPORT: Final = f"{EXPORTS}/{{export_id}}"
_PARAMETERS: Final = (*FILTERS, "sort", "facets")
_READER: Final = Bearer(TokenKind.API, Ability.READ_EXPORTS, allows_project_roles=True)
DECIDER: Final = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, allows_project_roles=True)


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of exports."""
    exports = api.operations.exports

    def prepare(req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        export = exports.prepare(req.context.payload, principal.account_id, principal)
        return api.created_response(req, _record(export), export_id=export.id)

    yield ApiRoute(
        EXPORTS,
        get=Endpoint(Operation(_READER), partial(_list, api)),
        post=api.once_per_key(Operation(Bearer(TokenKind.API, Ability.PREPARE_EXPORTS), PreparationForm()), prepare),
    )
    edit = api.changed(DECIDER, EditForm(), lambda export_id, edit, who: exports.edit(export_id, who, edit), _record)
    poller = PollingBearer(TokenKind.API, Ability.READ_EXPORTS, allows_project_roles=True)
    yield ApiRoute(_EXPORT, get=Endpoint(Operation(poller), _poll), patch=edit)
    show_attempt, show_event = shown_as(AttemptResponse), shown_as(TicketEventResponse)
    listed = api.listed(_READER, identifiers.ATTEMPT, of_account(attempts.list_page), show_attempt)
    yield ApiRoute(f"{_EXPORT}/attempts", get=listed)
    listed = api.listed(_READER, identifiers.EVENT, of_account(events.list_page), show_event)
    yield ApiRoute(f"{_EXPORT}/events", get=listed)
    yield ApiRoute(f"{_EXPORT}/receipt", get=read(_READER, exports.receipt))
    yield from _decision_routes(api)


def _list(api: ApiContext, req: falcon.Request, resp: falcon.Response) -> None:
    """Return a page of the account's exports."""
    page = read_filtered_page(req, req.context.principal, Ability.READ_EXPORTS, _PARAMETERS, query_from)
    found = export_list.list_page(page.query, page.sort, page.fetch_limit, page.after)
    shown, now = found[: page.limit], utc_now()
    last = export_list.position_of(shown[-1], page.sort) if len(found) > page.limit else None
    more: dict[str, Any] = {"total": export_list.count(page.query)}
    if page.has_facets:
        more["facets"] = export_list.facets(page.query)
    send_filtered_page(resp, api.url(req), page, [listed_record(each, now) for each in shown], last, **more)


def _poll(req: falcon.Request, resp: falcon.Response, **_ids: str) -> None:
    """Return the record, or 304 if the client has this version; a 304 does not build the record.

    Clients poll often, so a poll uses one query and no schema.
    """
    export: PolledExport | None = req.context.polled
    if export is None:
        raise ExportNotFound
    now_ms = to_ms(utc_now())
    attempt = next_attempt_of(export, now_ms)
    tag = entity_tag(export, attempt, now_ms)
    resp.set_header("ETag", f'"{tag}"')
    if attempt.retry_after_s is not None:
        resp.set_header("Retry-After", str(attempt.retry_after_s))
    if conditional_requests.matches(req, tag):
        resp.status = falcon.HTTP_304
        return
    resp.data = record_json(export, attempt, now_ms)


def _decision_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of decisions; all but an approval accept an empty body."""
    exports = api.operations.exports

    def check(req: falcon.Request, export_id: str) -> Validation | None:
        return exports.check_blocked_target(export_id, req.context.principal, req.context.payload.target_id)

    def retry(req: falcon.Request, export_id: str) -> ApiResponse:
        body: RetryRequest = req.context.payload
        return _due(api, exports.retry(export_id, req.context.principal, req.context.prepared, body.target_id))

    def split(req: falcon.Request, export_id: str) -> ApiResponse:
        ids = exports.split(export_id, req.context.principal)
        return ApiResponse(200, {"ticket_exports": ids}, log_fields={"count": len(ids)})

    def decision(form: Form, decide: Callable[[str, Any, Any], Export]) -> Endpoint:
        def work(req: falcon.Request, export_id: str) -> ApiResponse:
            return ApiResponse(200, _record(decide(export_id, req.context.principal, req.context.payload)))

        return api.once_per_key(Operation(DECIDER, form, Body.OPTIONAL), work)

    yield ApiRoute(f"{_EXPORT}/approve", post=Endpoint(Operation(DECIDER, ApprovalForm()), _Approvals(api).respond))
    checks = Operation(DECIDER, RetryForm(), Body.OPTIONAL)
    yield ApiRoute(f"{_EXPORT}/retry", post=api.once_per_key(checks, retry, check, makes_due=True))
    for verb, endpoint in {
        "dismiss": decision(DismissalForm(), lambda id_, who, body: exports.dismiss(id_, who, body.reason, body.note)),
        "restore": api.acted(DECIDER, exports.restore, _record),
        "snooze": decision(SnoozeForm(), lambda id_, who, body: exports.snooze(id_, who, body.until)),
        "split": api.once_per_key(Operation(DECIDER, NoMembers(), Body.OPTIONAL), split),
    }.items():
        yield ApiRoute(f"{_EXPORT}/{verb}", post=endpoint)


class _Approvals:
    """Approves a prepared export for a target, or for several; concurrent approvals for a target share a transaction."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._batches = IdempotentBatches(api.executor, self._approve_all)

    def respond(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Freeze the ticket, make the export due, and wake the workers after the commit."""
        principal, approval = req.context.principal, req.context.payload
        with self._api.operations.exports.blocking_refused_target(principal):
            if isinstance(approval, ApprovalForAll):
                self._api.executor.respond(req, resp, lambda: self._approve(req, export_id))
            else:
                group = (principal.key, approval.target_id, approval.events)
                self._batches.respond(req, resp, group, export_id, lambda: self._approve(req, export_id))
        self._api.operations.wake_workers()

    def _approve_all(self, requests: Sequence[falcon.Request]) -> list[ApiResponse]:
        approvals = [(req.context.params["export_id"], req.context.payload) for req in requests]
        exports = self._api.operations.exports.approve_all(approvals, requests[0].context.principal)
        return [_due(self._api, export) for export in exports]

    def _approve(self, req: falcon.Request, export_id: str) -> ApiResponse:
        principal, approval = req.context.principal, req.context.payload
        if isinstance(approval, ApprovalForAll):
            exports = self._api.operations.exports.approve_for_all(export_id, principal, approval)
            return ApiResponse(202, {"items": [_record(each) for each in exports]}, {"Location": _url(self._api, export_id)})
        return _due(self._api, self._api.operations.exports.approve(export_id, principal, approval))


def _due(api: ApiContext, export: Export) -> ApiResponse:
    record = _record(export)
    headers = {"Location": _url(api, export.id)}
    if "retry_after_seconds" in record:
        headers["Retry-After"] = str(record["retry_after_seconds"])
    return ApiResponse(202, record, headers, {"target_id": export.target_id})


def _url(api: ApiContext, export_id: str) -> str:
    return f"{api.public_base_url}{EXPORTS}/{export_id}"


def _record(export: Export) -> dict[str, Any]:
    return export_record(export, utc_now())
