"""`/api/ticket-exports`: prepare a ticket by hand, list exports, poll or edit one, get its parts.

`service.api.export_actions` serves approval, retry and the other decisions.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import falcon

from runtime.clock import utc_now
from schemas.api.deliveries import AttemptResponse, TicketEventResponse
from schemas.api.response_fields import ResponseSchema, dump
from schemas.base.errors import ExportNotFound
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import to_ms
from schemas.exports.polled_record import PolledExport, entity_tag, record_json, upcoming
from schemas.exports.record import Export, PreparationForm, export_record
from schemas.settings.definitions import RouteFamily
from schemas.triage.decision_forms import EditForm
from service.http import conditional_requests
from service.http.auth import Bearer, PollingBearer
from service.http.export_paging import read_export_page, send_export_page
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Operation
from service.operations.exports import ExportOperations
from storage.db import identifiers
from storage.exports import attempts
from storage.exports.events import queries as events
from storage.exports.search import export_list

EXPORTS: Final = "/api/ticket-exports"


def export_url(public_base_url: str, export_id: str) -> str:
    """Return the URL of an export's record."""
    return f"{public_base_url}{EXPORTS}/{export_id}"


def decided(export: Export) -> ApiResponse:
    """Return the response to a decision that makes nothing due."""
    return ApiResponse(200, export_record(export, utc_now()))


class TicketExportsResource:
    """Lists exports, and prepares tickets written by hand."""

    path = EXPORTS
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, exports: ExportOperations, public_base_url: str) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS, of_projects=True))
        preparing = Operation(Bearer(TokenKind.API, Ability.PREPARE_EXPORTS), PreparationForm())
        self.operations = {"GET": reading, "HEAD": reading, "POST": preparing}
        self._executor = executor
        self._exports = exports
        self._public_base_url = public_base_url

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's exports."""
        page = read_export_page(req, req.context.principal)
        found = export_list.list_page(page.query, page.sort, page.fetch_limit, page.after)
        now = utc_now()
        send_export_page(resp, self._public_base_url + self.path, page, found, now)

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store the ticket as a prepared export."""
        self._executor.respond(req, resp, lambda: self._prepare(req))

    def _prepare(self, req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        export = self._exports.prepare(req.context.payload, principal.account_id, principal)
        headers = {"Location": export_url(self._public_base_url, export.id)}
        return ApiResponse(201, export_record(export, utc_now()), headers, {"export_id": export.id})


class TicketExportResource:
    """Serves polls, with one query and no schema, because clients poll often; edits prepared tickets."""

    path = f"{EXPORTS}/{{export_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, exports: ExportOperations) -> None:
        reading = Operation(PollingBearer(TokenKind.API, Ability.READ_EXPORTS, of_projects=True))
        editing = Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, of_projects=True), EditForm())
        self.operations = {"GET": reading, "HEAD": reading, "PATCH": editing}
        self._executor = executor
        self._exports = exports

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return the record, or 304 if the client has this version; a 304 does not build the record."""
        export: PolledExport | None = req.context.polled
        if export is None:
            raise ExportNotFound
        now_ms = to_ms(utc_now())
        attempt = upcoming(export, now_ms)
        tag = entity_tag(export, attempt, now_ms)
        resp.set_header("ETag", f'"{tag}"')
        if attempt.retry_after_s is not None:
            resp.set_header("Retry-After", str(attempt.retry_after_s))
        if conditional_requests.has(req, tag):
            resp.status = falcon.HTTP_304
            return
        resp.data = record_json(export, attempt, now_ms)

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Replace parts of a prepared ticket."""
        edit, principal = req.context.payload, req.context.principal
        self._executor.respond(req, resp, lambda: decided(self._exports.edit(export_id, principal, edit)))


class ExportPartsResource:
    """Lists what belongs to one export, newest first; `prefix` is that of its ids."""

    path: ClassVar[str]
    prefix: ClassVar[str]
    schema: ClassVar[type[ResponseSchema]]
    family = RouteFamily.EXPORTS

    def __init__(self, public_base_url: str) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS, of_projects=True))
        self.operations = {"GET": reading, "HEAD": reading}
        self._public_base_url = public_base_url

    def list_page(self, export_id: str, account_id: int, limit: int, before: str | None) -> Sequence[object]:
        """Return up to `limit` of them, older than `before`. Raises ExportNotFound, ValidationFailed."""
        raise NotImplementedError

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return a page."""
        page = read_page(req, self.prefix)
        found = self.list_page(export_id, req.context.principal.account_id, page.fetch_limit, page.before)
        records: list[dict[str, Any]] = [dump(self.schema, each) for each in found]
        send_page(resp, self._public_base_url + self.path.format(export_id=export_id), page, records)

    on_head = on_get


class TicketExportAttemptsResource(ExportPartsResource):
    """Lists the attempts of one export."""

    path = f"{EXPORTS}/{{export_id}}/attempts"
    prefix = identifiers.ATTEMPT
    schema = AttemptResponse

    def list_page(self, export_id: str, account_id: int, limit: int, before: str | None) -> Sequence[object]:
        """Return attempts."""
        return attempts.list_page(export_id, account_id, limit, before)


class TicketExportEventsResource(ExportPartsResource):
    """Lists the events of one export, which its target gets after the ticket."""

    path = f"{EXPORTS}/{{export_id}}/events"
    prefix = identifiers.EVENT
    schema = TicketEventResponse

    def list_page(self, export_id: str, account_id: int, limit: int, before: str | None) -> Sequence[object]:
        """Return events."""
        return events.list_page(export_id, account_id, limit, before)


class TicketExportReceiptResource:
    """Serves the delivery receipt of one export."""

    path = f"{EXPORTS}/{{export_id}}/receipt"
    family = RouteFamily.EXPORTS

    def __init__(self, exports: ExportOperations) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS, of_projects=True))
        self.operations = {"GET": reading, "HEAD": reading}
        self._exports = exports

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return the receipt."""
        resp.data = json.dumps(self._exports.receipt(export_id, req.context.principal), ensure_ascii=False).encode()

    on_head = on_get
