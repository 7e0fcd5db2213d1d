"""Documents decisions on many exports."""

from typing import Any, Final

from schemas.api.bulk_responses import BulkResultsResponse
from service.api.bulk import BulkDecisionsResource
from service.openapi.operations import EXPORT_ID, TARGET_ID, OperationDescription, Operations, SuccessResponse

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

OPERATIONS: Final[Operations] = {
    ("POST", BulkDecisionsResource.path): OperationDescription(
        id="decideTicketExports",
        tag=TAG,
        summary="Decide on many exports",
        description="Approves, dismisses, restores or retries up to 200 exports. Each has a result of its own: an "
        "export that cannot be changed is left as it is and leaves the others alone. One that is in the wanted state "
        "already is skipped: its `status` is the result, and nothing happens twice. With `approve`, the target is checked "
        "once, as for a single approval; if it accepts none, the response is a 422 on `/target_id` and nothing is changed.",
        responses=(SuccessResponse(200, "A result for each export.", BulkResultsResponse, _RESULTS),),
        examples={
            "Approve": {"action": "approve", "target_id": TARGET_ID, "ids": [{"id": EXPORT_ID}, {"id": _OTHER_ID}]},
            "Dismiss": {"action": "dismiss", "reason": "false_positive", "ids": [{"id": EXPORT_ID}]},
            "Restore": {"action": "restore", "ids": [{"id": EXPORT_ID}]},
            "Retry": {"action": "retry", "ids": [{"id": EXPORT_ID}]},
        },
    ),
}
