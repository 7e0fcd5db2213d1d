"""`/api/audit`: the entries of the audit log about the account's records and by its users."""

from typing import Any

from schemas.api.administration import AuditEntryResponse
from schemas.base.timestamps import moment_from, to_ms
from service.api.accounts.authority import ACCOUNT, ManagedList
from service.http.paging import NUMBERS, Matching, PageRequest
from service.operations import audit
from storage.accounts.audit_log_sql import AuditFilter

#: Longer than any actor, action or id.
_WORD = Matching(lambda text: 0 < len(text) <= 200 and text.isprintable())
_MOMENT = Matching(moment_from)


class AuditResource(ManagedList):
    """Lists the audit log."""

    path = "/api/audit"
    response = AuditEntryResponse
    filters = {  # noqa: RUF012 - never changed
        ACCOUNT: NUMBERS,
        **dict.fromkeys(("actor", "action", "object"), _WORD),
        **dict.fromkeys(("created_after", "created_before"), _MOMENT),
    }

    def found(self, page: PageRequest, account_id: int | None, before: int | None) -> list[dict[str, Any]]:
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


def _ms(text: str | None) -> int | None:
    moment = None if text is None else moment_from(text)
    return None if moment is None else to_ms(moment)
