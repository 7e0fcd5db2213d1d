"""Sign-ins while a user is being disabled, and two sign-ins at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from schemas.base.principal import Ability, TokenKind, TokenPrincipal
from storage.accounts import sessions, sign_in_links, tokens, users
from storage.db.engine import close_database, connection, open_database, rows
from tests.support.factories import NOW, Customer, make_customer


def test_a_session_that_begins_while_its_user_is_disabled_ends_with_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        token, _ = tokens.create(customer.email, TokenKind.API, NOW, [Ability.CONSOLE])
    caller = TokenPrincipal(
        token.id, customer.user_id, customer.account_id, TokenKind.API, frozenset(Ability), may_use_webhooks=True
    )
    is_stored, may_commit, begin = threading.Event(), threading.Event(), sessions._begin

    def slow(*arguments: Any, **columns: Any) -> None:
        begin(*arguments, **columns)
        is_stored.set()
        assert may_commit.wait(20)

    monkeypatch.setattr(sessions, "_begin", slow)

    def sign_in() -> None:
        with connection():
            sessions.begin(caller, "Browser", NOW)

    def disable() -> None:
        with connection():
            users.disable(customer.email, NOW, "operator")

    signing_in, disabling = threading.Thread(target=sign_in), threading.Thread(target=disable)
    signing_in.start()
    assert is_stored.wait(20)
    disabling.start()
    disabling.join(0.3)
    may_commit.set()
    signing_in.join(20)
    disabling.join(20)
    with connection():
        assert rows("SELECT COUNT(*) FROM console_sessions WHERE ended_at IS NULL") == [(0,)]
    close_database()


def test_two_links_of_a_new_user_may_be_used_at_once(database_url: str) -> None:
    open_database(database_url)
    with connection():
        customer = make_customer()
        links = [link_of(customer) for _ in range(2)]
    start = threading.Barrier(2)

    def use(link: sign_in_links.NewLink) -> int:
        with connection():
            start.wait(20)
            return sign_in_links.consume(link.token, link.browser, NOW)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(use, links)] == [customer.user_id] * 2
    with connection():
        assert rows("SELECT issuer, user_id FROM user_identities") == [("email", customer.user_id)]
    close_database()


def link_of(customer: Customer) -> sign_in_links.NewLink:
    """Return a sign-in link that was sent to a user."""
    link = sign_in_links.request(lambda _id, _token: b"mail", NOW)
    due = sign_in_links.claim(NOW, 60)
    assert due is not None
    assert sign_in_links.assign_recipient(due, customer.email, NOW) == customer.email
    sign_in_links.mark_sent(due)
    return link
