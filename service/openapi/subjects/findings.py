"""Documents `/api/findings`."""

from typing import Final

from schemas.api.findings import FindingHistoryResponse, FindingResponse
from service.openapi.operations import AT, EXPORT_ID, FINDING_ID, Operations, Record

_FINDING: Final = Record(
    "finding",
    FindingResponse,
    {
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
    },
)
_HISTORY: Final = [{"scan_run_id": 42, "at": AT, "outcome": "seen"}]

OPERATIONS: Final[Operations] = {
    "GET /api/findings": _FINDING.listed(
        "The findings of the token's account that have one of the values of each filter, the newest first. A "
        "cursor belongs to its filters.",
        *("ProjectIds", "FindingStates", "Severities", "Rules", "Hosts", "SearchWords"),
    ),
    "GET /api/findings/{finding_id}": Record("finding", FindingHistoryResponse, _FINDING.example).read(
        "What each scan run that looked at its page made of it.", summary="Read a finding with its history", history=_HISTORY
    ),
}
