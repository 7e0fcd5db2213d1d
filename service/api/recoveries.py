"""`/api/ticket-export-recoveries`: redeliver the exports of a target that failed or were blocked since a given time.

Beginning or cancelling a recovery starts or stops deliveries, so the account must be allowed to use webhook targets. Reading
has no such requirement.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import falcon

from schemas.api.deliveries import RecoveryResponse
from schemas.api.response_fields import dump
from schemas.base.errors import TargetNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenKind
from schemas.exports.recoveries import RecoveryForm
from service.api.routes import ApiContext, Route, read
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from service.operations import recoveries as operations
from storage.db import identifiers
from storage.exports import recoveries

RECOVERIES: Final = "/api/ticket-export-recoveries"


def routes(api: ApiContext) -> Iterator[Route]:
    """Yield the routes of recoveries."""
    reader = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS)
    deliverer = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, requires_webhooks=True)
    show = partial(dump, RecoveryResponse)

    def begin(req: falcon.Request) -> ApiResponse:
        requested = req.context.payload
        try:
            recovery = operations.begin(requested.target_id, requested.since, req.context.principal)
        except TargetNotFound:
            raise ValidationFailed(problem("/target_id", "unknown_target")) from None
        return api.created_response(req, show(recovery), 202, target_id=recovery.target_id)

    yield Route(
        RECOVERIES,
        get=api.listed(
            reader, identifiers.RECOVERY, lambda who, *part: recoveries.list_account_page(who.account_id, *part), show
        ),
        post=api.once_per_key(Operation(deliverer, RecoveryForm()), begin, makes_due=True),
    )
    yield Route(
        f"{RECOVERIES}/{{recovery_id}}",
        get=read(reader, lambda recovery_id, who: recoveries.get(recovery_id, who.account_id), show),
    )
    yield Route(f"{RECOVERIES}/{{recovery_id}}/cancel", post=api.acted(deliverer, operations.cancel, show))
