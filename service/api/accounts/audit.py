"""`/api/audit`: the audit log. `/api/compliance-requests`: requests about personal data, for administrators.

An account sees the entries about itself and those by its users. The records of compliance requests contain no personal data.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from runtime.clock import utc_now
from schemas.api.administration import AuditEntryResponse, dump_compliance_request
from schemas.base.principal import Ability, Manager
from schemas.base.timestamps import parse_rfc3339, to_ms
from schemas.compliance.requests import ComplianceRequest
from service.api.accounts.authority import AccountBearer, numbered
from service.api.routes import ApiContext, ApiRoute, read, shown_as
from service.http.paging import Matching
from service.operations.accounts import audit
from storage.accounts.audit_log_sql import AuditFilter
from storage.compliance import requests
from storage.db import identifiers

REQUESTS: Final = "/api/compliance-requests"
_FILTERS: Final[Mapping[str, Container[str]]] = {
    **dict.fromkeys(("actor", "action", "object"), Matching(audit.is_word)),
    **dict.fromkeys(("created_after", "created_before"), Matching(parse_rfc3339, "invalid_timestamp")),
}


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of the audit log and of compliance requests."""
    manager, administrator = AccountBearer(api.operator_account), AccountBearer(api.operator_account, Ability.ADMIN)
    yield ApiRoute("/api/audit", get=numbered(api, manager, _list_entries, shown_as(AuditEntryResponse), _FILTERS))

    def show(request: ComplianceRequest) -> dict[str, Any]:
        return dump_compliance_request(request, utc_now())

    def list_requests(_: Manager, limit: int, before: str | None) -> list[ComplianceRequest]:
        return requests.list_page(limit, before, None, None)

    yield ApiRoute(REQUESTS, get=api.listed(administrator, identifiers.COMPLIANCE, list_requests, show))
    one = read(administrator, lambda compliance_id, _: requests.get(compliance_id), show)
    yield ApiRoute(f"{REQUESTS}/{{compliance_id}}", get=one)


def _list_entries(
    account_id: int | None, actor: str, action: str, subject_id: str, after: str, until: str, *part: Any
) -> list[dict[str, Any]]:
    return audit.list_page(AuditFilter(account_id, subject_id, actor, action, _ms(after), _ms(until)), *part)


def _ms(text: str | None) -> int | None:
    moment = None if text is None else parse_rfc3339(text)
    return None if moment is None else to_ms(moment)
