"""`/api/ticket-export-targets/{id}/…`: clients pause, resume, disable, validate and ping their targets.

What a target is already changes nothing and is answered all the same, since clients repeat what they got no answer to.
Turning off is open to every account that has a target; what dials or delivers needs one that may use webhook targets.
"""

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from schemas.targets.pings import ping_record
from schemas.targets.target import target_record
from service.api.targets import TargetResource
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor, request_digest
from service.http.request_pipeline import Body, Operation
from service.operations.targets import TargetOperations


class _TargetActionResource:
    """A POST without members to one target."""

    family = RouteFamily.EXPORTS

    def __init__(self, verb: str, executor: IdempotentExecutor, moves: TargetOperations, *, for_webhooks: bool) -> None:
        self.path = f"{TargetResource.path}/{verb}"
        bearer = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=for_webhooks)
        self.operations = {"POST": Operation(bearer, NoMembers(), Body.OPTIONAL)}
        self._verb = verb
        self._executor = executor
        self._moves = moves

    def _record(self, req: falcon.Request, target_id: str) -> ApiResponse:
        return ApiResponse(200, target_record(self._moves.get(target_id, req.context.principal), utc_now()))


class TargetSwitchResource(_TargetActionResource):
    """Pauses or disables a target: its exports wait, or are taken no more."""

    def __init__(self, verb: str, executor: IdempotentExecutor, moves: TargetOperations) -> None:
        super().__init__(verb, executor, moves, for_webhooks=False)

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Turn it, and answer with the target."""
        self._executor.respond(req, resp, lambda: self._turn(req, target_id))

    def _turn(self, req: falcon.Request, target_id: str) -> ApiResponse:
        self._moves.turn(target_id, self._verb, req.context.principal)
        return self._record(req, target_id)


class TargetResumptionResource(_TargetActionResource):
    """Delivers to a target again, once its address has passed the URL policy again."""

    def __init__(self, executor: IdempotentExecutor, moves: TargetOperations, wake_ups: WakeUpQueue) -> None:
        super().__init__("resume", executor, moves, for_webhooks=True)
        self._wake_ups = wake_ups

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Resume it, and notify the workers of the exports that waited."""
        self._executor.respond(
            req, resp, lambda: self._resume(req, target_id), before_transaction=lambda: self._look(req, target_id)
        )
        self._wake_ups.notify()

    def _look(self, req: falcon.Request, target_id: str) -> None:
        req.context.is_checked = self._moves.check_before_resuming(target_id, req.context.principal)

    def _resume(self, req: falcon.Request, target_id: str) -> ApiResponse:
        self._moves.resume(target_id, req.context.principal, is_checked=req.context.is_checked)
        return self._record(req, target_id)


class TargetValidationResource(_TargetActionResource):
    """Looks at a target as it is now; an address that may not be used blocks it."""

    def __init__(self, executor: IdempotentExecutor, moves: TargetOperations) -> None:
        super().__init__("validate", executor, moves, for_webhooks=True)

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Have it looked at, and answer with the target; a repeat with the same key looks no more."""
        self._executor.respond(
            req,
            resp,
            lambda: self._record(req, target_id),
            before_transaction=lambda: self._moves.validate(target_id, req.context.principal),
        )


class TargetPingResource(_TargetActionResource):
    """Has a worker send a signed test event to a target; nothing is dialed from here."""

    def __init__(self, executor: IdempotentExecutor, moves: TargetOperations) -> None:
        super().__init__("ping", executor, moves, for_webhooks=True)

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Ask for a ping, wait for its end, and answer what came of it; a repeat with the same key pings no more."""
        self._executor.respond(
            req,
            resp,
            lambda: ApiResponse(200, ping_record(req.context.ping_result)),
            before_transaction=lambda: self._ping(req, target_id),
        )

    def _ping(self, req: falcon.Request, target_id: str) -> None:
        req.context.ping_result = self._moves.ping(target_id, req.context.principal, request_digest(req))
