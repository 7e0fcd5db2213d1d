"""A form is accepted only from our own pages with the session's CSRF token; others change nothing and say why."""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.console_session import SessionEndReason
from schemas.exports.state_machine import ExportStatus
from service.app import create_app
from service.console.sessions import origin_of
from service.http.form_bodies import MAX_FORM_BYTES, MAX_FORM_FIELDS
from storage.accounts import sessions
from storage.db.engine import database, execute, rows
from storage.exports import queries
from tests.service.conftest import LogLines
from tests.support.canaries import columns, is_in
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_exports, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import BROWSER, FORM, ORIGIN, ConsoleBrowser, make_console_token
from tests.support.http.raw_http import CANARY, SlowBody, everything_stored

# Forms do not depend on the database.
pytestmark = on_sqlite


def send(person: ConsoleBrowser, body: bytes, **headers: str) -> Result:
    """Send the sign-out form of a session with other headers; `_` in their names stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    shown = {"User-Agent": BROWSER, "Cookie": f"riskrelay_session={person.cookie}", "Origin": ORIGIN, "Content-Type": FORM}
    return person.client.simulate_post("/console/sign-out", body=body, headers={**shown, **named})


def console_at(base: str, folder: Path) -> TestClient:
    """Return a client of an installation with this PUBLIC_BASE_URL."""
    return TestClient(create_app(make_settings(folder, {"PUBLIC_BASE_URL": base}), FakeWakeUpQueue(), FakeResolver({})))


def is_signed_in(person: ConsoleBrowser) -> bool:
    return person.get("/exports").status_code == 200


# --- origin


@pytest.mark.parametrize(
    ("base", "origin", "is_ours"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("https://risk.example.com", "https://risk.example.com", True),
        # The default port.
        ("https://risk.example.com:443", "https://risk.example.com", True),
        ("http://risk.example.com:80/riskrelay", "http://risk.example.com", True),
        ("HTTPS://Risk.Example.com", "https://risk.example.com", True),
        ("http://[::1]:8000", "http://[::1]:8000", True),
        # Another scheme, port or host, or no valid origin.
        ("https://risk.example.com", "http://risk.example.com", False),
        ("https://risk.example.com", "https://risk.example.com:8443", False),
        ("https://risk.example.com", "https://example.com", False),
        ("https://risk.example.com", "https://risk.example.com.evil.example", False),
        ("https://risk.example.com", "https://evil.example/https://risk.example.com", False),
        ("https://risk.example.com", "https://risk.example.com@evil.example", False),
        ("https://risk.example.com", "https://evil@risk.example.com", False),
        ("https://risk.example.com", "https://risk.example.com, https://evil.example", False),
        ("https://risk.example.com", "https://risk.example.com:x", False),
        ("https://risk.example.com", "https://[risk.example.com", False),
        ("http://[::1]:8000", "http://[::1:8000]", False),
        ("https://risk.example.com", "null", False),
        ("https://risk.example.com", "\xff", False),
        ("https://risk.example.com", None, False),
    ],
)
def test_a_form_is_accepted_only_from_its_own_origin(
    base: str, origin: str | None, is_ours: bool, customer: Customer, tmp_path: Path, log_lines: LogLines
) -> None:
    answer = ConsoleBrowser(console_at(base, tmp_path), origin=origin).post("/sign-in", token=make_console_token(customer))
    assert answer.status_code == (303 if is_ours else 403)
    if not is_ours:
        assert f"accepts forms only from {origin_of(base)}" in answer.text
        assert "PUBLIC_BASE_URL" in answer.text
        assert origin in {None, "null"} or "evil.example" not in answer.text
        assert '"origin"' in log_lines.text
        assert rows("SELECT COUNT(*) FROM console_sessions") == [(0,)]


@pytest.mark.parametrize(
    ("base", "host", "origin", "is_ours"),
    [
        ("http://127.0.0.1:8000", "localhost:8000", "http://localhost:8000", True),
        ("http://127.0.0.1:8000", "[::1]:8000", "http://[::1]:8000", True),
        ("http://localhost:8000", "127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("http://[::1]", "localhost", "http://localhost", True),
        # A page of another port, scheme or server of this machine.
        ("http://127.0.0.1:8000", "localhost:9000", "http://localhost:9000", False),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "http://localhost:8000", False),
        ("http://127.0.0.1:8000", "localhost:8000", "https://localhost:8000", False),
        # An installation that is reached by its public name.
        ("https://risk.example.com", "localhost:8000", "http://localhost:8000", False),
        ("http://risk.example.com:8000", "localhost:8000", "http://localhost:8000", False),
        ("http://127.0.0.1:8000", "localhost.evil.example:8000", "http://localhost.evil.example:8000", False),
    ],
)
def test_forms_are_accepted_under_every_loopback_name_of_the_console(
    base: str, host: str, origin: str, is_ours: bool, customer: Customer, tmp_path: Path
) -> None:
    form = urlencode({"token": make_console_token(customer)})
    headers = {"User-Agent": BROWSER, "Origin": origin, "Content-Type": FORM, "Host": host}
    answer = console_at(base, tmp_path).simulate_post("/console/sign-in", body=form, headers=headers)
    assert answer.status_code == (303 if is_ours else 403)


def test_a_form_of_another_origin_is_refused_even_with_valid_cookie_and_form_token(person: ConsoleBrowser) -> None:
    before = everything_stored()
    for origin in ("https://evil.example", "null", ""):
        answer = send(person, f"csrf={person.csrf}".encode(), Origin=origin)
        assert answer.status_code == 403
        assert "Nothing was changed" in answer.text
    assert everything_stored() == before
    assert is_signed_in(person)


# --- the CSRF token


def test_a_form_needs_the_form_token_of_its_own_session(
    person: ConsoleBrowser, customer: Customer, log_lines: LogLines
) -> None:
    """Pages of earlier sessions and of other users contain other tokens."""
    stranger = ConsoleBrowser(person.client, "Another browser")
    stranger.sign_in(make_console_token(customer))
    assert stranger.csrf != person.csrf
    for carried in ("", "x", person.csrf[:-1], person.csrf + "A", stranger.csrf, person.cookie, "\u00e9"):
        answer = person.post("/sign-out", csrf=carried)
        assert answer.status_code == 403, carried
        assert "Reload the page" in answer.text
        assert is_signed_in(person), carried
    assert send(person, b"").status_code == 403
    assert log_lines.text.count('"csrf"') == 8
    assert person.post("/sign-out").status_code == 303
    assert not is_signed_in(person)
    assert stranger.get("/exports").status_code == 200


def send_slowly(person: ConsoleBrowser, path: str, body: bytes, meanwhile: Callable[[], object]) -> Result:
    """Send a form whose body arrives slowly, and call `meanwhile` before it has arrived."""
    headers = {
        "User-Agent": BROWSER,
        "Cookie": f"riskrelay_session={person.cookie}",
        "Origin": ORIGIN,
        "Content-Type": FORM,
        "Content-Length": str(len(body)),
    }
    extras = {"wsgi.input": SlowBody(body, meanwhile)}
    return person.client.simulate_post(f"/console{path}", headers=headers, extras=extras)


def test_a_form_of_a_session_that_ends_during_its_transfer_does_nothing(person: ConsoleBrowser, customer: Customer) -> None:
    """A form may take minutes to arrive, and a thief could keep many of them open."""
    [export_id] = make_exports(customer, 1)
    [(session_id,)] = rows("SELECT id FROM console_sessions")
    body = f"csrf={person.csrf}".encode()
    answer = send_slowly(
        person,
        f"/exports/{export_id}/dismiss",
        body,
        lambda: sessions.end(session_id, SessionEndReason.REVOKED, utc_now(), "user:test"),
    )
    assert answer.status_code == 401
    assert "Nothing was changed" in answer.text
    assert f'<a href="/console/exports/{export_id}">Sign in</a>' in answer.text
    assert person.csrf not in answer.text
    assert queries.get(export_id, customer.account_id).status is ExportStatus.PREPARED


def test_a_permission_withdrawn_during_the_transfer_of_a_form_is_missing(person: ConsoleBrowser, customer: Customer) -> None:
    """The API also checks permissions again after a slow body."""
    target = make_target(customer)
    body = f"csrf={person.csrf}&secret={'s' * 40}".encode()
    forbid = f"UPDATE accounts SET may_use_webhooks = FALSE WHERE id = {customer.account_id}"  # noqa: S608 - a number of ours
    answer = send_slowly(person, f"/targets/{target.id}/secret", body, lambda: execute(forbid))
    assert answer.status_code == 403
    assert rows("SELECT secret_sealed FROM targets") == [(None,)]


def test_two_simultaneous_sign_outs_both_succeed(person: ConsoleBrowser) -> None:
    """The second request finds the session that the first one has ended."""
    [(session_id,)] = rows("SELECT id FROM console_sessions")
    body = f"csrf={person.csrf}".encode()
    answer = send_slowly(
        person, "/sign-out", body, lambda: sessions.end(session_id, SessionEndReason.SIGNED_OUT, utc_now(), "user:test")
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in?done=signed_out")
    assert not is_signed_in(person)


def test_no_database_connection_is_held_while_a_form_is_received(person: ConsoleBrowser) -> None:
    held: list[bool] = []
    body = f"csrf={person.csrf}".encode()
    answer = send_slowly(person, "/sign-out", body, lambda: held.append(not database.is_closed()))
    assert answer.status_code == 303
    assert set(held) == {False}


def test_pages_do_not_contain_the_session_secret_and_the_cookie_does_not_contain_the_csrf_token(
    person: ConsoleBrowser,
) -> None:
    assert person.cookie.removeprefix("rrs_") not in person.get("/exports").text
    assert person.csrf not in person.cookie


# --- valid forms


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content_Type": "application/json"}, 415),
        (b"csrf=a", {"Content_Type": "text/plain"}, 415),
        (b"csrf=a", {"Content_Type": "multipart/form-data; boundary=a"}, 415),
        # Parameters of the type are ignored.
        (b"csrf=a", {"Content_Type": "APPLICATION/X-WWW-FORM-URLENCODED; charset=utf-8"}, 403),
        (b"csrf=a&csrf=a", {}, 422),
        (b"csrf", {}, 422),
        (b"csrf=%ff", {}, 422),
        (b"csrf=\xff", {}, 422),
        (b"csrf=%ED%A0%80", {}, 422),
        (b"csrf=a%00", {}, 422),
        (b"a%00=a", {}, 422),
        (b"&".join(b"f%d=" % number for number in range(MAX_FORM_FIELDS + 1)), {}, 422),
        (b"csrf=" + b"a" * MAX_FORM_BYTES, {}, 413),
        (b"csrf=" + b"a" * (MAX_FORM_BYTES - 5), {}, 403),
        # Fewer bytes than the length says.
        (b"csrf=a", {"Content_Length": "100"}, 422),
        (b"csrf=a", {"Content_Length": "99999999999999999999"}, 413),
    ],
)
def test_a_body_that_is_no_form_is_rejected_and_does_nothing(
    body: bytes, headers: dict[str, str], status: int, person: ConsoleBrowser
) -> None:
    answer = send(person, body, **headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert is_signed_in(person)


def test_form_fields_in_the_query_are_ignored(person: ConsoleBrowser) -> None:
    answer = person.client.simulate_post(
        "/console/sign-out",
        query_string=f"csrf={person.csrf}",
        headers={
            "User-Agent": BROWSER,
            "Cookie": f"riskrelay_session={person.cookie}",
            "Origin": ORIGIN,
            "Content-Type": FORM,
        },
    )
    assert answer.status_code == 403
    assert is_signed_in(person)


# --- nothing submitted comes out

#: Headers that the console reads, and some that it does not read.
CARRIERS: Final = (
    "User-Agent",
    "Referer",
    "Cookie",
    "Sec-Fetch-Site",
    "X-Forwarded-For",
    "Accept-Language",
    "If-None-Match",
)


def test_a_canary_in_cookies_headers_and_fields_appears_nowhere(
    person: ConsoleBrowser, customer: Customer, log_lines: LogLines
) -> None:
    [export_id] = make_exports(customer, 1)
    cookie = f"riskrelay_session={CANARY}; {CANARY}={CANARY}; riskrelay_session={person.cookie}"
    plain = {"User-Agent": BROWSER, "Cookie": cookie, "Origin": ORIGIN, "Content-Type": FORM}
    spoiled = [
        {**plain, **dict.fromkeys(CARRIERS, CANARY)},
        {**plain, "Cookie": f"riskrelay_session=rrs_{CANARY}"},
        {**plain, "Cookie": f"riskrelay_session={person.cookie}", "User-Agent": CANARY},
        {**plain, "Origin": f"https://{CANARY}.example"},
        {**plain, "Content-Type": CANARY},
        plain,
    ]
    forms = [
        f"token={CANARY}&next={CANARY}&{CANARY}={CANARY}",
        f"csrf={CANARY}",
        f"csrf={person.csrf}&ticket_digest={CANARY}",
    ]
    paths = ["/sign-in", "/sign-out", f"/exports/{export_id}/approve", f"/exports/exp_{CANARY}/retry", f"/{CANARY}"]
    for headers in reversed(spoiled):
        answers = [
            person.client.simulate_post(f"/console{path}", headers=headers, body=form) for path in paths for form in forms
        ]
        answers += [
            person.client.simulate_get(f"/console{path}", headers=headers)
            for path in ("/exports", "/sign-in", f"/{CANARY}", f"/exports/{CANARY}")
        ]
        for answer in answers:
            assert answer.status_code < 500
            # The target of the redirect after a sign-in is the path that the user requested.
            shown = {name: value for name, value in answer.headers.items() if name != "location"}
            assert CANARY not in f"{answer.text} {shown}"
    assert CANARY not in log_lines.text
    assert [name for name, data in columns().items() if is_in(data, CANARY)] == []


def test_no_credential_of_the_console_is_in_a_log_page_or_table(
    client: TestClient, customer: Customer, log_lines: LogLines
) -> None:
    token = make_console_token(customer)
    person = ConsoleBrowser(client)
    person.sign_in(token)
    pages = "".join(person.get(path).text for path in ("/exports", "/sessions", "/nowhere"))
    person.post("/sessions/ses_1/revoke")
    for secret in (token, person.cookie):
        assert secret not in log_lines.text + pages
        assert [name for name, data in columns().items() if is_in(data, secret)] == []
    assert person.csrf not in log_lines.text
