"""`/api/ticket-export-targets`: create, list, read, edit and remove targets; pause, resume, disable, validate or ping one.
`/api/providers`: the systems that a target can send to.

Only an account that may use webhook targets can create, edit, resume, validate and ping them. An account that may no longer
use them can still read, pause, disable and remove its targets. Repeating an action changes nothing and succeeds, because
clients repeat a request if they got no response.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.response_fields import dump
from schemas.api.targets import PingOutcomeResponse, ProviderResponse, dump_target
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.targets.forms import TargetEditForm, TargetForm
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import Target, TargetStatus
from service.api.routes import ApiContext, ApiRoute, Endpoint, read, removed
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, request_digest
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers
from storage.targets import targets as stored

TARGETS: Final = "/api/ticket-export-targets"
TARGET: Final = f"{TARGETS}/{{target_id}}"
_MANAGER: Final = Bearer(TokenKind.API, Ability.MANAGE_TARGETS)
_WEBHOOK_MANAGER: Final = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, requires_webhooks=True)
_STATUSES: Final = tuple(status.value for status in TargetStatus)


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of targets and providers."""
    targets = api.operations.targets

    def list_page(req: falcon.Request, resp: falcon.Response) -> None:
        page = read_page(req, identifiers.TARGET, {"status": _STATUSES})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        account_id, now = req.context.principal.account_id, utc_now()
        found = stored.list_page(account_id, targets.default_secret, page.fetch_limit, now, page.before, status)
        send_page(resp, api.url(req), page, [dump_target(target, now) for target in found])

    def create(req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        target = targets.create(req.context.payload, principal.account_id, principal)
        return api.created_response(req, _record(target), target_id=target.id)

    def shown(req: falcon.Request, target_id: str) -> ApiResponse:
        return ApiResponse(200, _record(targets.get(target_id, req.context.principal)))

    def edit(req: falcon.Request, target_id: str) -> ApiResponse:
        targets.edit(target_id, req.context.payload, req.context.principal)
        return shown(req, target_id)

    yield ApiRoute(
        TARGETS,
        get=Endpoint(Operation(_MANAGER), list_page),
        post=api.once_per_key(
            Operation(_WEBHOOK_MANAGER, TargetForm(), has_dry_run=True),
            create,
            lambda req: targets.require_safe(req.context.payload, req.context.principal.account_id),
        ),
    )
    yield ApiRoute(
        TARGET,
        get=read(_MANAGER, targets.get, _record),
        patch=api.once_per_key(
            Operation(_WEBHOOK_MANAGER, TargetEditForm()),
            edit,
            lambda req, target_id: targets.require_safe_edit(target_id, req.context.payload, req.context.principal),
            makes_due=True,
        ),
        delete=removed(_MANAGER, targets.remove),
    )
    providers = {"items": [dump(ProviderResponse, each) for each in PROVIDERS.values()]}
    yield ApiRoute("/api/providers", get=read(_MANAGER, lambda _: providers))

    def action(
        verb: str,
        work: Callable[..., ApiResponse],
        before: Callable[..., object] | None = None,
        bearer: Bearer = _WEBHOOK_MANAGER,
    ) -> ApiRoute:
        checks = Operation(bearer, NoMembers(), Body.OPTIONAL)
        return ApiRoute(f"{TARGET}/{verb}", post=api.once_per_key(checks, work, before, makes_due=verb == "resume"))

    def switch(verb: str) -> ApiRoute:
        def change(req: falcon.Request, target_id: str) -> ApiResponse:
            targets.change_status(target_id, verb, req.context.principal)
            return shown(req, target_id)

        return action(verb, change, bearer=_MANAGER)

    def resume(req: falcon.Request, target_id: str) -> ApiResponse:
        targets.resume(target_id, req.context.principal, req.context.prepared)
        return shown(req, target_id)

    yield action("validate", shown, lambda req, target_id: targets.validate(target_id, req.context.principal))
    yield action(
        "ping",
        lambda req, **_: ApiResponse(200, dump(PingOutcomeResponse, req.context.prepared)),
        lambda req, target_id: targets.ping(target_id, req.context.principal, request_digest(req)),
    )
    yield switch("pause")
    yield action("resume", resume, lambda req, target_id: targets.check_before_resuming(target_id, req.context.principal))
    yield switch("disable")


def _record(target: Target) -> dict[str, Any]:
    return dump_target(target, utc_now())
