"""`/api/audit`: the audit log. `/api/compliance-requests`: requests about personal data, for administrators.

An account sees the entries about itself and those by its users. The records of compliance requests contain no personal data.
"""

from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.api.administration import AuditEntryResponse, dump_compliance_request
from schemas.base.principal import Ability
from schemas.base.timestamps import parse_rfc3339, to_ms
from service.api.accounts.authority import ACCOUNT, ManagedList, ManagedResource
from service.http.paging import NUMBERS, Matching, PageRequest, read_page, send_page, send_record
from service.operations.accounts import audit
from storage.accounts.audit_log_sql import AuditFilter
from storage.compliance import requests
from storage.db import identifiers

_WORD: Final = Matching(audit.is_word)
_MOMENT: Final = Matching(parse_rfc3339, "invalid_timestamp")


class AuditResource(ManagedList):
    """Lists the audit log."""

    path = "/api/audit"
    response = AuditEntryResponse
    filters = {  # noqa: RUF012 - never changed
        ACCOUNT: NUMBERS,
        **dict.fromkeys(("actor", "action", "object"), _WORD),
        **dict.fromkeys(("created_after", "created_before"), _MOMENT),
    }

    def list_page(self, page: PageRequest, account_id: int | None, before: int | None) -> list[dict[str, Any]]:
        """Return a page of entries."""
        named = page.filters
        filters = AuditFilter(
            account_id,
            named.get("object"),
            named.get("actor"),
            named.get("action"),
            _ms(named.get("created_after")),
            _ms(named.get("created_before")),
        )
        return audit.list_page(filters, page.fetch_limit, before)


class ComplianceRequestsResource(ManagedResource):
    """Lists compliance requests."""

    path = "/api/compliance-requests"
    reading = Ability.ADMIN

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the requests."""
        page, now = read_page(req, identifiers.COMPLIANCE), utc_now()
        found = requests.list_page(page.fetch_limit, page.before, None, None)
        send_page(resp, self._url, page, [dump_compliance_request(each, now) for each in found])


class ComplianceRequestResource(ManagedResource):
    """Reads one compliance request."""

    path = f"{ComplianceRequestsResource.path}/{{compliance_id}}"
    reading = Ability.ADMIN

    def on_get(self, req: falcon.Request, resp: falcon.Response, compliance_id: str) -> None:
        """Return the request."""
        send_record(resp, dump_compliance_request(requests.get(compliance_id), utc_now()))


def _ms(text: str | None) -> int | None:
    moment = None if text is None else parse_rfc3339(text)
    return None if moment is None else to_ms(moment)
