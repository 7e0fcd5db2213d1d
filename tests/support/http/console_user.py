"""A console user at the level of HTTP: keeps cookies, and sends forms with the page's CSRF token."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Final
from urllib.parse import urlencode

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from storage.db import schema_version
from storage.exports import worker_heartbeats
from storage.reporting import menu_counts
from storage.secrets import key_check
from tests.support.database.query_plans import SqlStatement, statements
from tests.support.factories import Customer

#: The default of PUBLIC_BASE_URL.
ORIGIN: Final = "http://127.0.0.1:8000"
BROWSER: Final = "Mozilla/5.0 (a browser of the tests)"
FORM: Final = "application/x-www-form-urlencoded"

BOUNDARY: Final = b"----a-boundary-of-a-browser"

_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')


def make_console_token(customer: Customer, *abilities: Ability) -> str:
    """Store an API token of the customer's user with `abilities`, by default `console`; return its text."""
    return tokens.create(customer.email, TokenKind.API, utc_now(), abilities or (Ability.CONSOLE,), "console")[1]


class ConsoleBrowser:
    """Reads pages and sends forms; `cookie` is the value of the session cookie."""

    def __init__(self, client: TestClient, browser: str = BROWSER, origin: str | None = ORIGIN) -> None:
        self.client = client
        self.browser = browser
        self.origin = origin
        self.cookie_name = "riskrelay_session"
        self.cookie = ""
        #: All cookies except the session's.
        self.preferences: dict[str, str] = {}
        self.csrf = ""

    def get(self, path: str = "", query: str = "") -> Result:
        """Read a page below /console, and keep the CSRF token of its forms."""
        answer = self.client.simulate_get(f"/console{path}", query_string=query, headers=self._headers())
        found = _CSRF.search(answer.text)
        self.csrf = unescape(found[1]) if found else self.csrf
        self._keep(answer)
        return answer

    def post(self, path: str, /, **fields: str) -> Result:
        """Send a form with the CSRF token of the last page; a field `csrf` replaces it."""
        body = urlencode({"csrf": self.csrf, **fields})
        headers = {**self._headers(), "Content-Type": FORM, **({"Origin": self.origin} if self.origin else {})}
        answer = self.client.simulate_post(f"/console{path}", body=body, headers=headers)
        self._keep(answer)
        return answer

    def upload(self, path: str, content: bytes, /, file_name: str = "report.json", **fields: str) -> Result:
        """Send a multipart form with the file `report`, as browsers do."""
        named = {"csrf": self.csrf, **fields}
        parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in named.items()]
        head = f'Content-Disposition: form-data; name="report"; filename="{file_name}"\r\nContent-Type: application/json'
        parts.append(head.encode() + b"\r\n\r\n" + content)
        body = b"".join(b"--" + BOUNDARY + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + BOUNDARY + b"--\r\n"
        form = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
        headers = {**self._headers(), **form, **({"Origin": self.origin} if self.origin else {})}
        return self.client.simulate_post(f"/console{path}", body=body, headers=headers)

    def sign_in(self, token: str, **fields: str) -> Result:
        """Sign in with a token; after success, read a page for its CSRF token."""
        answer = self.post("/sign-in", token=token, **fields)
        if answer.status_code == 303:
            self.get("/exports")
        return answer

    def keep_cookies(self, answer: Result) -> None:
        """Keep all cookies except the session's, as a browser does."""
        others = {name: cookie.value for name, cookie in answer.cookies.items() if name != self.cookie_name}
        self.preferences.update(others)

    def _keep(self, answer: Result) -> None:
        given = answer.cookies.get(self.cookie_name)
        if given is not None:
            self.cookie = given.value

    def _headers(self) -> dict[str, str]:
        cookies = {**({self.cookie_name: self.cookie} if self.cookie else {}), **self.preferences}
        sent = "; ".join(f"{name}={value}" for name, value in cookies.items())
        return {"User-Agent": self.browser, **({"Cookie": sent} if sent else {})}


@contextmanager
def page_statements() -> Iterator[list[SqlStatement]]:
    """Collect the SQL statements of pages, except those of the menu, whose results are usually cached."""
    with statements() as found:
        yield found
    with statements() as of_menu:
        menu_counts.count(0, utc_now())
        schema_version.is_current()
        key_check.canary()
        worker_heartbeats.count_alive(utc_now())
    left_out = {each.sql for each in of_menu}
    found[:] = [each for each in found if each.sql not in left_out]
