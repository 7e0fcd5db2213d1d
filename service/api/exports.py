"""`/api/ticket-exports`: prepare a ticket by hand, list exports, poll or edit one, get its attempts, events and receipt.

`service.api.export_actions` serves approval, retry and the other decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.deliveries import AttemptResponse, TicketEventResponse
from schemas.api.response_fields import ResponseSchema, dump
from schemas.base.errors import ExportNotFound
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import to_ms
from schemas.exports.polled_record import PolledExport, entity_tag, next_attempt_of, record_json
from schemas.exports.record import Export, PreparationForm, export_record, listed_record
from schemas.triage.decision_forms import EditForm
from schemas.triage.export_filter import FILTERS, query_from
from service.api.resources import ApiContext, ApiResource, by_method, once_per_key
from service.http import conditional_requests
from service.http.auth import Bearer, PollingBearer
from service.http.filtered_paging import read_filtered_page, send_filtered_page
from service.http.idempotency import ApiResponse
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Operation
from storage.db import identifiers
from storage.exports import attempts
from storage.exports.events import queries as events
from storage.exports.search import export_list

EXPORTS: Final = "/api/ticket-exports"
_PARAMETERS: Final = (*FILTERS, "sort", "facets")
#: The lists that belong to an export, by the last part of their path: the id prefix, the schema and the query of each.
_PARTS: Final[Mapping[str, tuple[str, type[ResponseSchema], Callable[..., Sequence[object]]]]] = {
    "attempts": (identifiers.ATTEMPT, AttemptResponse, attempts.list_page),
    "events": (identifiers.EVENT, TicketEventResponse, events.list_page),
}
_READING: Final = Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS, allows_project_roles=True))


def export_url(public_base_url: str, export_id: str) -> str:
    """Return the URL of an export's record."""
    return f"{public_base_url}{EXPORTS}/{export_id}"


def decided(export: Export) -> ApiResponse:
    """Return the response to a decision that makes no export due."""
    return ApiResponse(200, export_record(export, utc_now()))


class TicketExportsResource(ApiResource):
    """Lists exports, and prepares tickets written by hand."""

    path = EXPORTS
    checks = by_method(GET=_READING, POST=Operation(Bearer(TokenKind.API, Ability.PREPARE_EXPORTS), PreparationForm()))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's exports."""
        page = read_filtered_page(req, req.context.principal, Ability.READ_EXPORTS, _PARAMETERS, query_from)
        found = export_list.list_page(page.query, page.sort, page.fetch_limit, page.after)
        shown, now = found[: page.limit], utc_now()
        last = export_list.position_of(shown[-1], page.sort) if len(found) > page.limit else None
        more: dict[str, Any] = {"total": export_list.count(page.query)}
        if page.has_facets:
            more["facets"] = export_list.facets(page.query)
        send_filtered_page(resp, self._url, page, [listed_record(each, now) for each in shown], last, **more)

    @once_per_key
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Store the ticket as a prepared export."""
        principal = req.context.principal
        export = self._api.operations.exports.prepare(req.context.payload, principal.account_id, principal)
        headers = {"Location": f"{self._url}/{export.id}"}
        return ApiResponse(201, export_record(export, utc_now()), headers, {"export_id": export.id})


class TicketExportResource(ApiResource):
    """Serves polls and edits. Clients poll often, so a poll uses one query and no schema."""

    path = f"{EXPORTS}/{{export_id}}"
    checks = by_method(
        GET=Operation(PollingBearer(TokenKind.API, Ability.READ_EXPORTS, allows_project_roles=True)),
        PATCH=Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, allows_project_roles=True), EditForm()),
    )

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return the record, or 304 if the client has this version; a 304 does not build the record."""
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

    @once_per_key
    def on_patch(self, req: falcon.Request, export_id: str) -> ApiResponse:
        """Replace parts of a prepared ticket."""
        return decided(self._api.operations.exports.edit(export_id, req.context.principal, req.context.payload))


class TicketExportPartsResource(ApiResource):
    """Lists the attempts of one export, or the events that its target gets after the ticket; newest first."""

    checks = by_method(GET=_READING)

    def __init__(self, parts: str, api: ApiContext) -> None:
        self.path = f"{EXPORTS}/{{export_id}}/{parts}"
        super().__init__(api)
        self._prefix, self._schema, self._list_page = _PARTS[parts]

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return a page of the list."""
        page = read_page(req, self._prefix)
        found = self._list_page(export_id, req.context.principal.account_id, page.fetch_limit, page.before)
        records = [dump(self._schema, each) for each in found]
        send_page(resp, self._api.public_base_url + self.path.format(export_id=export_id), page, records)


class TicketExportReceiptResource(ApiResource):
    """Serves the delivery receipt of one export."""

    path = f"{EXPORTS}/{{export_id}}/receipt"
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return the receipt."""
        send_record(resp, self._api.operations.exports.receipt(export_id, req.context.principal))
