"""`POST /api/ticket-export-targets/{target_id}/…`: pause, resume, disable, validate or ping a target.

Repeating an action changes nothing and succeeds, because clients repeat a request if they got no response. Every account may
pause or disable its targets. Resuming, validating and pinging require an account that may use webhook targets.
"""

import falcon

from runtime.clock import utc_now
from schemas.api.response_fields import dump
from schemas.api.targets import PingOutcomeResponse, dump_target
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from service.api.resources import ApiContext, ApiResource, once_per_key, once_per_key_with
from service.api.targets import TargetResource
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, request_digest
from service.http.request_pipeline import Body, Operation


class _TargetActionResource(ApiResource):
    """Handles a POST to one target; its body has no members."""

    verb: str
    requires_webhooks = True

    def __init__(self, api: ApiContext) -> None:
        self.path = f"{TargetResource.path}/{self.verb}"
        bearer = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, requires_webhooks=self.requires_webhooks)
        super().__init__(api, {"POST": Operation(bearer, NoMembers(), Body.OPTIONAL)})
        self._targets = api.operations.targets

    def _record(self, req: falcon.Request, target_id: str) -> ApiResponse:
        return ApiResponse(200, dump_target(self._targets.get(target_id, req.context.principal), utc_now()))


class TargetSwitchResource(_TargetActionResource):
    """Pauses or disables a target: the exports of a paused target wait; a disabled target accepts no exports."""

    requires_webhooks = False

    def __init__(self, verb: str, api: ApiContext) -> None:
        self.verb = verb
        super().__init__(api)

    @once_per_key
    def on_post(self, req: falcon.Request, target_id: str) -> ApiResponse:
        """Change the status, and return the target."""
        self._targets.change_status(target_id, self.verb, req.context.principal)
        return self._record(req, target_id)


class TargetResumptionResource(_TargetActionResource):
    """Resumes deliveries to a target if the URL policy allows its address."""

    verb = "resume"

    def _check(self, req: falcon.Request, target_id: str) -> None:
        req.context.validation = self._targets.check_before_resuming(target_id, req.context.principal)

    @once_per_key_with(_check, makes_due=True)
    def on_post(self, req: falcon.Request, target_id: str) -> ApiResponse:
        """Resume the target and make its waiting exports due."""
        self._targets.resume(target_id, req.context.principal, req.context.validation)
        return self._record(req, target_id)


class TargetValidationResource(_TargetActionResource):
    """Validates a target; if its address is refused, the target is blocked."""

    verb = "validate"

    def _validate(self, req: falcon.Request, target_id: str) -> None:
        self._targets.validate(target_id, req.context.principal)

    @once_per_key_with(_validate)
    def on_post(self, req: falcon.Request, target_id: str) -> ApiResponse:
        """Validate, and return the target; a replayed request validates nothing."""
        return self._record(req, target_id)


class TargetPingResource(_TargetActionResource):
    """Makes a worker send a signed test event to a target; this process opens no connection to the target."""

    verb = "ping"

    def _ping(self, req: falcon.Request, target_id: str) -> None:
        req.context.ping_result = self._targets.ping(target_id, req.context.principal, request_digest(req))

    @once_per_key_with(_ping)
    def on_post(self, req: falcon.Request, target_id: str) -> ApiResponse:
        """Request a ping, wait for it, and return its result; a replayed request sends no second ping."""
        return ApiResponse(200, dump(PingOutcomeResponse, req.context.ping_result))
