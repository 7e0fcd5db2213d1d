"""Documents decisions on many exports."""

from typing import Any, Final

from schemas.api.bulk import BulkJobListResponse, BulkJobResponse, BulkResultsResponse
from service.api.bulk import BulkDecisionsResource, BulkJobCancellationResource, BulkJobResource, BulkJobsResource
from service.openapi.operations import (
    AT,
    BULK_JOB_ID,
    EXPORT_ID,
    PAGING,
    TARGET_ID,
    OperationDescription,
    Operations,
    SuccessResponse,
    listed,
)

TAG: Final = "Decisions on many exports"

_OTHER_ID: Final = "exp_01KJM8AV0G3T0M3Q9V6W2Y5Z7B"
_RESULTS: Final[dict[str, Any]] = {
    "results": [
        {"id": EXPORT_ID, "status": "approved"},
        {"id": _OTHER_ID, "error": {"code": "NOT_FOUND", "message": "There is no such ticket export."}},
    ],
    "changed": 1,
    "skipped": 0,
}
_JOB: Final[dict[str, Any]] = {
    "id": BULK_JOB_ID,
    "action": "approve",
    "status": "running",
    "total": 392,
    "done": 0,
    "changed": 0,
    "skipped": 0,
    "errors": {},
    "created_at": AT,
    "finished_at": None,
}
_STARTED: Final = {**_JOB, "done": 200, "changed": 197, "skipped": 2, "errors": {"changed": 1}}

OPERATIONS: Final[Operations] = {
    ("POST", BulkDecisionsResource.path): OperationDescription(
        id="decideTicketExports",
        tag=TAG,
        summary="Decide on many exports",
        description="Approves, dismisses, restores or retries up to 200 exports. Each has a result of its own: an "
        "export that cannot be changed is left as it is and leaves the others alone. One that is in the wanted state "
        "already is skipped: its `status` is the result, and nothing happens twice. With `approve`, the target is checked "
        "once, as for a single approval; if it accepts none, the response is a 422 on `/target_id` and nothing is changed. "
        "With `filter`, an object with the filters of the list, and `expected_count` in place of `ids`, a job decides on "
        "what matches now, up to 10,000 exports; another count is a 409 with `details.count`. An account has up to 20 "
        "running jobs.",
        responses=(
            SuccessResponse(200, "A result for each export.", BulkResultsResponse, _RESULTS),
            SuccessResponse(
                202,
                "With `filter`: the job has begun.",
                BulkJobResponse,
                _JOB,
                ("Location",),
                ("readBulkJob", "cancelBulkJob"),
            ),
        ),
        error_codes=("CONFLICT",),
        examples={
            "Approve": {"action": "approve", "target_id": TARGET_ID, "ids": [{"id": EXPORT_ID}, {"id": _OTHER_ID}]},
            "Dismiss": {"action": "dismiss", "reason": "false_positive", "ids": [{"id": EXPORT_ID}]},
            "Restore": {"action": "restore", "ids": [{"id": EXPORT_ID}]},
            "Retry": {"action": "retry", "ids": [{"id": EXPORT_ID}]},
            "All of a filter": {
                "action": "approve",
                "target_id": TARGET_ID,
                "filter": {"status": "prepared", "severity": ["high", "critical"]},
                "expected_count": 392,
            },
            "Old ones of a filter": {
                "action": "restore",
                "filter": {"status": "dismissed", "created_before": "2020-01-01T00:00:00Z"},
                "expected_count": 0,
            },
        },
    ),
    ("GET", BulkJobsResource.path): OperationDescription(
        id="listBulkJobs",
        tag=TAG,
        summary="List bulk jobs",
        description="Those of the account, the newest first.",
        responses=(listed("bulk jobs", BulkJobListResponse, _JOB),),
        parameters=PAGING,
    ),
    ("GET", BulkJobResource.path): OperationDescription(
        id="readBulkJob",
        tag=TAG,
        summary="Read a bulk job",
        description="How many exports are processed, and with which results.",
        responses=(SuccessResponse(200, "The job as it is now.", BulkJobResponse, _STARTED),),
    ),
    ("POST", BulkJobCancellationResource.path): OperationDescription(
        id="cancelBulkJob",
        tag=TAG,
        summary="Cancel a bulk job",
        description="What was decided stays so. One that has ended is returned unchanged.",
        responses=(
            SuccessResponse(200, "The job.", BulkJobResponse, {**_STARTED, "status": "cancelled", "finished_at": AT}),
        ),
    ),
}
