"""`riskrelay target add` and `set` with trackers: the settings come from options, the token from standard input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bin.cli.provider_options import settings_from
from runtime.clock import utc_now
from storage.db.engine import close_database, execute, rows
from storage.targets import validations
from tests.support.factories import LOOPBACK, make_approved, make_customer, make_exports
from tests.support.processes.shell import Shell

TOKEN: Final = "cAnArY-of-a-token"
PAGE: Final = "http://127.0.0.1:9/acme/shop"
#: The values of `--setting`, and the resulting settings for Jira.
TYPED: Final[list[tuple[list[str], dict[str, Any]]]] = [
    (["project=SHOP", "issue_type=Bug"], {"project": "SHOP", "issue_type": "Bug"}),
    (["labels=a,b", "labels=c"], {"labels": ["a,b", "c"]}),
    (["api_version=2"], {"api_version": 2}),
    (["api_version=two"], {"api_version": "two"}),
    (
        ["priority_by_severity.high=High", "priority_by_severity.low=Low"],
        {"priority_by_severity": {"high": "High", "low": "Low"}},
    ),
    (["issue_type=a=b"], {"issue_type": "a=b"}),
]


@pytest.fixture
def shell(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """An installation with one account, which allows loopback targets."""
    monkeypatch.chdir(tmp_path)
    made = Shell(tmp_path, database_url, **LOOPBACK)
    with made.database():
        make_customer()
    yield made
    close_database()


def test_a_tracker_is_added_with_its_token_from_standard_input(shell: Shell) -> None:
    words = ("target", "add", "gitea", PAGE, "--label", "website-risk", "--label", "shop", "--max-per-minute", "30")
    made = shell.json(*words, standard_input=f"{TOKEN}\n")
    assert (made["provider_key"], made["base_url"], made["status"]) == ("gitea", PAGE, "active")
    assert made["provider_settings"] == {"labels": ["website-risk", "shop"]}
    assert (made["name"], made["max_per_minute"], made["secret"]["configured"]) == ("127.0.0.1:9/acme/shop", 30, True)
    with shell.database():
        job = validations.claim_next(utc_now(), 6)
        stored = rows("SELECT * FROM targets")
    assert job is not None
    assert job.target_id == made["id"]
    assert TOKEN not in json.dumps(made) + repr(stored)
    listed = shell.run("target", "list").stdout
    assert all(text in listed for text in ("provider_key", "gitea", PAGE))
    assert "gitea" in shell.run("target", "show", made["id"]).stdout


@pytest.mark.parametrize("typed", ["", "\n"])
def test_a_tracker_is_inactive_until_its_token_is_set(shell: Shell, typed: str) -> None:
    added = shell.run("target", "add", "gitea", PAGE, "--name", "Shop team", "--json", standard_input=typed)
    made = json.loads(added.stdout)
    assert f"secret set target {made['id']}" in added.stderr
    assert (made["name"], made["status"], made["status_reason"]) == ("Shop team", "inactive", "no_secret")
    reported = shell.run("secret", "set", "target", made["id"], standard_input=TOKEN)
    assert (reported.exit_code, TOKEN in reported.output) == (0, False)
    assert shell.json("target", "show", made["id"])["status"] == "active"


@pytest.mark.parametrize("typed", ["short", "two\nlines are no token", "x" * 5000])
def test_an_invalid_token_is_refused_and_no_target_is_created(shell: Shell, typed: str) -> None:
    reported = shell.refused("target", "add", "gitea", PAGE, standard_input=typed)
    assert ("at least 8 bytes" in reported or "one line" in reported, typed in reported) == (True, False)
    # The tracker generates the token; no command of RiskRelay does.
    assert "openssl" not in reported
    assert shell.json("target", "list") == []


def test_a_webhook_can_be_added_by_its_provider_key(shell: Shell) -> None:
    made = shell.json("target", "add", "generic_webhook", "http://127.0.0.1:9/hook", "--name", "Our tracker")
    assert (made["provider_key"], made["name"], made["provider_settings"]) == ("generic_webhook", "Our tracker", {})


# the words after `target add`, the exit code, a part of the message
REFUSED: Final[list[tuple[tuple[str, ...], int, str]]] = [
    (("gitea",), 2, "Missing argument 'URL'"),
    (("gitea", "--url", PAGE), 2, "Use PROVIDER URL"),
    (("Tracker", PAGE, "--url", PAGE), 2, "Use PROVIDER URL"),
    (("gitea", PAGE, "--setting", "labels"), 2, "NAME=VALUE"),
    (("gitea", PAGE, "--account", "7"), 1, "There is no account 7"),
    (("trello", PAGE), 1, "/provider_key"),
    (("trello", PAGE, "--label", "risk"), 1, "/provider_key"),
    (("jira", PAGE, "--setting", "issue_typ=Bug"), 2, "`issue_typ`; it has"),
    (("gitea", "http://127.0.0.1:9/"), 1, "/base_url"),
    (("gitea", PAGE, "--setting", "project=SHOP"), 2, "gitea has no setting `project`; it has"),
    (("jira", "http://127.0.0.1:9"), 1, "/provider_settings/project"),
    (("generic_webhook", PAGE, "--label", "risk"), 2, "it has none"),
]


@pytest.mark.parametrize(("words", "exit_code", "reason"), REFUSED)
def test_invalid_target_options_are_refused_with_the_reason(
    shell: Shell, words: tuple[str, ...], exit_code: int, reason: str
) -> None:
    reported = shell.run("target", "add", *words, standard_input=TOKEN)
    assert (reported.exit_code, reported.stdout, TOKEN in reported.stderr) == (exit_code, "", False)
    assert reason in reported.stderr
    assert shell.json("target", "list") == []


def test_with_several_accounts_the_account_option_is_required(shell: Shell) -> None:
    with shell.database():
        other = make_customer().account_id
    assert "There are 2 accounts; use --account" in shell.refused("target", "add", "gitea", PAGE, standard_input="")
    made = shell.json("target", "add", "gitea", PAGE, "--account", str(other), standard_input="")
    assert made["status"] == "inactive"


def test_set_changes_the_given_provider_settings_and_keeps_the_rest(shell: Shell) -> None:
    words = ("target", "add", "jira", "http://127.0.0.1:9", "--setting", "project=SHOP", "--setting", "issue_type=Bug")
    made = shell.json(*words, standard_input=TOKEN)
    changed = shell.json(
        *(
            "target",
            "set",
            made["id"],
            "--setting",
            "issue_type=",
            "--setting",
            "priority_by_severity.high=High",
            "--label",
            "risk",
        )
    )
    expected = {"project": "SHOP", "priority_by_severity": {"high": "High"}, "labels": ["risk"]}
    assert (changed["provider_settings"], changed["secret"]) == (expected, made["secret"])
    assert "/provider_settings/project" in shell.refused("target", "set", made["id"], "--setting", "project=")
    assert shell.json("target", "show", made["id"])["provider_settings"] == expected


def test_a_tracker_moved_to_another_server_loses_its_token(shell: Shell) -> None:
    made = shell.json("target", "add", "gitea", PAGE, standard_input=TOKEN)
    moved = shell.json("target", "set", made["id"], "--url", "http://127.0.0.2:9/acme/shop")
    assert (moved["status"], moved["secret"]["configured"]) == ("inactive", False)


@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_setting_options_are_converted_to_provider_settings_of_the_api(typed: list[str], expected: dict[str, Any]) -> None:
    assert settings_from("jira", typed, ()) == expected
    labels = ["risk", *expected.get("labels", ())]
    assert settings_from("jira", typed, ("risk",), {"assignee": "ada"}) == {**expected, "assignee": "ada", "labels": labels}


def test_setting_a_token_of_a_blocked_tracker_prints_the_resume_command(shell: Shell) -> None:
    made = shell.json("target", "add", "gitea", PAGE, standard_input=TOKEN)
    words = ("secret", "set", "target", made["id"])
    assert shell.run(*words, standard_input=TOKEN).stderr == ""
    with shell.database():
        execute("UPDATE targets SET status = 'blocked', status_reason = 'tracker_token_rejected'")
    assert f"target resume {made['id']}" in shell.run(*words, standard_input=TOKEN).stderr


def test_the_link_of_a_delivered_ticket_is_printed(shell: Shell) -> None:
    with shell.database():
        customer = make_customer()
        [prepared] = make_exports(customer, 1)
    made = shell.json("target", "add", "gitea", PAGE, "--account", str(customer.account_id), standard_input=TOKEN)
    assert "has no link at a target: it is prepared" in shell.refused("export", "open", prepared)
    with shell.database():
        export_id = make_approved(customer, made["id"])
        execute("UPDATE exports SET status = 'exported', due_at = NULL, provider_ticket_id = '7' WHERE id = ?", (export_id,))
    assert "its receiver named no link" in shell.refused("export", "open", export_id)
    with shell.database():
        execute("UPDATE exports SET provider_ticket_url = ? WHERE id = ?", (f"{PAGE}/issues/7", export_id))
    assert shell.run("export", "open", export_id).stdout == f"{PAGE}/issues/7\n"
    assert shell.json("export", "open", export_id) == {"id": "7", "url": f"{PAGE}/issues/7"}
    assert f"{PAGE}/issues/7" in shell.run("export", "show", export_id).stdout
    assert "no such ticket export" in shell.refused("export", "open", "exp_none")
