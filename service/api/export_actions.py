"""`POST /api/ticket-exports/{export_id}/…`: approve, retry, dismiss, restore, split or snooze an export."""

from collections.abc import Mapping, Sequence
from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.base.fields import Form, NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.exports.record import ApprovalForAll, ApprovalForm, Export, export_record
from schemas.triage.decision_forms import DismissalForm, RetryForm, RetryRequest, SnoozeForm
from service.api.exports import EXPORTS, decided, export_url
from service.api.resources import ApiContext, ApiResource, by_method, once_per_key, once_per_key_with
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.idempotent_batches import IdempotentBatches
from service.http.request_pipeline import Body, Operation

#: The forms of decisions that deliver nothing, by the verb in the path.
_FORMS: Final[Mapping[str, type[Form]]] = {
    "dismiss": DismissalForm,
    "restore": NoMembers,
    "snooze": SnoozeForm,
    "split": NoMembers,
}
_DECIDER: Final = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, allows_project_roles=True)


class TicketExportApprovalResource(ApiResource):
    """Approves a prepared export for a target, or for several."""

    path = f"{EXPORTS}/{{export_id}}/approve"
    checks = by_method(POST=Operation(_DECIDER, ApprovalForm()))

    def __init__(self, api: ApiContext) -> None:
        super().__init__(api)
        self._batches = IdempotentBatches(self._executor, self._approve_all)

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Freeze the ticket, make the export due, and wake the workers after the commit."""
        principal, approval = req.context.principal, req.context.payload
        with self._api.operations.exports.blocking_refused_target(principal):
            if isinstance(approval, ApprovalForAll):
                self._executor.respond(req, resp, lambda: self._approve(req, export_id))
            else:
                group = (principal.key, approval.target_id, approval.events)
                self._batches.respond(req, resp, group, export_id, lambda: self._approve(req, export_id))
        self._api.operations.wake_workers()

    def _approve_all(self, requests: Sequence[falcon.Request]) -> list[ApiResponse]:
        approvals = [(req.context.params["export_id"], req.context.payload) for req in requests]
        exports = self._api.operations.exports.approve_all(approvals, requests[0].context.principal)
        return [_due(export, self._api.public_base_url) for export in exports]

    def _approve(self, req: falcon.Request, export_id: str) -> ApiResponse:
        principal, approval = req.context.principal, req.context.payload
        if isinstance(approval, ApprovalForAll):
            exports = self._api.operations.exports.approve_for_all(export_id, principal, approval)
            items = [export_record(each, utc_now()) for each in exports]
            return ApiResponse(202, {"items": items}, {"Location": export_url(self._api.public_base_url, export_id)})
        return _due(self._api.operations.exports.approve(export_id, principal, approval), self._api.public_base_url)


class TicketExportRetryResource(ApiResource):
    """Retries a failed or blocked export with its whole schedule, at its own target or at another one.

    If its own target is blocked, checks the target's address first.
    """

    path = f"{EXPORTS}/{{export_id}}/retry"
    checks = by_method(POST=Operation(_DECIDER, RetryForm(), Body.OPTIONAL))

    def _check(self, req: falcon.Request, export_id: str) -> None:
        exports, caller, body = self._api.operations.exports, req.context.principal, req.context.payload
        req.context.validation = exports.check_blocked_target(export_id, caller, body.target_id)

    @once_per_key_with(_check, makes_due=True)
    def on_post(self, req: falcon.Request, export_id: str) -> ApiResponse:
        """Make the export due."""
        body: RetryRequest = req.context.payload
        exports, caller = self._api.operations.exports, req.context.principal
        export = exports.retry(export_id, caller, req.context.validation, body.target_id)
        return _due(export, self._api.public_base_url)


class TicketExportDecisionResource(ApiResource):
    """Dismisses, restores, snoozes or splits an export; these decisions deliver nothing. The body may be absent."""

    def __init__(self, verb: str, api: ApiContext) -> None:
        self.path = f"{EXPORTS}/{{export_id}}/{verb}"
        super().__init__(api, {"POST": Operation(_DECIDER, _FORMS[verb](), Body.OPTIONAL)})
        self._verb = verb

    @once_per_key
    def on_post(self, req: falcon.Request, export_id: str) -> ApiResponse:
        """Decide on the export."""
        exports, caller, body = self._api.operations.exports, req.context.principal, req.context.payload
        match self._verb:
            case "dismiss":
                return decided(exports.dismiss(export_id, caller, body.reason, body.note))
            case "restore":
                return decided(exports.restore(export_id, caller))
            case "snooze":
                return decided(exports.snooze(export_id, caller, body.until))
            case _:
                ids = exports.split(export_id, caller)
                return ApiResponse(200, {"ticket_exports": ids}, log_fields={"count": len(ids)})


def _due(export: Export, public_base_url: str) -> ApiResponse:
    record = export_record(export, utc_now())
    headers = {"Location": export_url(public_base_url, export.id)}
    if "retry_after_seconds" in record:
        headers["Retry-After"] = str(record["retry_after_seconds"])
    return ApiResponse(202, record, headers, {"target_id": export.target_id})
