"""A console user: signs in once, reads every page repeatedly and approves exports.

Any response but the expected page is a surprise, and so is the end of the session: it must survive every kill.
"""

import re
from collections.abc import Mapping
from html import unescape
from typing import Final
from urllib.parse import urlencode

from soak.clients.submitters import Shared, SoakClient

#: Every page of the menu, and filtered lists.
PAGES: Final = (
    "/overview",
    "/exports",
    "/exports?status=failed",
    "/exports?status=retry_scheduled",
    "/targets",
    "/findings",
    "/recoveries",
    "/integrations",
    "/compliance",
    "/audit",
    "/queue",
    "/settings",
    "/sessions",
)

_SHOWN: Final = frozenset({200})
_REDIRECTED: Final = frozenset({303})
#: 409: the response to the first submission of the form was lost; the repeat finds the export approved.
_DECIDED: Final = frozenset({303, 409})
_BROWSER: Final = "Mozilla/5.0 (soak)"
#: Mean seconds between actions, and the share of approvals.
_EVERY_S: Final = 0.7
_APPROVED_SHARE: Final = 0.3
_LINKS: Final = re.compile(r'href="/console(/(?:exports|targets)/[a-z]{3}_[0-9A-Z]{26})"')


class ConsoleClient(SoakClient):
    """Reads pages and approves exports in a session created with `token`, at the service on `port`."""

    def __init__(self, shared: Shared, port: int, token: str) -> None:
        super().__init__(shared, -2, port)
        self.name = "console_client"
        self._origin = f"http://127.0.0.1:{port}"
        self._token = token
        self._cookie = ""

    def act(self) -> None:
        """Sign in, then act until the run is over."""
        if not self._sign_in():
            raise AssertionError("the console refused the sign-in")
        while not self.shared.pace.stop.wait(self.rng.uniform(0.5, 1.5) * _EVERY_S):
            if self.rng.random() < _APPROVED_SHARE:
                self._approve_one()
            else:
                self._read_pages()

    def _read_pages(self) -> None:
        """Read a page and one that it links to."""
        page = self._read_page(self.rng.choice(PAGES))
        links = _LINKS.findall(page or "")
        if links:
            self._read_page(self.rng.choice(links))

    def _approve_one(self) -> None:
        """Prepare an export and approve the ticket that its page shows."""
        for export_id in self.prepare(self.shared.names.new()[0]):
            page = self._read_page(f"/exports/{export_id}")
            if page is None or not self.shared.pace.wait():
                return
            # The form's response does not show a rejection, so use no target that may be paused.
            never_paused = [each for each in self.access.targets if each not in self.access.paused_at_times]
            target_id, digest = self.rng.choice(never_paused), _field(page, "ticket_digest")
            self.events.append("approving", export=export_id, target=target_id)
            fields = {"csrf": _field(page, "csrf"), "target_id": target_id, "ticket_digest": digest}
            if self._submit_form(f"/exports/{export_id}/approve", fields, _DECIDED) is not None:
                self.shared.counts["approved"] += 1
                self.events.append("approved", export=export_id, target=target_id, digest=digest)

    def _sign_in(self) -> bool:
        cookie = self._submit_form("/sign-in", {"token": self._token}, _REDIRECTED)
        self._cookie = "" if cookie is None else cookie.partition(";")[0]
        return bool(self._cookie)

    def _read_page(self, path: str) -> str | None:
        """Return the text of a page; None for an unexpected response."""
        self.shared.counts["pages"] += 1
        response = self.api.request("GET", f"/console{path}", self._headers(), expected=_SHOWN)
        return None if response is None else str(response.body)

    def _submit_form(self, path: str, fields: Mapping[str, str], expected: frozenset[int]) -> str | None:
        """Send a form; return the cookie of the response; None for an unexpected response."""
        headers = {**self._headers(), "Origin": self._origin, "Content-Type": "application/x-www-form-urlencoded"}
        content = urlencode(fields).encode()
        response = self.api.request("POST", f"/console{path}", headers, expected=expected, content=content)
        return None if response is None else response.headers.get("set-cookie", "")

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": _BROWSER, **({"Cookie": self._cookie} if self._cookie else {})}


def _field(page: str, name: str) -> str:
    """Return the value of a form field. Raises AssertionError if the page lacks it."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, f"no {name} on the page"
    return unescape(found[1])
