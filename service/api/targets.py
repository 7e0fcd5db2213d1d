"""`/api/ticket-export-targets`: create, list and read targets.

Only an account that may use webhook targets creates one; an account that may not any more still reads its targets.
"""

import json
from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.api.responses import dump_target
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily
from schemas.targets.target import TargetForm, TargetStatus
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
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
        url, principal = req.context.payload.base_url, req.context.principal
        self._executor.respond(req, resp, lambda: self._create(req), lambda: self._targets.require_safe(url, principal))

    def _create(self, req: falcon.Request) -> ApiResponse:
        target = self._targets.create(req.context.payload, req.context.principal)
        headers = {"Location": f"{self._url}/{target.id}"}
        return ApiResponse(201, dump_target(target, utc_now()), headers, {"target_id": target.id})


class TargetResource:
    """Reads one target."""

    path = "/api/ticket-export-targets/{target_id}"
    family = RouteFamily.EXPORTS

    def __init__(self, operations: TargetOperations) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        self.operations = {"GET": reading, "HEAD": reading}
        self._targets = operations

    def on_get(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Return the record."""
        target = self._targets.get(target_id, req.context.principal)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(dump_target(target, utc_now()), ensure_ascii=False).encode()

    on_head = on_get
