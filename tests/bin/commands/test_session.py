"""`riskrelay session`: list and revoke console sessions."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bin.cli import records
from runtime.clock import utc_now
from storage.accounts import sessions, tokens
from storage.db.engine import close_database, rows
from tests.support.factories import make_customer, make_session
from tests.support.processes.shell import Shell


class SessionShell(Shell):
    """Runs `session` commands in its own installation."""

    verb = ("session",)


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionShell]:
    monkeypatch.chdir(tmp_path)
    yield SessionShell(tmp_path, sqlite_url)
    close_database()


def test_the_list_contains_open_sessions(shell: SessionShell) -> None:
    assert shell.run("list").stdout == "There are no sessions.\n"
    with shell.database():
        ada, bert = make_customer(), make_customer()
        ada_id, bert_id = make_session(ada), make_session(bert)
    listed = json.loads(shell.run("list", "--json").stdout)
    assert [(each["id"], each["user"], each["token_name"]) for each in listed] == [
        (bert_id, bert.email, "console"),
        (ada_id, ada.email, "console"),
    ]
    only = shell.run("list", "--user", ada.email)
    assert ada_id in only.stdout
    assert bert_id not in only.stdout
    assert shell.run("list", "--user", "nobody@example.com").exit_code == 1


def test_the_list_is_complete(shell: SessionShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PAGE", 2)
    with shell.database():
        ids = [make_session(make_customer()) for _ in range(5)]
    assert [each["id"] for each in json.loads(shell.run("list", "--json").stdout)] == ids[::-1]


def test_a_session_is_revoked_by_id_and_all_sessions_of_a_user_by_email(shell: SessionShell) -> None:
    with shell.database():
        ada, bert = make_customer(), make_customer()
        ada_ids = [make_session(ada) for _ in range(3)]
        bert_id = make_session(bert)
    one = shell.run("revoke", ada_ids[0])
    assert one.exit_code == 0
    assert "revoked" in one.stdout
    ended = json.loads(shell.run("revoke", "--user", ada.email, "--json").stdout)
    assert {(each["id"], each["ended_reason"]) for each in ended} == {(each, "revoked") for each in ada_ids[1:]}
    assert shell.run("revoke", "--user", ada.email).stdout == "This user has no sessions.\n"
    assert [each["id"] for each in json.loads(shell.run("list", "--json").stdout)] == [bert_id]
    with shell.database():
        actors = rows("SELECT DISTINCT actor FROM audit_entries WHERE action = 'end_session'")
    assert actors == [("operator",)]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("ses_1",), 1, "There is no such session"),
        (("--user", "nobody@example.com"), 1, "no user with this email"),
        ((), 2, "Use either a session id or --user"),
        (("ses_1", "--user", "a@example.com"), 2, "Use either a session id or --user"),
    ],
)
def test_invalid_arguments_revoke_nothing(arguments: tuple[str, ...], code: int, error: str, shell: SessionShell) -> None:
    with shell.database():
        make_session(make_customer())
    result = shell.run("revoke", *arguments)
    assert result.exit_code == code
    assert error in result.stderr
    with shell.database():
        assert len(sessions.list_live(utc_now(), 10)) == 1


def test_revoking_the_tokens_of_a_user_ends_the_sessions(shell: SessionShell) -> None:
    with shell.database():
        customer = make_customer()
        make_session(customer)
        tokens.revoke_all(customer.email, utc_now())
    assert shell.run("list").stdout == "There are no sessions.\n"
