"""Sessions of the console in the table: begun, used, listed, ended, and expired."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final

import pytest

from schemas.base.console_session import Session, SessionEndReason, SignInMethod
from schemas.base.errors import Conflict, NotFound
from schemas.base.principal import ROLE_ABILITIES, Ability, Role, TokenKind, TokenPrincipal
from schemas.base.timestamps import to_ms
from storage.accounts import accounts, grants, sessions, tokens, users
from storage.accounts.sessions import IDLE_FOR, LASTS_FOR, MAX_LIVE
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from tests.support.database.query_plans import full_scans, indexes_read, statements
from tests.support.factories import NOW, Customer, make_colleague, make_customer

BROWSER: Final = "Mozilla/5.0"
COLUMNS: Final = "id, token_id, secret_sha256, browser_sha256, created_at, seen_at, ended_at, ended_reason"
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
#: Statements that make the database refuse writes of sessions, and allow them again; the key is whether it is SQLite.
TO_REFUSE_WRITES: Final = {
    False: ("SET default_transaction_read_only = on", "SET default_transaction_read_only = off"),
    True: (
        "CREATE TRIGGER refused BEFORE UPDATE ON console_sessions BEGIN SELECT RAISE(ABORT, 'no'); END",
        "DROP TRIGGER refused",
    ),
}


def principal_of(customer: Customer, *abilities: Ability) -> TokenPrincipal:
    text = tokens.create(customer.email, TokenKind.API, NOW, abilities or (Ability.CONSOLE,), "desk")[1]
    found = tokens.principal_for(text, NOW)
    assert found is not None
    return found


@pytest.fixture
def principal(customer: Customer) -> TokenPrincipal:
    return principal_of(customer)


def find(secret: str, browser: str, now: datetime) -> Session | SessionEndReason:
    [(cookie, session)] = sessions.authenticate_cookies([secret], browser, now)
    assert cookie == secret
    return session


def found(secret: str, now: datetime, browser: str = BROWSER) -> Session:
    session = find(secret, browser, now)
    assert isinstance(session, Session)
    return session


def seen_at(session: Session) -> int:
    [(at,)] = rows("SELECT seen_at FROM console_sessions WHERE id = ?", (session.id,))
    return int(at)


def test_any_number_of_cookies_takes_one_query(principal: TokenPrincipal, customer: Customer) -> None:
    junk = [f"rrs_{number:043d}" for number in range(200)]
    ours = [sessions.begin(principal, BROWSER, NOW) for _ in range(2)]
    with statements() as found_statements:
        recorded = sessions.authenticate_cookies([*junk[:100], ours[0], *junk[100:], ours[1], "x"], BROWSER, NOW)
    assert len(found_statements) == 1
    assert [cookie for cookie, each in recorded if isinstance(each, Session)] == ours
    assert {each for _, each in recorded if not isinstance(each, Session)} == {SessionEndReason.UNKNOWN}
    assert len(recorded) == 203


def test_a_session_has_the_permissions_of_its_token(principal: TokenPrincipal, customer: Customer) -> None:
    session = found(sessions.begin(principal, BROWSER, NOW), NOW)
    assert session.principal == principal
    assert (session.email, session.token_name, session.created_at, session.seen_at) == (customer.email, "desk", NOW, NOW)
    assert (session.ended_at, session.ended) == (None, None)


@pytest.mark.parametrize(
    "secret", ["", "rrs_", "rrs_" + "a" * 43, "a" * 47, "\ud800", "rrs_" + "\u0661" * 43, "rrs_" + "a" * 43 + "\n"]
)
def test_an_invalid_session_secret_belongs_to_no_session(secret: str, principal: TokenPrincipal) -> None:
    sessions.begin(principal, BROWSER, NOW)
    assert find(secret, BROWSER, NOW) is SessionEndReason.UNKNOWN


def test_a_page_view_is_recorded_once_a_minute(principal: TokenPrincipal) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    session = found(secret, NOW + MINUTE - SECOND)
    assert seen_at(session) == to_ms(NOW)
    found(secret, NOW + MINUTE)
    assert seen_at(session) == to_ms(NOW + MINUTE)
    # A request on a host whose clock is behind does not reset the time.
    found(secret, NOW - MINUTE)
    assert seen_at(session) == to_ms(NOW + MINUTE)


def test_a_page_view_that_cannot_be_recorded_is_served_anyway(
    principal: TokenPrincipal, caplog: pytest.LogCaptureFixture
) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    refuse, allow = TO_REFUSE_WRITES[is_sqlite()]
    execute(refuse)
    try:
        assert found(secret, NOW + MINUTE).seen_at == NOW
    finally:
        execute(allow)
    assert "could not be recorded" in caplog.text
    found(secret, NOW + MINUTE)
    assert seen_at(found(secret, NOW + MINUTE)) == to_ms(NOW + MINUTE)


@pytest.mark.parametrize(
    ("after", "over"),
    [
        (IDLE_FOR - SECOND, None),
        (IDLE_FOR, SessionEndReason.IDLE),
        # The clock of this host is behind.
        (-IDLE_FOR, None),
        # The clock was far ahead when the session began or was used, and was set back since.
        (-IDLE_FOR - SECOND, SessionEndReason.IDLE),
        (timedelta(days=-3650), SessionEndReason.IDLE),
    ],
)
def test_a_session_without_requests_expires(
    after: timedelta, over: SessionEndReason | None, principal: TokenPrincipal
) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    listed = sessions.list_live(NOW + after, 10)
    recorded = find(secret, BROWSER, NOW + after)
    assert (recorded if isinstance(recorded, SessionEndReason) else None) is over
    assert len(listed) == (0 if over else 1)


def test_no_session_lasts_longer_than_a_week(principal: TokenPrincipal) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    for hours in range(11, 168, 11):
        found(secret, NOW + timedelta(hours=hours))
    found(secret, NOW + LASTS_FOR - SECOND)
    assert find(secret, BROWSER, NOW + LASTS_FOR) is SessionEndReason.TOO_OLD
    assert sessions.list_live(NOW + LASTS_FOR, 10) == []


@pytest.mark.parametrize("change", ["revoked_at = 1", "expires_at = 1", """abilities = '["ticket-exports:read"]'"""])
def test_a_session_ends_with_its_token(change: str, principal: TokenPrincipal) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    execute(f"UPDATE tokens SET {change} WHERE id = ?", (principal.token_id,))  # noqa: S608 - our own words
    assert find(secret, BROWSER, NOW) is SessionEndReason.TOKEN_INVALID
    assert sessions.list_live(NOW, 10) == []


def test_a_request_of_another_browser_ends_the_session_for_both_browsers(principal: TokenPrincipal) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    assert find(secret, "curl/8", NOW) is SessionEndReason.ANOTHER_BROWSER
    assert find(secret, BROWSER, NOW) is SessionEndReason.ANOTHER_BROWSER


def test_a_token_has_at_most_ten_sessions_and_the_oldest_ends(principal: TokenPrincipal, customer: Customer) -> None:
    other = sessions.begin(principal_of(customer), BROWSER, NOW)
    secrets = [sessions.begin(principal, BROWSER, NOW + number * SECOND) for number in range(MAX_LIVE + 2)]
    now = NOW + MINUTE
    assert [find(secret, BROWSER, now) for secret in secrets[:2]] == [SessionEndReason.REPLACED] * 2
    for secret in (other, *secrets[2:]):
        found(secret, now)


def test_ended_sessions_do_not_count_towards_the_limit_of_sessions(principal: TokenPrincipal) -> None:
    first = sessions.begin(principal, BROWSER, NOW)
    for number in range(1, MAX_LIVE + 2):
        later = found(sessions.begin(principal, BROWSER, NOW + number * SECOND), NOW + number * SECOND)
        sessions.end(later.id, SessionEndReason.SIGNED_OUT, NOW + number * SECOND, principal.key)
    found(first, NOW + MINUTE)


def test_of_many_simultaneous_sign_ins_a_token_keeps_ten_sessions(principal: TokenPrincipal) -> None:
    start = threading.Barrier(6)

    def race(_number: int) -> None:
        with connection():
            start.wait()
            for _ in range(4):
                sessions.begin(principal, BROWSER, NOW)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(race, range(6)))
    assert len(sessions.list_live(NOW, 50)) == MAX_LIVE


def test_ending_an_ended_session_changes_nothing_and_adds_no_audit_entry(principal: TokenPrincipal) -> None:
    session = found(sessions.begin(principal, BROWSER, NOW), NOW)
    ended = sessions.end(session.id, SessionEndReason.REVOKED, NOW + MINUTE, "operator")
    again = sessions.end(session.id, SessionEndReason.SIGNED_OUT, NOW + 2 * MINUTE, "user:1")
    assert ended == again
    assert (ended.ended, ended.ended_at) == (SessionEndReason.REVOKED, NOW + MINUTE)
    recorded = rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (session.id,))
    assert recorded == [(principal.key, "sign_in", None), ("operator", "end_session", "revoked")]


def test_only_sessions_of_the_own_account_are_listed_and_ended(principal: TokenPrincipal, customer: Customer) -> None:
    stranger, colleague = make_customer(), make_colleague(customer)
    for each in (principal, principal_of(stranger), principal_of(colleague)):
        sessions.begin(each, BROWSER, NOW)
    whole = sessions.list_live(NOW, 10)
    own = sessions.list_live(NOW, 10, account_id=customer.account_id)
    assert {session.email for session in whole} == {customer.email, stranger.email, colleague.email}
    assert {session.email for session in own} == {customer.email, colleague.email}
    assert [session.email for session in sessions.list_live(NOW, 10, email=stranger.email)] == [stranger.email]
    [others] = {session.id for session in whole} - {session.id for session in own}
    with pytest.raises(NotFound):
        sessions.end(others, SessionEndReason.REVOKED, NOW, "user:1", customer.account_id)
    assert len(sessions.list_live(NOW, 10)) == 3


def test_a_list_of_sessions_continues_after_the_last_session_of_a_page(principal: TokenPrincipal) -> None:
    for number in range(5):
        sessions.begin(principal, BROWSER, NOW + number * SECOND)
    whole = [session.id for session in sessions.list_live(NOW + MINUTE, 10)]
    assert whole == sorted(whole, reverse=True)
    assert [session.id for session in sessions.list_live(NOW + MINUTE, 2, whole[1])] == whole[2:4]


@pytest.mark.parametrize("session_id", ["", "ses_1", "ses_" + "0" * 26, "exp_" + "0" * 26, "\0"])
def test_an_unknown_session_cannot_be_ended(session_id: str, customer: Customer) -> None:
    with pytest.raises(NotFound):
        sessions.end(session_id, SessionEndReason.REVOKED, NOW, "operator")


def test_all_remaining_sessions_can_be_ended_at_once(principal: TokenPrincipal) -> None:
    secrets = [sessions.begin(principal, BROWSER, NOW) for _ in range(3)]
    sessions.end(found(secrets[0], NOW).id, SessionEndReason.SIGNED_OUT, NOW, "user:1")
    with transaction():
        sessions.end_all(SessionEndReason.RESTORED, NOW, "operator")
    recorded = [find(secret, BROWSER, NOW) for secret in secrets]
    assert recorded == [SessionEndReason.SIGNED_OUT, SessionEndReason.RESTORED, SessionEndReason.RESTORED]
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'end_session' AND reason = 'restored'") == [(2,)]


def test_all_sessions_of_one_user_end_with_one_statement(principal: TokenPrincipal, customer: Customer) -> None:
    own = [found(sessions.begin(principal, BROWSER, NOW + number * SECOND), NOW + MINUTE).id for number in range(4)]
    other = found(sessions.begin(principal_of(make_colleague(customer)), BROWSER, NOW), NOW)
    sessions.end(own.pop(), SessionEndReason.SIGNED_OUT, NOW + MINUTE, "user:1")
    with statements() as run:
        ended = sessions.end_of_user(customer.email, SessionEndReason.REVOKED, NOW + MINUTE, "operator")
    assert [(each.id, each.ended, each.ended_at) for each in ended] == [
        (session_id, SessionEndReason.REVOKED, NOW + MINUTE) for session_id in reversed(own)
    ]
    assert len([each for each in run if each.sql.startswith("UPDATE")]) == 1
    assert [each.id for each in sessions.list_live(NOW + MINUTE, 10)] == [other.id]
    assert sessions.end_of_user(customer.email, SessionEndReason.REVOKED, NOW + MINUTE, "operator") == []
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'end_session' AND actor = 'operator'") == [(3,)]


def test_a_page_view_takes_one_statement_that_uses_an_index(principal: TokenPrincipal) -> None:
    secret = sessions.begin(principal, BROWSER, NOW)
    with statements() as asked:
        found(secret, NOW)
    assert len(asked) == 1
    with transaction():
        # With one row, PostgreSQL would read the whole table.
        copied = "SELECT id || ?, token_id, secret_sha256 || ?, browser_sha256, 1, 1, 1, 'idle' FROM console_sessions"
        for number in range(12):
            execute(f"INSERT INTO console_sessions ({COLUMNS}) {copied}", (f"-{number}", f"-{number}"))
        execute("ANALYZE console_sessions")
        assert not full_scans(asked[0], frozenset({"console_sessions"}))


def test_ended_sessions_are_not_read_by_sign_ins_or_the_list(principal: TokenPrincipal, customer: Customer) -> None:
    """A script that signs in all day leaves hundreds of thousands of ended sessions, which are kept for a month."""
    sessions.begin(principal, BROWSER, NOW)
    with transaction():
        copied = "SELECT id || ?, token_id, secret_sha256 || ?, browser_sha256, 1, 1, 1, 'crowded_out' FROM console_sessions"
        for number in range(12):
            execute(f"INSERT INTO console_sessions ({COLUMNS}) {copied}", (f"-{number}", f"-{number}"))
        execute("ANALYZE console_sessions")
    with statements() as asked:
        sessions.begin(principal, BROWSER, NOW)
        sessions.list_live(NOW, 51, account_id=customer.account_id)
    lookups = [each for each in asked if "FROM console_sessions" in each.sql and "INTO audit_entries" not in each.sql]
    assert len(lookups) == 2
    for lookup in lookups:
        assert {"console_sessions_open", "console_sessions_newest"} & indexes_read(lookup)


# --- sessions of users without a token


def begun(customer: Customer, once: str, now: datetime = NOW, method: SignInMethod = SignInMethod.OPENID_CONNECT) -> str:
    return sessions.begin_for_user(customer.user_id, method, once, BROWSER, now)


@pytest.mark.parametrize("role", Role)
def test_a_session_without_a_token_has_what_the_role_of_its_user_allows(role: Role, customer: Customer) -> None:
    users.set_role(customer.email, role, NOW, "operator")
    session = found(begun(customer, "state"), NOW)
    assert (session.email, session.token_name, session.method) == (customer.email, None, SignInMethod.OPENID_CONNECT)
    assert (session.principal.token_id, session.principal.role) == (None, role)
    assert session.principal.abilities == ROLE_ABILITIES[role]
    assert [each.id for each in sessions.list_live(NOW, 5, account_id=customer.account_id)] == [session.id]


def test_a_role_in_a_project_shows_the_console_and_without_any_the_session_is_over(customer: Customer) -> None:
    users.set_role(customer.email, None, NOW, "operator")
    secret = begun(customer, "state")
    assert find(secret, BROWSER, NOW) is SessionEndReason.USER_INVALID
    for grant in grants.list_all(customer.email):
        grants.remove(grant.id, NOW, "operator")
    accounts.grant_project(customer.email, customer.project_id, NOW, Role.TRIAGER)
    principal = found(secret, NOW).principal
    assert principal.projects == {customer.project_id: Role.TRIAGER}
    assert {Ability.CONSOLE, Ability.APPROVE_EXPORTS} <= principal.abilities
    assert Ability.MANAGE_TARGETS not in principal.abilities


def test_a_sign_in_credential_begins_only_one_session(customer: Customer) -> None:
    begun(customer, "state")
    with pytest.raises(Conflict):
        begun(customer, "state")
    assert len(sessions.list_live(NOW, 5)) == 1
    assert "state" not in str(rows("SELECT * FROM console_sessions"))


def test_disabling_a_user_ends_the_sessions_and_prevents_new_ones(customer: Customer) -> None:
    secret = begun(customer, "first")
    users.disable(customer.email, NOW, "operator")
    assert find(secret, BROWSER, NOW) is SessionEndReason.REVOKED
    with pytest.raises(Conflict):
        begun(customer, "second")


def test_a_user_has_at_most_ten_sessions_per_sign_in_method(customer: Customer, principal: TokenPrincipal) -> None:
    others = [sessions.begin(principal, BROWSER, NOW), begun(customer, "link", method=SignInMethod.EMAIL_LINK)]
    secrets = [begun(customer, f"state {number}", NOW + number * SECOND) for number in range(MAX_LIVE + 1)]
    assert find(secrets[0], BROWSER, NOW + MINUTE) is SessionEndReason.REPLACED
    for secret in (*others, *secrets[1:]):
        found(secret, NOW + MINUTE)


def test_an_id_token_is_erased_when_its_session_ends(customer: Customer) -> None:
    secret = sessions.begin_for_user(
        customer.user_id,
        SignInMethod.OPENID_CONNECT,
        "state",
        BROWSER,
        NOW,
        lambda session_id: b"sealed for " + session_id.encode(),
    )
    session = found(secret, NOW)
    [(sealed,)] = rows("SELECT id_token_sealed FROM console_sessions")
    assert bytes(sealed) == f"sealed for {session.id}".encode()
    sessions.end(session.id, SessionEndReason.SIGNED_OUT, NOW, "user:1")
    assert rows("SELECT id_token_sealed FROM console_sessions") == [(None,)]
