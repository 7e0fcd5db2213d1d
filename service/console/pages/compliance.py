"""`/console/compliance`: the storefront's compliance requests with deadline and result; people appear only as pseudonyms."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.compliance.requests import ComplianceStatus, Topic
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from storage.compliance import recipients
from storage.compliance import requests as compliance_requests
from storage.db import identifiers

_FILTERS: Final = {"status": tuple(ComplianceStatus), "topic": tuple(Topic)}
#: Maximum number of recipients that the page lists; `riskrelay compliance show` lists more.
MAX_RECIPIENTS: Final = 20


class CompliancePage(ConsolePage):
    """Lists compliance requests, newest first."""

    path = f"{CONSOLE}/compliance"
    template = "compliance.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the requests."""
        page = read_page(req, identifiers.COMPLIANCE, _FILTERS)
        status, topic = page.filters.get("status"), page.filters.get("topic")
        found = compliance_requests.list_page(
            page.fetch_limit, page.before, ComplianceStatus(status) if status else None, Topic(topic) if topic else None
        )
        received = recipients.of_requests([request.id for request in found], MAX_RECIPIENTS)
        return {**list_content(page, found), "choices": _FILTERS, "at": utc_now(), "recipients": received}
