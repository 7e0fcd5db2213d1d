"""`POST /api/ticket-exports/bulk` and `/api/bulk-jobs`: one decision on many exports, at once or as a job."""

from typing import Final

import falcon

from schemas.api.bulk import BulkJobResponse
from schemas.api.response_fields import dump
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.triage.bulk_decisions import BulkDecisionForm, BulkRequest, results_record
from service.api.exports import EXPORTS
from service.api.resources import ApiResource, by_method, once_per_key, once_per_key_with
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers
from storage.triage import bulk_jobs

BULK_JOBS: Final = "/api/bulk-jobs"
_READING: Final = Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS))


class BulkDecisionsResource(ApiResource):
    """Approves, dismisses, restores or retries many exports."""

    path = f"{EXPORTS}/bulk"
    checks = by_method(
        POST=Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS, allows_project_roles=True), BulkDecisionForm())
    )

    @once_per_key_with(makes_due=True)
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Decide on the listed exports at once, or begin a job if the request has a filter."""
        requested: BulkRequest = req.context.payload
        principal, decision = req.context.principal, requested.decision
        log_fields = {"target_id": decision.target_id}
        if requested.query is None:
            results = self._api.operations.bulk.decide(decision, requested.exports, principal)
            return ApiResponse(200, results_record(results), log_fields=log_fields)
        job = self._api.operations.bulk.begin_job(decision, requested.query, requested.expected_count, principal)
        return ApiResponse(
            202, dump(BulkJobResponse, job), {"Location": f"{self._api.public_base_url}{BULK_JOBS}/{job.id}"}, log_fields
        )


class BulkJobsResource(ApiResource):
    """Lists bulk jobs."""

    path = BULK_JOBS
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's jobs, newest first."""
        page = read_page(req, identifiers.BULK_JOB)
        found = bulk_jobs.list_page(req.context.principal.account_id, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump(BulkJobResponse, each) for each in found])


class BulkJobResource(ApiResource):
    """Reads one bulk job."""

    path = f"{BULK_JOBS}/{{job_id}}"
    checks = by_method(GET=_READING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, job_id: str) -> None:
        """Return the record."""
        job = self._api.operations.bulk.job(job_id, req.context.principal)
        send_record(resp, dump(BulkJobResponse, job))


class BulkJobCancellationResource(ApiResource):
    """Ends a running bulk job; exports that it has already decided on stay decided."""

    path = f"{BULK_JOBS}/{{job_id}}/cancel"
    checks = by_method(POST=Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), NoMembers(), Body.OPTIONAL))

    @once_per_key
    def on_post(self, req: falcon.Request, job_id: str) -> ApiResponse:
        """Cancel the job, and return it."""
        return ApiResponse(200, dump(BulkJobResponse, self._api.operations.bulk.cancel(job_id, req.context.principal)))
