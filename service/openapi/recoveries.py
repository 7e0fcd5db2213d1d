"""Documents `/api/ticket-export-recoveries`."""

from typing import Any, Final

from schemas.api.deliveries import RecoveryListResponse, RecoveryResponse
from service.api.recoveries import RecoveriesResource, RecoveryCancellationResource, RecoveryResource
from service.openapi.operations import (
    AT,
    PAGING,
    RECOVERY_ID,
    TARGET_ID,
    OperationDescription,
    Operations,
    SuccessResponse,
    listed,
)

TAG: Final = "Recoveries"

RECOVERY: Final[dict[str, Any]] = {
    "id": RECOVERY_ID,
    "target_id": TARGET_ID,
    "since": "2026-02-28T12:00:00.000Z",
    "status": "running",
    "total": 42,
    "done": 0,
    "created_at": AT,
    "finished_at": None,
}

OPERATIONS: Final[Operations] = {
    ("POST", RecoveriesResource.path): OperationDescription(
        id="beginTicketExportRecovery",
        tag=TAG,
        summary="Redeliver what failed at a target",
        description="Every export of the target that failed or was blocked at `since` or later begins its whole schedule "
        "anew. A worker does it in batches; read the recovery to see how far it is. A target that is neither active nor "
        "paused is a 409, and so is one that has a recovery already.",
        responses=(
            SuccessResponse(
                202,
                "The recovery has begun.",
                RecoveryResponse,
                RECOVERY,
                ("Location",),
                ("readTicketExportRecovery", "cancelTicketExportRecovery"),
            ),
        ),
        error_codes=("CONFLICT",),
        examples={
            "The last day": {"target_id": TARGET_ID, "since": "24h"},
            "Since a moment": {"target_id": TARGET_ID, "since": "2026-02-28T12:00:00Z"},
        },
    ),
    ("GET", RecoveriesResource.path): OperationDescription(
        id="listTicketExportRecoveries",
        tag=TAG,
        summary="List recoveries",
        description="Those of the account's targets, the newest first.",
        responses=(listed("recoveries", RecoveryListResponse, RECOVERY),),
        parameters=PAGING,
    ),
    ("GET", RecoveryResource.path): OperationDescription(
        id="readTicketExportRecovery",
        tag=TAG,
        summary="Read a recovery",
        description="How many exports were found, and how many are on their way again.",
        responses=(SuccessResponse(200, "The recovery as it is now.", RecoveryResponse, {**RECOVERY, "done": 17}),),
    ),
    ("POST", RecoveryCancellationResource.path): OperationDescription(
        id="cancelTicketExportRecovery",
        tag=TAG,
        summary="Cancel a recovery",
        description="What is put back stays so. One that has ended is a 409.",
        responses=(
            SuccessResponse(
                200, "The recovery.", RecoveryResponse, {**RECOVERY, "status": "cancelled", "done": 17, "finished_at": AT}
            ),
        ),
        error_codes=("CONFLICT",),
    ),
}
