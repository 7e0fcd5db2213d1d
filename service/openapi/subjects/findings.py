"""Documents `/api/findings`."""

from typing import Final

from schemas.api.findings import FindingHistoryResponse, FindingResponse
from service.openapi.operations import FINDING_FILTERS, Operations, Record

_FINDING: Final = Record("finding", FindingResponse)

OPERATIONS: Final[Operations] = {
    "GET /api/findings": _FINDING.listed(
        "The findings of the token's account that match all filters, newest first. A filter with several "
        "values matches any of them. A cursor is valid only with the same filters.",
        *FINDING_FILTERS,
    ),
    "GET /api/findings/{finding_id}": Record("finding", FindingHistoryResponse).read(
        "Reads a finding, with the result of each scan run that visited its page.", summary="Read a finding with its history"
    ),
}
