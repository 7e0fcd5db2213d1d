"""`POST /api/ticket-exports/bulk` and `/api/bulk-jobs`: one decision on many exports, at once or as a job."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import falcon

from schemas.api.bulk import BulkJobResponse
from schemas.api.response_fields import dump
from schemas.base.principal import Ability, TokenKind
from schemas.triage.bulk_decisions import BulkDecisionForm, BulkRequest, results_record
from service.api.exports import EXPORTS
from service.api.routes import ApiContext, Route, read
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.request_pipeline import Operation
from storage.db import identifiers
from storage.triage import bulk_jobs

BULK_JOBS: Final = "/api/bulk-jobs"


def routes(api: ApiContext) -> Iterator[Route]:
    """Yield the routes of decisions on many exports, and of bulk jobs."""
    bulk, show = api.operations.bulk, partial(dump, BulkJobResponse)
    reader = Bearer(TokenKind.API, Ability.READ_EXPORTS)
    decider = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, allows_project_roles=True)

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

    yield Route(f"{EXPORTS}/bulk", post=api.once_per_key(Operation(decider, BulkDecisionForm()), decide, makes_due=True))
    yield Route(
        BULK_JOBS,
        get=api.listed(reader, identifiers.BULK_JOB, lambda who, *part: bulk_jobs.list_page(who.account_id, *part), show),
    )
    yield Route(f"{BULK_JOBS}/{{job_id}}", get=read(reader, bulk.job, show))
    canceller = Bearer(TokenKind.API, Ability.APPROVE_EXPORTS)
    yield Route(f"{BULK_JOBS}/{{job_id}}/cancel", post=api.acted(canceller, bulk.cancel, show))
