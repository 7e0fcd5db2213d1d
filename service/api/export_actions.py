"""What a client decides about an export: to approve it for a target, to have it tried again, to put it aside.

Once an export that became due is committed, the workers are notified. An export in a state that forbids the move is refused
with 409.
"""

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.exports.record import ApprovalForm, Export, export_record
from schemas.settings.definitions import RouteFamily
from service.api.exports import EXPORTS, export_url
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Body, Operation
from service.operations.exports import ExportOperations


class TicketExportApprovalResource:
    """Approves a prepared export for a target."""

    path = f"{EXPORTS}/{{export_id}}/approve"
    family = RouteFamily.EXPORTS

    def __init__(
        self, executor: IdempotentExecutor, decisions: ExportOperations, wake_ups: WakeUpQueue, public_base_url: str
    ) -> None:
        self.operations = {"POST": Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), ApprovalForm())}
        self._executor = executor
        self._decisions = decisions
        self._wake_ups = wake_ups
        self._public_base_url = public_base_url

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Freeze the ticket, make it due, and notify the workers once that is committed."""
        self._executor.respond(req, resp, lambda: self._approve(req, export_id))
        self._wake_ups.notify()

    def _approve(self, req: falcon.Request, export_id: str) -> ApiResponse:
        export = self._decisions.approve(export_id, req.context.principal, req.context.payload)
        return _due(export, self._public_base_url)


class TicketExportRetryResource:
    """Delivers a failed or blocked export after all, with its whole schedule.

    Where its target is blocked, the address is looked at anew: if it may be used by now, the target is resumed with it.
    """

    path = f"{EXPORTS}/{{export_id}}/retry"
    family = RouteFamily.EXPORTS

    def __init__(
        self, executor: IdempotentExecutor, decisions: ExportOperations, wake_ups: WakeUpQueue, public_base_url: str
    ) -> None:
        self.operations = {"POST": _decision()}
        self._executor = executor
        self._decisions = decisions
        self._wake_ups = wake_ups
        self._public_base_url = public_base_url

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Make it due, and notify the workers once that is committed."""
        self._executor.respond(
            req, resp, lambda: self._retry(req, export_id), before_transaction=lambda: self._look_at_blocked(req, export_id)
        )
        self._wake_ups.notify()

    def _look_at_blocked(self, req: falcon.Request, export_id: str) -> None:
        req.context.validation = self._decisions.check_blocked_target(export_id, req.context.principal)

    def _retry(self, req: falcon.Request, export_id: str) -> ApiResponse:
        export = self._decisions.retry(export_id, req.context.principal, req.context.validation)
        return _due(export, self._public_base_url)


class TicketExportDismissalResource:
    """Puts a prepared export aside for good."""

    path = f"{EXPORTS}/{{export_id}}/dismiss"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, decisions: ExportOperations) -> None:
        self.operations = {"POST": _decision()}
        self._executor = executor
        self._decisions = decisions

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Dismiss it."""
        self._executor.respond(req, resp, lambda: self._dismiss(req, export_id))

    def _dismiss(self, req: falcon.Request, export_id: str) -> ApiResponse:
        return ApiResponse(200, export_record(self._decisions.dismiss(export_id, req.context.principal), utc_now()))


def _decision() -> Operation:
    return Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), NoMembers(), Body.OPTIONAL)


def _due(export: Export, public_base_url: str) -> ApiResponse:
    headers = {"Location": export_url(public_base_url, export.id)}
    return ApiResponse(202, export_record(export, utc_now()), headers, {"target_id": export.target_id})
