"""Sessions of the console: a page, an API and a way to revoke them, each limited to the own account."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from falcon.testing import TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from storage.db.engine import rows
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_colleague, make_customer, make_session
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import JSON, SESSIONS

# The queries are tested on both databases elsewhere.
pytestmark = on_sqlite


@pytest.fixture
def bearer(customer: Customer) -> dict[str, str]:
    return {"Authorization": f"Bearer {make_console_token(customer)}"}


def test_the_page_lists_the_sessions_of_the_account_and_marks_the_current_one(
    person: ConsoleBrowser, customer: Customer
) -> None:
    colleague = make_colleague(customer)
    stranger = make_customer()
    hers, others = make_session(colleague), make_session(stranger)
    page = person.get("/sessions").text
    assert page.count("(this browser)") == 1
    assert f"<td>{customer.email} (this browser)</td>" in page
    assert f"<td>{colleague.email}</td>" in page
    assert hers in page
    assert others not in page
    assert stranger.email not in page


def test_the_list_of_sessions_is_paged(person: ConsoleBrowser, customer: Customer) -> None:
    made = {make_session(customer, f"Browser {number}") for number in range(4)}
    first = person.get("/sessions", "limit=3").text
    assert 'rel="next"' in first
    following = first.split('rel="next" href="')[1].split('"')[0].partition("?")[2].replace("&amp;", "&")
    second = person.get("/sessions", following).text
    assert 'rel="next"' not in second
    shown = [{each for each in made if each in page} for page in (first, second)]
    assert shown[0] | shown[1] == made
    assert not shown[0] & shown[1]
    assert person.get("/sessions", "cursor=x").status_code == 422


def test_a_revoked_session_ends_at_once(person: ConsoleBrowser, customer: Customer) -> None:
    other = ConsoleBrowser(person.client, "Another browser")
    other.sign_in(make_console_token(customer))
    [session_id] = {row[0] for row in rows("SELECT id FROM console_sessions")} - {mine(person)}
    done = person.post(f"/sessions/{session_id}/revoke")
    assert (done.status_code, done.headers["location"]) == (303, "/console/sessions?done=session_revoked")
    assert session_id not in person.get("/sessions").text
    assert other.get("/exports").headers["location"].endswith("why=revoked")
    assert rows("SELECT actor FROM audit_entries WHERE action = 'end_session'") == [(f"user:{customer.user_id}",)]


def mine(person: ConsoleBrowser) -> str:
    """Return the ID of the user's own session."""
    own = person.get("/sessions").text.split("(this browser)")[1]
    return own.split("/console/sessions/")[1].split("/")[0]


def test_the_current_session_can_be_revoked_too(person: ConsoleBrowser) -> None:
    person.post(f"/sessions/{mine(person)}/revoke")
    assert person.get("/sessions").headers["location"].endswith("why=revoked")


def test_another_accounts_session_is_not_found(person: ConsoleBrowser, bearer: dict[str, str]) -> None:
    others = make_session(make_customer())
    for session_id in (others, "ses_1", "ses_" + "0" * 26):
        assert person.post(f"/sessions/{session_id}/revoke").status_code == 404
        answer = person.client.simulate_post(f"{SESSIONS}/{session_id}/revoke", headers={**bearer, **JSON}, body=b"{}")
        assert answer.status_code == 404
    assert rows("SELECT ended_at FROM console_sessions WHERE id = ?", (others,)) == [(None,)]


def test_the_api_lists_and_revokes_console_sessions(
    person: ConsoleBrowser, customer: Customer, bearer: dict[str, str]
) -> None:
    listed = person.client.simulate_get(SESSIONS, headers=bearer)
    assert listed.status_code == 200
    [shown] = listed.json["items"]
    assert shown["id"] == mine(person)
    assert (shown["user"], shown["token_name"], shown["ended_at"]) == (customer.email, "console", None)
    path = f"{SESSIONS}/{shown['id']}/revoke"
    revoked = person.client.simulate_post(path, headers=bearer)
    assert (revoked.status_code, revoked.json["ended_reason"]) == (200, "revoked")
    # A repeated request gets the same response and changes nothing.
    assert person.client.simulate_post(path, headers=bearer).json == revoked.json
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'end_session'") == [(1,)]
    assert person.client.simulate_get(SESSIONS, headers=bearer).json["items"] == []


def test_a_dry_run_ends_nothing(person: ConsoleBrowser, bearer: dict[str, str]) -> None:
    answer = person.client.simulate_post(f"{SESSIONS}/{mine(person)}/revoke", headers=bearer, query_string="dry_run=true")
    assert answer.status_code == 422
    assert person.get("/sessions").status_code == 200


def revoke_one(customer: Customer) -> None:
    [(token_id,)] = rows("SELECT id FROM tokens WHERE name = 'console'")
    tokens.revoke(token_id, utc_now())


def revoke_all(customer: Customer) -> None:
    tokens.revoke_all(customer.email, utc_now())


@pytest.mark.parametrize("revoke", [revoke_one, revoke_all])
def test_revoking_a_token_ends_its_sessions(
    revoke: Callable[[Customer], None], client: TestClient, customer: Customer
) -> None:
    token = make_console_token(customer)
    people = [ConsoleBrowser(client, "One"), ConsoleBrowser(client, "Two")]
    for person in people:
        person.sign_in(token)
    keeper = tokens.create(make_colleague(customer).email, TokenKind.API, utc_now(), (Ability.CONSOLE,))[1]
    revoke(customer)
    assert [person.get("/exports").status_code for person in people] == [303, 303]
    listed = client.simulate_get(SESSIONS, headers={"Authorization": f"Bearer {keeper}"})
    assert listed.json["items"] == []


def test_a_session_unused_for_twelve_hours_is_not_listed(person: ConsoleBrowser, bearer: dict[str, str]) -> None:
    with freeze_time(utc_now() + timedelta(hours=12, minutes=1)):
        assert person.client.simulate_get(SESSIONS, headers=bearer).json["items"] == []
