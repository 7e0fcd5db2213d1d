"""`/api/ticket-exports`: clients approve prepared exports and poll their status."""

import json

import falcon

from schemas.exports import ApprovalForm, Export, export_record, retry_after_s
from schemas.principal import Ability, TokenKind
from schemas.settings import RouteFamily
from service.admission import Operation
from service.auth import Bearer
from service.idempotency import Answer, Once
from storage import exports
from storage.clock import utc_now
from storage.doorbell import Doorbell


class TicketExport:
    """Answers polls; cheap on purpose, since clients poll."""

    path = "/api/ticket-exports/{export_id}"
    family = RouteFamily.EXPORTS

    def __init__(self) -> None:
        self.operations = {"GET": Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS))}

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Return the record, or 304 where the client has this version."""
        export = exports.get(export_id, req.context.principal.account_id)
        now = utc_now()
        resp.etag = export.etag
        seconds = retry_after_s(export, now)
        if seconds is not None:
            resp.set_header("Retry-After", str(seconds))
        if _has_this_version(req, export):
            resp.status = falcon.HTTP_304
            return
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(export_record(export, now), ensure_ascii=False).encode()


class TicketExportApproval:
    """Approves a prepared export for a target."""

    path = "/api/ticket-exports/{export_id}/approve"
    family = RouteFamily.EXPORTS

    def __init__(self, once: Once, doorbell: Doorbell, public_base_url: str) -> None:
        self.operations = {"POST": Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), ApprovalForm())}
        self._once = once
        self._doorbell = doorbell
        self._public_base_url = public_base_url

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Freeze the ticket, make it due, and ring once that is committed."""
        self._once.answer(req, resp, lambda: self._approve(req, export_id))
        self._doorbell.ring()

    def _approve(self, req: falcon.Request, export_id: str) -> Answer:
        principal, now = req.context.principal, utc_now()
        export = exports.approve(export_id, principal.account_id, req.context.payload, now, principal.key)
        location = self._public_base_url + TicketExport.path.format(export_id=export.id)
        return Answer(202, export_record(export, now), {"Location": location})


def _has_this_version(req: falcon.Request, export: Export) -> bool:
    tags = req.if_none_match
    return tags is not None and any(tag == "*" or str(tag) == export.etag for tag in tags)
