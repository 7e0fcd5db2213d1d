"""`/api/ticket-export-recoveries`: redeliver what failed or was blocked at a target since a moment.

Beginning and cancelling deliver something or stop it, so they need an account that may use webhook targets; reading does
not.
"""

from typing import Final

import falcon

from schemas.api.deliveries import RecoveryResponse
from schemas.api.response_fields import dump
from schemas.base.errors import TargetNotFound, ValidationFailed
from schemas.base.fields import NoMembers, problem
from schemas.base.principal import Ability, TokenKind
from schemas.exports.recoveries import RecoveryForm
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Body, Operation
from service.operations.recoveries import RecoveryOperations
from storage.db import identifiers
from storage.exports import recoveries

RECOVERIES: Final = "/api/ticket-export-recoveries"


class RecoveriesResource:
    """Begins recoveries, and lists them."""

    path = RECOVERIES
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, operations: RecoveryOperations, public_base_url: str) -> None:
        reading = _reading()
        beginning = Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, for_webhooks=True), RecoveryForm())
        self.operations = {"GET": reading, "HEAD": reading, "POST": beginning}
        self._executor = executor
        self._recoveries = operations
        self._url = public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the recoveries of the account's targets, newest first."""
        page = read_page(req, identifiers.RECOVERY)
        found = recoveries.list_account_page(req.context.principal.account_id, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump(RecoveryResponse, each) for each in found])

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin a recovery, and wake the workers after the commit."""
        self._executor.respond(req, resp, lambda: self._begin(req))
        self._recoveries.wake_workers()

    def _begin(self, req: falcon.Request) -> ApiResponse:
        requested = req.context.payload
        try:
            recovery = self._recoveries.begin(requested.target_id, requested.since, req.context.principal)
        except TargetNotFound:
            raise ValidationFailed(problem("/target_id", "unknown_target")) from None
        headers = {"Location": f"{self._url}/{recovery.id}"}
        return ApiResponse(202, dump(RecoveryResponse, recovery), headers, {"target_id": recovery.target_id})


class RecoveryResource:
    """Reads one recovery."""

    path = f"{RECOVERIES}/{{recovery_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self) -> None:
        reading = _reading()
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response, recovery_id: str) -> None:
        """Return the record."""
        recovery = recoveries.get(recovery_id, req.context.principal.account_id)
        send_record(resp, dump(RecoveryResponse, recovery))

    on_head = on_get


class RecoveryCancellationResource:
    """Ends a running recovery; exports that are due again stay due."""

    path = f"{RECOVERIES}/{{recovery_id}}/cancel"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, operations: RecoveryOperations) -> None:
        cancelling = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, for_webhooks=True)
        self.operations = {"POST": Operation(cancelling, NoMembers(), Body.OPTIONAL)}
        self._executor = executor
        self._recoveries = operations

    def on_post(self, req: falcon.Request, resp: falcon.Response, recovery_id: str) -> None:
        """Cancel the recovery, and return it."""
        self._executor.respond(req, resp, lambda: self._cancel(req, recovery_id))

    def _cancel(self, req: falcon.Request, recovery_id: str) -> ApiResponse:
        return ApiResponse(200, dump(RecoveryResponse, self._recoveries.cancel(recovery_id, req.context.principal)))


def _reading() -> Operation:
    return Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS))
