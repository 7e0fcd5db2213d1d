"""`/console/compliance`: what storefronts asked for, by when it is due and what came of it; the person is not shown."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.compliance.requests import ComplianceStatus, Topic
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE, Page
from service.console.sessions import Visitor
from service.http.paging import next_page, read_page
from storage.compliance import requests as compliance_requests
from storage.db import identifiers

_FILTERS: Final = {"status": tuple(ComplianceStatus), "topic": tuple(Topic)}


class Compliance(Page):
    """Lists compliance requests, the newest first."""

    path = f"{CONSOLE}/compliance"
    template = "compliance.html"
    family = RouteFamily.CONSOLE
    is_operators = True

    def content(self, req: falcon.Request, visitor: Visitor, **_ids: str) -> Mapping[str, Any]:
        """Return a page of the ledger of requests."""
        page = read_page(req, identifiers.COMPLIANCE, _FILTERS)
        status, topic = page.filters.get("status"), page.filters.get("topic")
        found = compliance_requests.newest(
            page.fetch_limit, page.before, ComplianceStatus(status) if status else None, Topic(topic) if topic else None
        )
        return {
            "shown": found[: page.limit],
            "filters": page.filters,
            "choices": _FILTERS,
            "next": next_page(page, [request.id for request in found]),
            "is_first": page.before is None,
            "at": utc_now(),
        }
