"""`/api/ticket-export-targets`: create, list, read, edit and remove targets; `/api/providers`: where they can lead.

Only an account that may use webhook targets creates and edits them; one that may not any more still reads and removes its
targets.
"""

from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.response_fields import dump
from schemas.api.targets import ProviderResponse, dump_target
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from schemas.targets.forms import TargetEditForm, TargetForm
from schemas.targets.providers import providers
from schemas.targets.target import TargetStatus
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Operation
from service.operations.targets import TargetOperations
from storage.db import identifiers
from storage.targets import targets

_STATUSES: Final = tuple(status.value for status in TargetStatus)


class TargetsResource:
    """Creates webhook targets, and lists them."""

    path = "/api/ticket-export-targets"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, operations: TargetOperations, public_base_url: str) -> None:
        may_create = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=True)
        creating = Operation(may_create, TargetForm(), has_dry_run=True)
        reading = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        self.operations = {"GET": reading, "HEAD": reading, "POST": creating}
        self._url = public_base_url + self.path
        self._executor = executor
        self._targets = operations

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's targets, newest first, with the `?status=` that is asked for."""
        page = read_page(req, identifiers.TARGET, {"status": _STATUSES})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        account_id, default, now = req.context.principal.account_id, self._targets.default_secret, utc_now()
        found = targets.list_page(account_id, default, page.fetch_limit, now, page.before, status)
        send_page(resp, self._url, page, [dump_target(target, now) for target in found])

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Check the address, and store the target if it is allowed."""
        request, account_id = req.context.payload, req.context.principal.account_id
        self._executor.respond(req, resp, lambda: self._create(req), lambda: self._targets.require_safe(request, account_id))

    def _create(self, req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        target = self._targets.create(req.context.payload, principal.account_id, principal)
        headers = {"Location": f"{self._url}/{target.id}"}
        return ApiResponse(201, dump_target(target, utc_now()), headers, {"target_id": target.id})


class ProvidersResource:
    """Lists where tickets can go."""

    path = "/api/providers"
    family = RouteFamily.EXPORTS

    def __init__(self) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return every provider with the schema of its settings."""
        send_record(resp, {"items": [dump(ProviderResponse, each) for each in providers()]})

    on_head = on_get


class TargetResource:
    """Reads, edits or removes one target."""

    path = "/api/ticket-export-targets/{target_id}"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, operations: TargetOperations) -> None:
        managing = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        may_edit = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=True)
        editing = Operation(may_edit, TargetEditForm())
        self.operations = {"GET": managing, "HEAD": managing, "PATCH": editing, "DELETE": managing}
        self._executor = executor
        self._targets = operations

    def on_get(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Return the record."""
        send_record(resp, self._record(req, target_id))

    on_head = on_get

    def on_patch(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Change the target, wake the workers for what waits, and return the record."""
        edit, principal = req.context.payload, req.context.principal
        self._executor.respond(
            req,
            resp,
            lambda: self._edit(req, target_id),
            lambda: self._targets.require_safe_edit(target_id, edit, principal),
        )
        self._targets.wake_workers()

    def on_delete(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Remove the target; respond with 204."""
        self._targets.remove(target_id, req.context.principal)
        resp.status = falcon.HTTP_204

    def _edit(self, req: falcon.Request, target_id: str) -> ApiResponse:
        self._targets.edit(target_id, req.context.payload, req.context.principal)
        return ApiResponse(200, self._record(req, target_id))

    def _record(self, req: falcon.Request, target_id: str) -> dict[str, Any]:
        return dump_target(self._targets.get(target_id, req.context.principal), utc_now())
