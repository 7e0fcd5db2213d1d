"""`/api/ticket-export-targets`: clients say where tickets go, and read how their targets fare.

Only an account that may use webhook targets makes one; any account that has one may read it.
"""

import json
from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import RouteFamily, Settings
from schemas.targets.target import TargetForm, TargetStatus, target_record
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Operation
from service.operations.address_check import AddressCheck
from storage.db import identifiers
from storage.targets import targets

_STATUSES: Final = tuple(status.value for status in TargetStatus)


class TargetsResource:
    """Makes webhook targets, and lists them."""

    path = "/api/ticket-export-targets"
    family = RouteFamily.EXPORTS

    def __init__(
        self, settings: Settings, executor: IdempotentExecutor, check: AddressCheck, default_secret_fingerprint: str | None
    ) -> None:
        makers = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=True)
        making = Operation(makers, TargetForm(), has_dry_run=True)
        reading = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        self.operations = {"GET": reading, "HEAD": reading, "POST": making}
        self._deployment_mode = settings.deployment_mode.value
        self._url = settings.public_base_url + self.path
        self._executor = executor
        self._check = check
        self._default_secret_fingerprint = default_secret_fingerprint

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """List the account's targets, the newest first, of one `?status=` where that is given."""
        page = read_page(req, identifiers.TARGET, {"status": _STATUSES})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        account_id = req.context.principal.account_id
        now = utc_now()
        found = targets.list_page(account_id, self._default_secret_fingerprint, page.fetch_limit, now, page.before, status)
        send_page(resp, self._url, page, [target_record(target, now) for target in found])

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Store a target whose address passes the URL policy now."""
        url = req.context.payload.base_url
        self._executor.respond(
            req, resp, lambda: self._create(req), before_transaction=lambda: self._check.require_safe(url)
        )

    def _create(self, req: falcon.Request) -> ApiResponse:
        principal = req.context.principal
        target = targets.create(
            req.context.payload,
            principal.account_id,
            self._deployment_mode,
            self._default_secret_fingerprint,
            utc_now(),
            principal.key,
        )
        headers = {"Location": f"{self._url}/{target.id}"}
        return ApiResponse(201, target_record(target, utc_now()), headers, {"target_id": target.id})


class TargetResource:
    """Shows one target."""

    path = "/api/ticket-export-targets/{target_id}"
    family = RouteFamily.EXPORTS

    def __init__(self, default_secret_fingerprint: str | None) -> None:
        reading = Operation(Bearer(TokenKind.API, Ability.MANAGE_TARGETS))
        self.operations = {"GET": reading, "HEAD": reading}
        self._default_secret_fingerprint = default_secret_fingerprint

    def on_get(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Return the record."""
        target = targets.get(target_id, self._default_secret_fingerprint, req.context.principal.account_id)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(target_record(target, utc_now()), ensure_ascii=False).encode()

    on_head = on_get
