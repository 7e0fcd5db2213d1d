"""`/api/ticket-export-recoveries`: redeliver the exports of a target that failed or were blocked since a given time.

Beginning or cancelling a recovery starts or stops deliveries, so the account must be allowed to use webhook targets. Reading
has no such requirement.
"""

from typing import Final

import falcon

from schemas.api.deliveries import RecoveryResponse
from schemas.api.response_fields import dump
from schemas.base.errors import TargetNotFound, ValidationFailed
from schemas.base.fields import NoMembers, problem
from schemas.base.principal import Ability, TokenKind
from schemas.exports.recoveries import RecoveryForm
from service.api.resources import ApiResource, by_method, once_per_key, once_per_key_with
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Body, Operation
from service.operations import recoveries as operations
from storage.db import identifiers
from storage.exports import recoveries

_READING: Final = Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS))
_DELIVERING: Final = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, requires_webhooks=True)


class RecoveriesResource(ApiResource):
    """Begins recoveries, and lists them."""

    path = "/api/ticket-export-recoveries"
    checks = by_method(GET=_READING, POST=Operation(_DELIVERING, RecoveryForm()))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the recoveries of the account's targets, newest first."""
        page = read_page(req, identifiers.RECOVERY)
        found = recoveries.list_account_page(req.context.principal.account_id, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump(RecoveryResponse, each) for each in found])

    @once_per_key_with(makes_due=True)
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Begin a recovery."""
        requested = req.context.payload
        try:
            recovery = operations.begin(requested.target_id, requested.since, req.context.principal)
        except TargetNotFound:
            raise ValidationFailed(problem("/target_id", "unknown_target")) from None
        headers = {"Location": f"{self._url}/{recovery.id}"}
        return ApiResponse(202, dump(RecoveryResponse, recovery), headers, {"target_id": recovery.target_id})


class RecoveryResource(ApiResource):
    """Reads one recovery."""

    path = f"{RecoveriesResource.path}/{{recovery_id}}"
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, recovery_id: str) -> None:
        """Return the record."""
        send_record(resp, dump(RecoveryResponse, recoveries.get(recovery_id, req.context.principal.account_id)))


class RecoveryCancellationResource(ApiResource):
    """Ends a running recovery; exports that it has already made due stay due."""

    path = f"{RecoveryResource.path}/cancel"
    checks = by_method(POST=Operation(_DELIVERING, NoMembers(), Body.OPTIONAL))

    @once_per_key
    def on_post(self, req: falcon.Request, recovery_id: str) -> ApiResponse:
        """Cancel the recovery, and return it."""
        cancelled = operations.cancel(recovery_id, req.context.principal)
        return ApiResponse(200, dump(RecoveryResponse, cancelled))
