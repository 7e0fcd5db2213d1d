"""`riskrelay session`, as an operator types it: who is signed in, and the end of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.clock import utc_now
from storage.accounts import sessions, tokens
from storage.db.engine import close_database, rows
from tests.support.factories import make_customer, make_session
from tests.support.shell import Shell


class SessionShell(Shell):
    """Types `session` commands into an installation of its own."""

    verb = ("session",)


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionShell]:
    monkeypatch.chdir(tmp_path)
    yield SessionShell(tmp_path, sqlite_url)
    close_database()


def test_the_list_tells_who_is_signed_in(shell: SessionShell) -> None:
    assert shell.type("list").stdout == "Nobody is signed in.\n"
    with shell.database():
        ada, bert = make_customer(), make_customer()
        hers, his = make_session(ada), make_session(bert)
    listed = json.loads(shell.type("list", "--json").stdout)
    assert [(each["id"], each["user"], each["token_name"]) for each in listed] == [
        (his, bert.email, "console"),
        (hers, ada.email, "console"),
    ]
    only = shell.type("list", "--user", ada.email)
    assert hers in only.stdout
    assert his not in only.stdout
    assert shell.type("list", "--user", "nobody@example.com").exit_code == 1


def test_one_is_revoked_by_its_id_and_all_of_a_user_by_the_email(shell: SessionShell) -> None:
    with shell.database():
        ada, bert = make_customer(), make_customer()
        hers = [make_session(ada) for _ in range(3)]
        his = make_session(bert)
    one = shell.type("revoke", hers[0])
    assert one.exit_code == 0
    assert "revoked" in one.stdout
    ended = json.loads(shell.type("revoke", "--user", ada.email, "--json").stdout)
    assert {(each["id"], each["ended_reason"]) for each in ended} == {(each, "revoked") for each in hers[1:]}
    assert shell.type("revoke", "--user", ada.email).stdout == "This user was signed in nowhere.\n"
    assert [each["id"] for each in json.loads(shell.type("list", "--json").stdout)] == [his]
    with shell.database():
        actors = rows("SELECT DISTINCT actor FROM audit_entries WHERE action = 'end_session'")
    assert actors == [("operator",)]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("ses_1",), 1, "There is no such session"),
        (("--user", "nobody@example.com"), 1, "no user with this email"),
        ((), 2, "Name one session by its id"),
        (("ses_1", "--user", "a@example.com"), 2, "Name one session by its id"),
    ],
)
def test_what_is_not_there_is_not_revoked(words: tuple[str, ...], code: int, told: str, shell: SessionShell) -> None:
    with shell.database():
        make_session(make_customer())
    typed = shell.type("revoke", *words)
    assert typed.exit_code == code
    assert told in typed.stderr
    with shell.database():
        assert len(sessions.list_live(utc_now(), 10)) == 1


def test_a_user_whose_tokens_are_revoked_is_signed_in_no_more(shell: SessionShell) -> None:
    with shell.database():
        customer = make_customer()
        make_session(customer)
        tokens.revoke_all(customer.email, utc_now())
    assert shell.type("list").stdout == "Nobody is signed in.\n"
