"""Documents decisions on many exports, and recoveries."""

from typing import Any, Final

from schemas.api.bulk import BulkJobResponse, BulkResultsResponse
from schemas.api.deliveries import RecoveryResponse
from service.openapi.operations import EXPORT_ID, TARGET_ID, Operations, Record, SuccessResponse, operation

_OTHER_ID: Final = "exp_01KJM8AV0G3T0M3Q9V6W2Y5Z7B"
_RESULTS: Final[dict[str, Any]] = {
    "results": [
        {"id": EXPORT_ID, "status": "approved"},
        {"id": _OTHER_ID, "error": {"code": "NOT_FOUND", "message": "There is no such ticket export."}},
    ],
    "changed": 1,
    "skipped": 0,
}
_JOB: Final = Record("job", BulkJobResponse, "BulkJob", "bulk job")
_RECOVERY: Final = Record("recovery", RecoveryResponse, "TicketExportRecovery")

OPERATIONS: Final[Operations] = {
    "POST /api/ticket-exports/bulk": operation(
        "decideTicketExports",
        "Decide on many exports",
        "Approves, dismisses, restores or retries up to 200 exports. Each export has its own result: one that cannot be "
        "changed stays as it is and does not affect the others. An export that already has the requested state is skipped: "
        "its `status` is the result. With `approve`, the target is checked once, as for a single approval; if it does not "
        "accept approvals, the response is 422 on `/target_id` and nothing is changed. With `filter` (an object with the "
        "filters of the list) and `expected_count` in place of `ids`, a job decides on all exports that match now, up to "
        "10,000; if their number differs from `expected_count`, the response is 409 with `details.count`. An account can "
        "have up to 20 running jobs.",
        SuccessResponse(200, "A result for each export.", BulkResultsResponse, _RESULTS),
        _JOB.created("With `filter`: the new job.", status=202),
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
    "GET /api/bulk-jobs": _JOB.listed("The jobs of the account, newest first.", many="bulk jobs"),
    "GET /api/bulk-jobs/{job_id}": _JOB.read(
        "Reads the progress of a job: how many exports are processed, and with which results.", "The job as it is now."
    ),
    "POST /api/bulk-jobs/{job_id}/cancel": _JOB.operation(
        "cancel",
        "Stops a job; decisions already made stay in effect. A job that has ended is returned unchanged.",
        _JOB.response(),
    ),
    "POST /api/ticket-export-recoveries": operation(
        "beginTicketExportRecovery",
        "Redeliver failed exports of a target",
        "Retries, with a new schedule, every export of the target that failed or was blocked at `since` or "
        "later. A worker does this in batches; read the recovery for its progress. If the target is "
        "neither active nor paused, or has a running recovery already, the response is 409.",
        _RECOVERY.created("The new recovery.", status=202),
        error_codes=("CONFLICT",),
        examples={
            "The last day": {"target_id": TARGET_ID, "since": "24h"},
            "Since a time": {"target_id": TARGET_ID, "since": "2026-02-28T12:00:00Z"},
        },
    ),
    "GET /api/ticket-export-recoveries": _RECOVERY.listed(
        "The recoveries of the account's targets, newest first.", many="recoveries"
    ),
    "GET /api/ticket-export-recoveries/{recovery_id}": _RECOVERY.read(
        "Reads the progress of a recovery: how many exports were found, and how many of them are due again.",
        "The recovery as it is now.",
    ),
    "POST /api/ticket-export-recoveries/{recovery_id}/cancel": _RECOVERY.operation(
        "cancel",
        "Stops a recovery; exports that are due again stay due. If the recovery has ended, the response is 409.",
        _RECOVERY.response(),
        error_codes=("CONFLICT",),
    ),
}
