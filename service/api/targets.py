"""`/api/ticket-export-targets`: create, list, read, edit and remove targets; `/api/providers`: the systems that a target can
send to.

Only an account that may use webhook targets can create and edit them. An account that may no longer use them can still read
and remove its targets.
"""

from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.response_fields import dump
from schemas.api.targets import ProviderResponse, dump_target
from schemas.base.principal import Ability, TokenKind
from schemas.targets.forms import TargetEditForm, TargetForm
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import TargetStatus
from service.api.resources import ApiResource, by_method, once_per_key_with
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Operation
from storage.db import identifiers
from storage.targets import targets

_MANAGING: Final = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
_WEBHOOK_MANAGER: Final = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, requires_webhooks=True)
_STATUSES: Final = tuple(status.value for status in TargetStatus)


class TargetsResource(ApiResource):
    """Creates targets, and lists them."""

    path = "/api/ticket-export-targets"
    checks = by_method(GET=_MANAGING, POST=Operation(_WEBHOOK_MANAGER, TargetForm(), has_dry_run=True))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's targets, newest first; `?status=` limits the list to one status."""
        page = read_page(req, identifiers.TARGET, {"status": _STATUSES})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        account_id, default, now = req.context.principal.account_id, self._api.operations.targets.default_secret, utc_now()
        found = targets.list_page(account_id, default, page.fetch_limit, now, page.before, status)
        send_page(resp, self._url, page, [dump_target(target, now) for target in found])

    def _check(self, req: falcon.Request) -> None:
        self._api.operations.targets.require_safe(req.context.payload, req.context.principal.account_id)

    @once_per_key_with(_check)
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Store the target; `_check` has checked its address."""
        principal = req.context.principal
        target = self._api.operations.targets.create(req.context.payload, principal.account_id, principal)
        headers = {"Location": f"{self._url}/{target.id}"}
        return ApiResponse(201, dump_target(target, utc_now()), headers, {"target_id": target.id})


class ProvidersResource(ApiResource):
    """Lists the providers to which tickets can be sent."""

    path = "/api/providers"
    checks = by_method(GET=_MANAGING)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return every provider with the schema of its settings."""
        send_record(resp, {"items": [dump(ProviderResponse, each) for each in PROVIDERS.values()]})


class TargetResource(ApiResource):
    """Reads, edits or removes one target."""

    path = "/api/ticket-export-targets/{target_id}"
    checks = by_method(GET=_MANAGING, PATCH=Operation(_WEBHOOK_MANAGER, TargetEditForm()), DELETE=_MANAGING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Return the record."""
        send_record(resp, self._record(req, target_id))

    def _check(self, req: falcon.Request, target_id: str) -> None:
        self._api.operations.targets.require_safe_edit(target_id, req.context.payload, req.context.principal)

    @once_per_key_with(_check, makes_due=True)
    def on_patch(self, req: falcon.Request, target_id: str) -> ApiResponse:
        """Change the target, make its waiting exports due, and return the target."""
        self._api.operations.targets.edit(target_id, req.context.payload, req.context.principal)
        return ApiResponse(200, self._record(req, target_id))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Remove the target; respond with 204."""
        self._api.operations.targets.remove(target_id, req.context.principal)
        resp.status = falcon.HTTP_204

    def _record(self, req: falcon.Request, target_id: str) -> dict[str, Any]:
        return dump_target(self._api.operations.targets.get(target_id, req.context.principal), utc_now())
