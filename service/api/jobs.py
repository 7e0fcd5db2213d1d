"""Decisions on many exports, at once or as a job: `POST /api/ticket-exports/bulk`, `/api/bulk-jobs`, and
`/api/ticket-export-recoveries`, which redeliver the exports of a target that failed or were blocked since a given time.

Beginning or cancelling a recovery starts or stops deliveries, so the account must be allowed to use webhook targets. Reading
has no such requirement.
"""

from collections.abc import Iterator
from typing import Final

import falcon

from schemas.api.bulk import BulkJobResponse
from schemas.api.deliveries import RecoveryResponse
from schemas.base.errors import TargetNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenKind
from schemas.exports.recoveries import RecoveryForm
from schemas.triage.bulk_decisions import BulkDecisionForm, BulkRequest, results_record
from service.api.exports import DECIDER, EXPORTS
from service.api.routes import ApiContext, ApiRoute, of_account, read, shown_as
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from service.operations import recoveries as operations
from storage.db import identifiers
from storage.exports import recoveries
from storage.triage import bulk_jobs

BULK_JOBS: Final = "/api/bulk-jobs"
RECOVERIES: Final = "/api/ticket-export-recoveries"
#: For exports of all projects.
_DECIDER_ON_ALL: Final = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS)


def bulk_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of decisions on many exports, and of bulk jobs."""
    bulk, show = api.operations.bulk, shown_as(BulkJobResponse)
    reader = Bearer(TokenKind.API, Ability.READ_EXPORTS)

    def decide(req: falcon.Request) -> ApiResponse:
        """Decide on the listed exports at once, or begin a job if the request has a filter."""
        requested: BulkRequest = req.context.payload
        principal, decision = req.context.principal, requested.decision
        log_fields = {"target_id": decision.target_id}
        if requested.query is None:
            results = bulk.decide(decision, requested.exports, principal)
            return ApiResponse(200, results_record(results), log_fields=log_fields)
        job = bulk.begin_job(decision, requested.query, requested.expected_count, principal)
        return ApiResponse(202, show(job), {"Location": f"{api.public_base_url}{BULK_JOBS}/{job.id}"}, log_fields)

    yield ApiRoute(f"{EXPORTS}/bulk", post=api.once_per_key(Operation(DECIDER, BulkDecisionForm()), decide, makes_due=True))
    yield ApiRoute(BULK_JOBS, get=api.listed(reader, identifiers.BULK_JOB, of_account(bulk_jobs.list_page), show))
    yield ApiRoute(f"{BULK_JOBS}/{{job_id}}", get=read(reader, bulk.job, show))
    yield ApiRoute(f"{BULK_JOBS}/{{job_id}}/cancel", post=api.acted(_DECIDER_ON_ALL, bulk.cancel, show))


def recovery_routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of recoveries."""
    deliverer = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, requires_webhooks=True)
    show = shown_as(RecoveryResponse)

    def begin(req: falcon.Request) -> ApiResponse:
        requested = req.context.payload
        try:
            recovery = operations.begin(requested.target_id, requested.since, req.context.principal)
        except TargetNotFound:
            raise ValidationFailed(problem("/target_id", "unknown_target")) from None
        return api.created_response(req, show(recovery), 202, target_id=recovery.target_id)

    yield ApiRoute(
        RECOVERIES,
        get=api.listed(_DECIDER_ON_ALL, identifiers.RECOVERY, of_account(recoveries.list_account_page), show),
        post=api.once_per_key(Operation(deliverer, RecoveryForm()), begin, makes_due=True),
    )
    yield ApiRoute(f"{RECOVERIES}/{{recovery_id}}", get=read(_DECIDER_ON_ALL, of_account(recoveries.get), show))
    yield ApiRoute(f"{RECOVERIES}/{{recovery_id}}/cancel", post=api.acted(deliverer, operations.cancel, show))
