"""Documents `/api/audit` and `/api/compliance-requests`."""

from typing import Any, Final

from schemas.api.administration import (
    AuditEntryListResponse,
    ComplianceRequestListResponse,
    ComplianceRequestResponse,
)
from service.api.accounts.audit import AuditResource
from service.api.accounts.compliance_requests import ComplianceRequestResource, ComplianceRequestsResource
from service.openapi.operations import (
    AT,
    COMPLIANCE_ID,
    EXPORT_ID,
    PAGING,
    OperationDescription,
    Operations,
    SuccessResponse,
    listed,
)

TAG: Final = "Audit"

_ENTRY: Final[dict[str, Any]] = {
    "id": 4711,
    "at": AT,
    "actor": {"kind": "user", "id": "7"},
    "action": "approve",
    "object": {"type": "exp", "id": EXPORT_ID},
    "details": {"status_before": "prepared", "status_after": "approved"},
}
_REQUEST: Final[dict[str, Any]] = {
    "id": COMPLIANCE_ID,
    "topic": "shop/redact",
    "shop_domain": "snow.shops.example",
    "subject": None,
    "status": "done",
    "result": "redacted",
    "counts": {"findings": 12},
    "has_report": False,
    "attempts": 1,
    "last_error": None,
    "received_at": AT,
    "due_at": AT,
    "overdue": False,
    "next_run_at": None,
    "finished_at": AT,
}

OPERATIONS: Final[Operations] = {
    ("GET", AuditResource.path): OperationDescription(
        id="listAuditEntries",
        tag=TAG,
        summary="List the audit log",
        description="Entries about the account's records, and what its users did to no account's records, the newest first. "
        "With the ability `admin`: those of all accounts and of none. Entries from before this "
        "route was added belong to none.",
        responses=(listed("entries", AuditEntryListResponse, _ENTRY),),
        parameters=("AuditActor", "AuditAction", "AuditObject", "AuditAfter", "AuditBefore", "OfAccount", *PAGING),
    ),
    ("GET", ComplianceRequestsResource.path): OperationDescription(
        id="listComplianceRequests",
        tag=TAG,
        summary="List compliance requests",
        description="Requests of the storefront platform about personal data, without any, the newest first.",
        responses=(listed("requests", ComplianceRequestListResponse, _REQUEST),),
        parameters=PAGING,
    ),
    ("GET", ComplianceRequestResource.path): OperationDescription(
        id="readComplianceRequest",
        tag=TAG,
        summary="Read a compliance request",
        description="Its deadline and result; a person appears as a pseudonym.",
        responses=(SuccessResponse(200, "The request.", ComplianceRequestResponse, _REQUEST),),
    ),
}
