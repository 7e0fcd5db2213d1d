"""Documents `/api/scan-runs`."""

from typing import Any, Final

from schemas.api.administration import ScanRunListResponse, ScanRunResponse
from service.api.accounts.scan_runs import ScanRunResource, ScanRunsResource
from service.openapi.operations import AT, PAGING, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Scan runs"

_SCAN_RUN: Final[dict[str, Any]] = {"id": 42, "project_id": 1, "status": "running", "created_at": AT, "updated_at": AT}

OPERATIONS: Final[Operations] = {
    ("POST", ScanRunsResource.path): OperationDescription(
        id="createScanRun",
        tag=TAG,
        summary="Register a scan run",
        description="Results with its id belong to the project. One scanner numbers the runs of all accounts, so only "
        "tokens of the operator's account choose an `id`; without one, it is the next free number.",
        responses=(SuccessResponse(201, "The scan run.", ScanRunResponse, _SCAN_RUN, ("Location",), ("readScanRun",)),),
        error_codes=("CONFLICT",),
        examples={"The next number": {"project_id": 1}, "The scanner's number": {"project_id": 1, "id": 42}},
    ),
    ("GET", ScanRunsResource.path): OperationDescription(
        id="listScanRuns",
        tag=TAG,
        summary="List scan runs",
        description="Those with the greatest id first.",
        responses=(listed("scan runs", ScanRunListResponse, _SCAN_RUN, description="the greatest id first"),),
        parameters=("OfProject", "OfAccount", *PAGING),
    ),
    ("GET", ScanRunResource.path): OperationDescription(
        id="readScanRun",
        tag=TAG,
        summary="Read a scan run",
        description="`status` is that of its last result.",
        responses=(SuccessResponse(200, "The scan run.", ScanRunResponse, _SCAN_RUN),),
    ),
}
