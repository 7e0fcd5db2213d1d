"""Documents `/api/findings`."""

from typing import Final

from schemas.api.findings import FindingHistoryResponse, FindingResponse
from service.openapi.operations import FINDING_FILTERS, Operations, Record

_FINDING: Final = Record("finding", FindingResponse)

OPERATIONS: Final[Operations] = {
    "GET /api/findings": _FINDING.listed(
        "The findings of the token's account that have one of the values of each filter, the newest first. A "
        "cursor belongs to its filters.",
        *FINDING_FILTERS,
    ),
    "GET /api/findings/{finding_id}": Record("finding", FindingHistoryResponse).read(
        "Includes the result of each scan run that visited its page.", summary="Read a finding with its history"
    ),
}
