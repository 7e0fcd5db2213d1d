"""Documents `/api/findings`."""

from typing import Any, Final

from schemas.api.findings import FindingHistoryResponse, FindingListResponse
from service.api.findings import FindingResource, FindingsResource
from service.openapi.operations import (
    AT,
    EXPORT_ID,
    FINDING_ID,
    PAGING,
    OperationDescription,
    Operations,
    SuccessResponse,
    listed,
)

TAG: Final = "Findings"

_FINDING: Final[dict[str, Any]] = {
    "id": FINDING_ID,
    "project_id": 1,
    "rule": "img-alt",
    "title": "Image without alternative text",
    "severity": "high",
    "state": "open",
    "url": "https://shop.example/",
    "location": "main > img.hero",
    "first_seen_at": AT,
    "last_seen_at": AT,
    "fixed_at": None,
    "times_reopened": 0,
    "scan_runs": 1,
    "ticket_export_id": EXPORT_ID,
}

OPERATIONS: Final[Operations] = {
    ("GET", FindingsResource.path): OperationDescription(
        id="listFindings",
        tag=TAG,
        summary="List findings",
        description="The findings of the token's account that have one of the values of each filter, the newest first. A "
        "cursor belongs to its filters.",
        responses=(listed("findings", FindingListResponse, _FINDING),),
        parameters=("ProjectIds", "FindingStates", "Severities", "Rules", "Hosts", "SearchWords", *PAGING),
    ),
    ("GET", FindingResource.path): OperationDescription(
        id="readFinding",
        tag=TAG,
        summary="Read a finding with its history",
        description="What each scan run that looked at its page made of it.",
        responses=(
            SuccessResponse(
                200,
                "The finding.",
                FindingHistoryResponse,
                {**_FINDING, "history": [{"scan_run_id": 42, "at": AT, "outcome": "seen"}]},
            ),
        ),
    ),
}
