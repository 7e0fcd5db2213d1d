"""`/api/compliance-requests`: the ledger of requests about personal data, for administrators; it holds no such data."""

import falcon

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.compliance.requests import compliance_record
from schemas.settings.definitions import RouteFamily
from service.api.accounts.authority import AccountAuthority
from service.http.paging import read_page, send_page, send_record
from storage.compliance import requests
from storage.db import identifiers


class ComplianceRequestsResource:
    """Lists compliance requests."""

    path = "/api/compliance-requests"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        reading = authority.operation(Ability.ADMIN)
        self.operations = {"GET": reading, "HEAD": reading}
        self._url = authority.public_base_url + self.path

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the requests."""
        page, now = read_page(req, identifiers.COMPLIANCE), utc_now()
        found = requests.list_page(page.fetch_limit, page.before, None, None)
        send_page(resp, self._url, page, [compliance_record(each, now) for each in found])

    on_head = on_get


class ComplianceRequestResource:
    """Reads one compliance request."""

    path = f"{ComplianceRequestsResource.path}/{{compliance_id}}"
    family = RouteFamily.EXPORTS

    def __init__(self, authority: AccountAuthority) -> None:
        reading = authority.operation(Ability.ADMIN)
        self.operations = {"GET": reading, "HEAD": reading}

    def on_get(self, req: falcon.Request, resp: falcon.Response, compliance_id: str) -> None:
        """Return the request."""
        send_record(resp, compliance_record(requests.get(compliance_id), utc_now()))

    on_head = on_get
