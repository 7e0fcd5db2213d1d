"""`/api/ticket-export-recoveries`: what failed at a target since some moment, put back on its way by a worker.

Beginning and cancelling need an account that may use webhook targets, since what is put back is delivered; reading does not.
A target has one recovery at a time, and one that is turned off has none begun.
"""

import json
from typing import Final

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import TargetNotFound, ValidationFailed
from schemas.base.fields import NoMembers, problem
from schemas.base.principal import Ability, TokenKind
from schemas.exports.recoveries import RecoveryForm, past_from, recovery_record
from schemas.settings.definitions import RouteFamily
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers
from storage.exports import recoveries

RECOVERIES: Final = "/api/ticket-export-recoveries"


class RecoveriesResource:
    """Begins recoveries, and lists them."""

    path = RECOVERIES
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor, wake_ups: WakeUpQueue, public_base_url: str) -> None:
        reading = _reading()
        beginning = Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, for_webhooks=True), RecoveryForm())
        self.operations = {"GET": reading, "HEAD": reading, "POST": beginning}
        self._executor = executor
        self._wake_ups = wake_ups
        self._url = public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """List the recoveries of the account's targets, the newest first."""
        page = read_page(req, identifiers.RECOVERY)
        found = recoveries.list_account_page(req.context.principal.account_id, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [recovery_record(each) for each in found])

    on_head = on_get

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Begin one, and notify the workers once that is committed."""
        self._executor.respond(req, resp, lambda: self._begin(req))
        self._wake_ups.notify()

    def _begin(self, req: falcon.Request) -> ApiResponse:
        asked, principal, now = req.context.payload, req.context.principal, utc_now()
        try:
            recovery = recoveries.request(
                asked.target_id, principal.account_id, past_from(asked.since, now), now, principal.key
            )
        except TargetNotFound:
            raise ValidationFailed(problem("/target_id", "unknown_target")) from None
        headers = {"Location": f"{self._url}/{recovery.id}"}
        return ApiResponse(202, recovery_record(recovery), headers, {"target_id": recovery.target_id})


class RecoveryResource:
    """Shows how far one recovery is."""

    path = f"{RECOVERIES}/{{recovery_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self) -> None:
        reading = _reading()
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response, recovery_id: str) -> None:
        """Return the record."""
        recovery = recoveries.get(recovery_id, req.context.principal.account_id)
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps(recovery_record(recovery), ensure_ascii=False).encode()

    on_head = on_get


class RecoveryCancellationResource:
    """Ends a running recovery; what is put back stays so."""

    path = f"{RECOVERIES}/{{recovery_id}}/cancel"
    family = RouteFamily.EXPORTS

    def __init__(self, executor: IdempotentExecutor) -> None:
        cancelling = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, for_webhooks=True)
        self.operations = {"POST": Operation(cancelling, NoMembers(), Body.OPTIONAL)}
        self._executor = executor

    def on_post(self, req: falcon.Request, resp: falcon.Response, recovery_id: str) -> None:
        """Cancel it."""
        self._executor.respond(req, resp, lambda: self._cancel(req, recovery_id))

    def _cancel(self, req: falcon.Request, recovery_id: str) -> ApiResponse:
        principal = req.context.principal
        cancelled = recoveries.cancel(recovery_id, utc_now(), principal.key, principal.account_id)
        return ApiResponse(200, recovery_record(cancelled))


def _reading() -> Operation:
    return Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS))
