"""Signing in and out: a token for a session, a session for pages, and every way in which a session ends."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import falcon
import pytest
from falcon.testing import Result, TestClient, create_req
from freezegun import freeze_time

from runtime.clock import utc_now
from schemas.base.errors import RateLimited
from schemas.base.principal import Ability, TokenKind
from service.app import create_app
from service.console.layout import CONTENT_SECURITY_POLICY
from service.console.sessions import SessionGate
from storage.accounts import sessions, tokens
from storage.accounts.sessions import IDLE_FOR, LASTS_FOR
from storage.db.engine import execute, rows
from tests.service.conftest import LogLines
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    NOW,
    Customer,
    make_customer,
    make_exports,
    make_platform_token,
    make_session,
    make_settings,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue, OvertakenLimits
from tests.support.http.console_user import BROWSER, FORM, ORIGIN, ConsoleBrowser, make_console_token
from tests.support.http.raw_http import SlowBody, everything_stored

# Signing in does not depend on the database; the queries are tested on both databases elsewhere.
pytestmark = on_sqlite

MINUTE: Final = timedelta(minutes=1)


def app_with(folder: Path, **changes: str) -> TestClient:
    return TestClient(create_app(make_settings(folder, changes), FakeWakeUpQueue(), FakeResolver({})))


def cookie_of(answer: Result, expected_name: str = "riskrelay_session") -> tuple[str, set[str]]:
    """Return the value and the attributes of the cookie that a response sets."""
    first, *rest = answer.headers["set-cookie"].split("; ")
    name, _, value = first.partition("=")
    assert name == expected_name
    return value.strip('"'), set(rest)


def only_session() -> str:
    [(session_id,)] = rows("SELECT id FROM console_sessions")
    return str(session_id)


def test_a_user_signs_in_reads_a_page_and_signs_out(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 1)
    person = ConsoleBrowser(client)
    sent = person.get("/exports", "status=prepared")
    assert (sent.status_code, sent.headers["location"]) == (303, "/console/sign-in?next=%2Fexports%3Fstatus%3Dprepared")
    came_in = person.sign_in(make_console_token(customer), next="/exports?status=prepared")
    assert (came_in.status_code, came_in.headers["location"]) == (303, "/console/exports?status=prepared")
    assert "Missing name" in person.get("/exports").text
    response = person.post("/sign-out")
    assert (response.status_code, response.headers["location"]) == (303, "/console/sign-in?done=signed_out")
    assert person.cookie == ""
    assert "You are signed out." in person.get("/sign-in", "done=signed_out").text
    assert person.get("/exports").status_code == 303


def test_sign_in_and_sign_out_are_in_the_audit_log(person: ConsoleBrowser, customer: Customer) -> None:
    session_id = only_session()
    person.post("/sign-out")
    found = rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (session_id,))
    actor = f"user:{customer.user_id}"
    assert found == [(actor, "sign_in", None), (actor, "end_session", "signed_out")]


@pytest.mark.parametrize(
    ("base", "leads_to", "name", "path"),
    [
        ("http://127.0.0.1:8000", "/console", "riskrelay_session", "/console"),
        ("http://desk.example.com/tools", "/tools/console", "riskrelay_session", "/tools/console"),
        ("https://desk.example.com", "/console", "__Host-riskrelay_session", "/"),
        ("HTTPS://desk.example.com/a/risk.relay/", "/a/risk.relay/console", "__Host-riskrelay_session-a-risk.relay", "/"),
    ],
)
def test_the_session_cookie_is_limited_to_the_console_by_its_attributes(
    base: str, leads_to: str, name: str, path: str, customer: Customer, tmp_path: Path
) -> None:
    """Over https, no other host of the domain can set the cookie: browsers require all three attributes for the prefix."""
    person = ConsoleBrowser(app_with(tmp_path, PUBLIC_BASE_URL=base), origin="/".join(base.lower().split("/")[:3]))
    person.cookie_name = name
    came_in = person.sign_in(make_console_token(customer))
    assert came_in.headers["location"] == leads_to
    value, shown = cookie_of(came_in, name)
    attributes = {"HttpOnly", "SameSite=Strict", f"Path={path}", *(("Secure",) if "__Host-" in name else ())}
    assert shown == attributes
    assert (len(value), value[:4]) == (47, "rrs_")
    person.get("/sessions")
    value, shown = cookie_of(person.post("/sign-out"), name)
    assert (value, shown) == ("", {*attributes, "expires=Thu, 01 Jan 1970 00:00:00 GMT"})


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_preferences_cookie_is_limited_to_the_console_by_its_attributes(
    scheme: str, customer: Customer, tmp_path: Path
) -> None:
    base = f"{scheme}://desk.example.com"
    person = ConsoleBrowser(app_with(tmp_path, PUBLIC_BASE_URL=base), origin=base)
    person.cookie_name = "__Host-riskrelay_session" if scheme == "https" else "riskrelay_session"
    person.sign_in(make_console_token(customer))
    value, shown = cookie_of(person.post("/shortcuts/off"), "riskrelay_preferences")
    attributes = {"HttpOnly", "SameSite=Strict", "Path=/console", "Max-Age=31536000"}
    assert (value, shown) == ("no-keys", attributes | ({"Secure"} if scheme == "https" else set()))


def test_the_stored_session_contains_neither_its_cookie_nor_its_form_token(person: ConsoleBrowser) -> None:
    stored = repr(rows("SELECT * FROM console_sessions"))
    assert person.cookie not in stored
    assert person.csrf not in stored
    assert person.browser not in stored


def test_each_sign_in_starts_a_new_session_and_ends_the_previous_one(person: ConsoleBrowser, customer: Customer) -> None:
    first = person.cookie
    person.sign_in(make_console_token(customer))
    assert person.cookie not in {first, ""}
    assert person.get("/exports").status_code == 200
    person.cookie = first
    assert person.get("/exports").headers["location"].endswith("why=signed_out")


def test_a_session_cookie_set_before_sign_in_is_not_adopted(client: TestClient, customer: Customer) -> None:
    person = ConsoleBrowser(client)
    person.cookie = chosen = "rrs_" + "a" * 43
    person.sign_in(make_console_token(customer))
    assert person.cookie != chosen
    person.cookie = chosen
    assert person.get("/exports").status_code == 303


def test_spaces_around_a_copied_token_are_ignored(client: TestClient, customer: Customer) -> None:
    assert ConsoleBrowser(client).sign_in(f" \t{make_console_token(customer)}\r\n").status_code == 303


# --- refused sign-ins


def refused_tokens(customer: Customer) -> dict[str, tuple[str, int]]:
    """Return tokens that cannot sign in, with the status of the response."""
    revoked, revoked_text = tokens.create(customer.email, TokenKind.API, NOW, (Ability.CONSOLE,))
    tokens.revoke(revoked.id, NOW)
    expired = tokens.create(customer.email, TokenKind.API, NOW - timedelta(2), (Ability.CONSOLE,), expires=timedelta(1))[1]
    return {
        "nothing": ("", 401),
        "made up": ("rrt_" + "0" * 33, 401),
        "another script": ("\u0661" * 37, 401),
        "revoked": (revoked_text, 401),
        "expired": (expired, 401),
        "without the ability": (customer.token, 403),
        "a platform token": (make_platform_token(customer), 403),
    }


def test_no_other_token_can_sign_in(client: TestClient, customer: Customer, log_lines: LogLines) -> None:
    for name, (text, status) in refused_tokens(customer).items():
        person = ConsoleBrowser(client)
        answer = person.post("/sign-in", token=text)
        assert answer.status_code == status, name
        assert "set-cookie" not in answer.headers, name
        # The form is shown again, without the typed token.
        assert '<form class="sign-in"' in answer.text, name
        assert not text or text not in answer.text, name
        assert not text or text not in log_lines.text, name
        if status == 403:
            assert "<code>bin/riskrelay token create --user EMAIL --ability console</code>" in answer.text, name
            assert "`" not in answer.text, name
    assert rows("SELECT COUNT(*) FROM console_sessions") == [(0,)]
    assert log_lines.text.count('"token_unknown"') == 5
    assert log_lines.text.count('"token_without_console"') == 2


def test_after_too_many_wrong_tokens_a_valid_one_is_refused_too(
    customer: Customer, tmp_path: Path, log_lines: LogLines
) -> None:
    client = app_with(tmp_path, AUTH_FAILURES_PER_MINUTE="3")
    signed_in = ConsoleBrowser(client)
    signed_in.sign_in(make_console_token(customer))
    guesser = ConsoleBrowser(client)
    shown = [guesser.post("/sign-in", token=f"rrt_{number}").status_code for number in range(5)]
    assert shown == [401, 401, 401, 429, 429]
    refused = guesser.post("/sign-in", token=make_console_token(customer))
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert "Try again in" in refused.text
    assert '"address_blocked"' in log_lines.text
    # Failures at the console and at the API count together. Existing sessions stay valid, because cookies cannot be guessed.
    assert client.simulate_get("/api/ticket-exports", headers=customer.bearer).status_code == 429
    assert signed_in.get("/exports").status_code == 200


def test_the_form_of_a_blocked_address_is_refused_before_its_body_is_read(customer: Customer, tmp_path: Path) -> None:
    client = app_with(tmp_path, AUTH_FAILURES_PER_MINUTE="1")
    assert [ConsoleBrowser(client).post("/sign-in", token="x").status_code for _ in range(2)] == [401, 429]
    body = urlencode({"token": make_console_token(customer)}).encode()
    reads: list[str] = []
    answer = client.simulate_post(
        "/console/sign-in",
        headers={"Origin": ORIGIN, "Content-Type": FORM, "Content-Length": str(len(body))},
        extras={"wsgi.input": SlowBody(body, lambda: reads.append("read"))},
    )
    assert (answer.status_code, reads) == (429, [])


def test_a_valid_token_among_many_concurrent_guesses_does_not_sign_in(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"AUTH_FAILURES_PER_MINUTE": "1"})
    entrance = SessionGate(settings, OvertakenLimits(settings))
    with pytest.raises(RateLimited):
        entrance.sign_in(create_req(), falcon.Response(), make_console_token(customer))
    assert rows("SELECT COUNT(*) FROM console_sessions") == [(0,)]


def test_the_console_and_the_api_have_separate_rate_limits(customer: Customer, tmp_path: Path, log_lines: LogLines) -> None:
    client = app_with(tmp_path, RATE_LIMIT_PER_MINUTE="5")
    polls = [client.simulate_get("/api/ticket-exports", headers=customer.bearer).status_code for _ in range(7)]
    assert polls[4:] == [200, 429, 429]
    person = ConsoleBrowser(client)
    assert person.sign_in(make_console_token(customer)).status_code == 303
    # Signing in took two requests.
    shown = [person.get("/exports") for _ in range(4)]
    assert [each.status_code for each in shown] == [200, 200, 200, 429]
    assert int(shown[-1].headers["retry-after"]) >= 1
    assert '"too_often"' in log_lines.text
    # Signing out is not limited: otherwise a thief could keep the owner of a stolen cookie from ending the session.
    assert person.post("/sign-out").headers["location"] == "/console/sign-in?done=signed_out"
    assert rows("SELECT ended_reason FROM console_sessions") == [("signed_out",)]


# --- how a session ends


def sign_in_at_noon(client: TestClient, customer: Customer) -> ConsoleBrowser:
    person = ConsoleBrowser(client)
    with freeze_time(NOW):
        assert person.post("/sign-in", token=make_console_token(customer)).status_code == 303
    return person


@pytest.mark.parametrize(
    ("looks_at", "ends_at", "why"),
    [
        # No request for twelve hours.
        ([], IDLE_FOR, "idle"),
        # A request extends the session.
        ([timedelta(hours=11)], timedelta(hours=11) + IDLE_FOR, "idle"),
        # But not beyond its maximum.
        ([timedelta(hours=11) * number for number in range(1, 16)], LASTS_FOR, "too_old"),
    ],
)
def test_a_session_expires_when_unused_or_too_old(
    looks_at: list[timedelta], ends_at: timedelta, why: str, client: TestClient, customer: Customer
) -> None:
    person = sign_in_at_noon(client, customer)
    cookie = person.cookie
    for after in [*looks_at, ends_at - MINUTE / 60]:
        with freeze_time(NOW + after):
            # A request in the last moment would extend the session.
            if after in looks_at:
                assert person.get("/exports").status_code == 200
    with freeze_time(NOW + ends_at):
        over = person.get("/exports")
    assert (over.status_code, over.headers["location"]) == (303, f"/console/sign-in?next=%2Fexports&why={why}")
    assert (person.cookie, cookie_of(over)[0]) == ("", "")
    assert cookie != ""


def revoke_token(_person: ConsoleBrowser) -> None:
    [(token_id,)] = rows("SELECT token_id FROM console_sessions")
    tokens.revoke(token_id, utc_now())


def expire_token(_person: ConsoleBrowser) -> None:
    execute("UPDATE tokens SET expires_at = 1 WHERE name = 'console'")


def remove_ability(_person: ConsoleBrowser) -> None:
    execute("""UPDATE tokens SET abilities = '["ticket-exports:read"]' WHERE name = 'console'""")


def use_another_browser(person: ConsoleBrowser) -> None:
    person.browser = "Mozilla/5.0 (another)"


def forge_cookie(person: ConsoleBrowser) -> None:
    person.cookie = "rrs_" + "A" * 43


@pytest.mark.parametrize(
    ("done", "why", "expected"),
    [
        (revoke_token, "token_over", "the token was revoked"),
        (expire_token, "token_over", "has expired"),
        (remove_ability, "token_over", "lost the ability"),
        (use_another_browser, "another_browser", "another browser or browser version"),
        (forge_cookie, "unknown", "no longer exists"),
    ],
)
def test_an_ended_session_is_redirected_to_the_sign_in_with_its_reason(
    done: Callable[[ConsoleBrowser], None], why: str, expected: str, person: ConsoleBrowser, log_lines: LogLines
) -> None:
    done(person)
    cookie = person.cookie
    answer = person.get("/exports")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/console/sign-in?next=%2Fexports&why={why}")
    assert expected in person.get("/sign-in", f"why={why}").text
    assert f'"session_{why}"' in log_lines.text
    assert cookie not in log_lines.text


@pytest.mark.parametrize("done", [revoke_token, use_another_browser, forge_cookie])
def test_a_form_of_an_ended_session_is_refused_and_changes_nothing(
    done: Callable[[ConsoleBrowser], None], person: ConsoleBrowser
) -> None:
    done(person)
    answer = person.post("/exports/exp_1/dismiss")
    assert answer.status_code == 401
    assert "Nothing was changed" in answer.text


def test_a_cookie_used_by_another_browser_ends_the_session_for_both_browsers(person: ConsoleBrowser) -> None:
    thief = ConsoleBrowser(person.client, "curl/8")
    thief.cookie = person.cookie
    assert thief.get("/exports").status_code == 303
    assert person.get("/exports").headers["location"].endswith("why=another_browser")
    assert rows("SELECT reason FROM audit_entries WHERE action = 'end_session'") == [("another_browser",)]


def test_a_token_has_at_most_ten_sessions_and_the_oldest_ends_first(client: TestClient, customer: Customer) -> None:
    token = make_console_token(customer)
    people = [ConsoleBrowser(client, f"Browser {number}") for number in range(11)]
    for number, person in enumerate(people):
        with freeze_time(NOW + number * MINUTE):
            person.post("/sign-in", token=token)
    with freeze_time(NOW + timedelta(hours=1)):
        answers = [person.get("/exports") for person in people]
    assert [answer.status_code for answer in answers] == [303, *[200] * 10]
    assert answers[0].headers["location"].endswith("why=crowded_out")


# --- several cookies


def with_cookies(client: TestClient, header: str) -> Result:
    return client.simulate_get("/console/exports", headers={"User-Agent": BROWSER, "Cookie": header})


def test_a_valid_session_cookie_is_found_among_others_with_its_name(person: ConsoleBrowser) -> None:
    """Another path or another host of the domain may have set one of them; it neither grants nor blocks access."""
    ours = f"riskrelay_session={person.cookie}"
    other = f"riskrelay_session=rrs_{'B' * 43}"
    for header in (ours, f"{other}; {ours}", f"{ours}; {other}", f"a=b; {other}; {other}; {ours}; c"):
        assert with_cookies(person.client, header).status_code == 200, header
    junk = [f"riskrelay_session=rrs_{number:043d}" for number in range(199)]
    assert with_cookies(person.client, "; ".join(["riskrelay_session=x", *junk[1:], ours])).status_code == 200
    assert with_cookies(person.client, "; ".join([*junk, other, ours])).status_code == 303


def test_over_https_a_cookie_without_the_prefix_is_ignored(customer: Customer, tmp_path: Path) -> None:
    base = "https://desk.example.com"
    person = ConsoleBrowser(app_with(tmp_path, PUBLIC_BASE_URL=base), origin=base)
    person.cookie_name = "__Host-riskrelay_session"
    person.sign_in(make_console_token(customer))
    assert person.get("/exports").status_code == 200
    person.cookie_name = "riskrelay_session"
    assert person.get("/exports").headers["location"] == "/console/sign-in?next=%2Fexports"


@pytest.fixture
def other_account(person: ConsoleBrowser) -> ConsoleBrowser:
    """A user of another account with the same browser, whose cookie is planted."""
    planted = ConsoleBrowser(person.client)
    planted.sign_in(make_console_token(make_customer()))
    return planted


def test_a_form_of_another_account_is_refused(
    person: ConsoleBrowser, other_account: ConsoleBrowser, log_lines: LogLines
) -> None:
    before = everything_stored()
    person.cookie = other_account.cookie
    for path in ("/exports/exp_1/dismiss", "/sign-out"):
        answer = person.post(path)
        assert answer.status_code == 403
        assert "belongs to another account" in answer.text
    assert everything_stored() == before
    assert log_lines.text.count('"other_account"') == 2


def test_with_sessions_of_two_accounts_forms_are_refused_until_both_are_signed_out(
    person: ConsoleBrowser, other_account: ConsoleBrowser, customer: Customer, log_lines: LogLines
) -> None:
    [export_id] = make_exports(customer, 1)
    ours = person.cookie
    for planted_first in (True, False):
        both = [other_account.cookie, ours] if planted_first else [ours, other_account.cookie]
        person.cookie = f"{both[0]}; riskrelay_session={both[1]}"
        assert person.get("/exports").status_code == 200
        answer = person.post(f"/exports/{export_id}/dismiss")
        assert answer.status_code == 403
        assert "several accounts" in answer.text
    assert log_lines.text.count('"several_accounts"') == 2
    assert rows("SELECT status FROM exports") == [("prepared",)]
    assert person.post("/sign-out").status_code == 303
    assert rows("SELECT DISTINCT ended_reason FROM console_sessions") == [("signed_out",)]


def test_with_two_sessions_of_one_account_a_form_is_accepted(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    again = ConsoleBrowser(person.client)
    again.sign_in(make_console_token(customer))
    person.cookie = f"{person.cookie}; riskrelay_session={again.cookie}"
    assert person.post(f"/exports/{export_id}/dismiss").status_code == 303


def test_with_several_invalid_cookies_the_reason_is_that_of_the_ended_session(person: ConsoleBrowser) -> None:
    revoke_token(person)
    ours = f"riskrelay_session={person.cookie}"
    other = f"riskrelay_session=rrs_{'B' * 43}"
    for header in (f"{ours}; {other}", f"{other}; {ours}"):
        assert with_cookies(person.client, header).headers["location"].endswith("why=token_over"), header


def test_an_invalid_cookie_belongs_to_no_session(client: TestClient) -> None:
    for header in (
        "riskrelay_session",
        "riskrelay_session=",
        'riskrelay_session="',
        "riskrelay_session=\xff\xfe",
        "riskrelay_session=" + "x" * 5000,
        "riskrelay_session=rrs_\u00e9",
        "riskrelay_session=%00; ;;; =; ,",
        "RISKRELAY_SESSION=rrs_" + "A" * 43,
        "riskrelay_session=rrs_" + "A" * 43 + "\x0b",
    ):
        assert with_cookies(client, header).status_code == 303, header


def test_after_a_link_from_another_site_a_page_that_reloads_itself_sends_the_session_cookie(person: ConsoleBrowser) -> None:
    """SameSite=Strict withholds the cookie only from the first request."""

    def request_from(site: str, cookie: str = "") -> Result:
        headers = {"User-Agent": BROWSER, "Sec-Fetch-Site": site, **({"Cookie": cookie} if cookie else {})}
        return person.client.simulate_get("/console/exports", query_string="status=failed", headers=headers)

    arrived = request_from("cross-site")
    assert arrived.status_code == 200
    assert '<meta http-equiv="refresh" content="0">' in arrived.text
    # The page reloads itself as a same-site request: with the cookie it shows the page, without it the sign-in, and never
    # loops.
    cookie = f"riskrelay_session={person.cookie}"
    assert "Exports" in request_from("same-origin", cookie).text
    assert request_from("same-origin").status_code == 303
    assert "Exports" in request_from("cross-site", cookie).text
    assert request_from("cross-site", "riskrelay_session=x").status_code == 303


# --- redirects after a sign-in


@pytest.mark.parametrize(
    ("there", "leads_to"),
    [
        ("", "/console"),
        ("/exports", "/console/exports"),
        ("/exports?status=failed&limit=5", "/console/exports?status=failed&limit=5"),
        ("//evil.example", "/console"),
        ("/\\evil.example", "/console"),
        ("https://evil.example", "/console"),
        ("javascript:alert(1)", "/console"),
        ("/../api/ticket-exports", "/console"),
        ("/%2e%2e/docs", "/console"),
        ("/exports\r\nSet-Cookie: a=b", "/console"),
        ("/exports?a=\u4e2d", "/console"),
        ("/exports?\\", "/console"),
        (".evil.example", "/console"),
        ("@evil.example", "/console"),
        ("/" + "a" * 8000, "/console"),
    ],
)
def test_a_sign_in_redirects_only_to_pages_of_the_console(
    there: str, leads_to: str, client: TestClient, customer: Customer
) -> None:
    person = ConsoleBrowser(client)
    shown = person.get("/sign-in", f"next={there}").text
    assert ('name="next"' in shown) == (leads_to != "/console")
    assert person.post("/sign-in", token=make_console_token(customer), next=there).headers["location"] == leads_to


def test_the_sign_in_page_is_also_shown_to_signed_in_users(person: ConsoleBrowser) -> None:
    assert '<form class="sign-in"' in person.get("/sign-in").text
    assert person.get("/sign-in", "why=nonsense&done=nonsense").status_code == 200


def test_a_session_shows_only_the_data_of_its_account(client: TestClient, customer: Customer) -> None:
    session_id = make_session(customer)
    found = sessions.list_live(utc_now(), 10, account_id=customer.account_id)
    assert [session.id for session in found] == [session_id]
    assert sessions.list_live(utc_now(), 10, account_id=customer.account_id + 1) == []


# --- other paths


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/", 303),
        ("HEAD", "/console/", 303),
        ("HEAD", "/console", 303),
        ("GET", "/console/nowhere", 404),
        ("GET", "/console//exports", 404),
        ("GET", "/console/static/nothing.css", 404),
        ("GET", "/console/static/../entrance.py", 404),
        ("PUT", "/console/exports", 405),
        ("DELETE", "/console/sign-in", 405),
        ("GET", "/console/sign-out", 405),
        ("POST", "/console/exports", 405),
        ("POST", "/console", 405),
        ("OPTIONS", "/console/exports", 200),
        ("GET", "/consoles", 404),
    ],
)
def test_unknown_paths_and_methods_of_the_console_get_the_documented_status(
    method: str, path: str, status: int, client: TestClient
) -> None:
    headers = {"User-Agent": BROWSER, "Origin": ORIGIN, "Content-Type": FORM}
    answer = client.simulate_request(method, path, headers=headers)
    assert answer.status_code == status
    if path == "/console/":
        assert answer.headers["location"] == "/console/inbox"
    if status in {404, 405} and path != "/consoles":
        assert answer.headers["content-type"].startswith("text/html")
        assert "no-store" in answer.headers["cache-control"]
    if path == "/consoles":
        assert answer.json["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize("changes", [{"CONSOLE_ENABLED": "0"}, {"DEPLOYMENT_MODE": "webhook-only"}])
def test_without_the_console_its_paths_are_not_found(changes: dict[str, str], customer: Customer, tmp_path: Path) -> None:
    client = app_with(tmp_path, **changes)
    for path in ("/console", "/console/", "/console/sign-in", "/console/static/console.css", "/api/console-sessions"):
        answer = client.simulate_get(path, headers=customer.bearer)
        assert (answer.status_code, answer.json["error"]["code"]) == (404, "NOT_FOUND"), path
    assert client.simulate_post("/console/sign-in", headers={"Origin": ORIGIN, "Content-Type": FORM}).status_code == 404


def test_every_page_has_the_content_security_policy_and_the_same_origin_referrer_policy(person: ConsoleBrowser) -> None:
    """Under the API's `no-referrer`, browsers would send `Origin: null` with our own forms."""
    for path in ("/overview", "/exports", "/sessions", "/sign-in", "/nowhere"):
        headers = person.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
        assert headers["referrer-policy"] == "same-origin", path


def test_no_page_is_cached_and_files_are_revalidated(person: ConsoleBrowser) -> None:
    for path in ("/overview", "/exports", "/sessions", "/sign-in", "/nowhere"):
        assert person.get(path).headers["cache-control"] == "no-store", path
    kept = person.get("/static/console.css")
    assert (kept.status_code, kept.headers["cache-control"]) == (200, "no-cache")
