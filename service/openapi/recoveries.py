"""`/api/ticket-export-recoveries` in words."""

from typing import Any, Final

from schemas.api.responses import Recovery, RecoveryList
from service.api.recoveries import RecoveryCancellation, TicketExportRecoveries, TicketExportRecovery
from service.openapi.operations import AT, PAGING, RECOVERY_ID, TARGET_ID, Described, Good, Operations, listed

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
    ("POST", TicketExportRecoveries.path): Described(
        id="beginTicketExportRecovery",
        tag=TAG,
        summary="Put what failed at a target back on its way",
        description="Every export of the target that failed or was blocked at `since` or later begins its whole schedule "
        "anew. A worker does it in batches; read the recovery to see how far it is. A target that is neither active nor "
        "paused is a 409, and so is one that has a recovery already.",
        answers=(
            Good(
                202,
                "The recovery has begun.",
                Recovery,
                RECOVERY,
                ("Location",),
                ("readTicketExportRecovery", "cancelTicketExportRecovery"),
            ),
        ),
        refusals=("CONFLICT",),
        examples={
            "The last day": {"target_id": TARGET_ID, "since": "24h"},
            "Since a moment": {"target_id": TARGET_ID, "since": "2026-02-28T12:00:00Z"},
        },
    ),
    ("GET", TicketExportRecoveries.path): Described(
        id="listTicketExportRecoveries",
        tag=TAG,
        summary="List recoveries",
        description="Those of the account's targets, the newest first.",
        answers=(listed("recoveries", RecoveryList, RECOVERY),),
        parameters=PAGING,
    ),
    ("GET", TicketExportRecovery.path): Described(
        id="readTicketExportRecovery",
        tag=TAG,
        summary="Read a recovery",
        description="How many exports were found, and how many are on their way again.",
        answers=(Good(200, "The recovery as it is now.", Recovery, {**RECOVERY, "done": 17}),),
    ),
    ("POST", RecoveryCancellation.path): Described(
        id="cancelTicketExportRecovery",
        tag=TAG,
        summary="Cancel a recovery",
        description="What is put back stays so. One that has ended is a 409.",
        answers=(Good(200, "The recovery.", Recovery, {**RECOVERY, "status": "cancelled", "done": 17, "finished_at": AT}),),
        refusals=("CONFLICT",),
    ),
}
