"""`riskrelay rule`, as an operator runs it: creates, lists, changes, tests and deletes rules for a user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.clock import utc_now
from schemas.base.principal import Ability
from storage.accounts import tokens
from storage.db.engine import close_database
from tests.support.factories import NOW, Customer, make_colleague, make_customer, make_exports, make_target
from tests.support.processes.shell import Shell


class RuleShell(Shell):
    """Runs `rule` commands in its own installation."""

    verb = ("rule",)


@pytest.fixture
def shell(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuleShell]:
    monkeypatch.chdir(tmp_path)
    yield RuleShell(tmp_path, database_url)
    close_database()


def made(shell: RuleShell, *abilities: Ability) -> tuple[Customer, str]:
    """Store a customer and a target; return both."""
    with shell.database():
        customer = make_customer(abilities=abilities)
        return customer, make_target(customer).id


def test_a_rule_is_added_shown_changed_tested_and_removed(shell: RuleShell) -> None:
    customer, target_id = made(shell)
    added = shell.json(
        *("add", "Severe", "--user", customer.email, "--disabled", "--project", str(customer.project_id)),
        *("--severity", "high", "--source", "manual,finding", "--rule-code", "csp-*", "--page-path", "/a/*"),
        *("--approve-for", target_id),
    )
    assert (added["enabled"], added["author"]["email"]) == (False, customer.email)
    assert added["match"] == {
        "project_id": customer.project_id,
        "severity_at_least": "high",
        "sources": ["manual", "finding"],
        "rule": "csp-*",
        "page_path": "/a/*",
    }
    assert added["action"] == {"type": "approve", "target_id": target_id}
    assert shell.json("list") == [added]
    changed = shell.json("set", added["id"], "--enable", "--name", "New", "--source", "manual", "--label", "a, b")
    assert (changed["enabled"], changed["name"], changed["match"]) == (True, "New", {"sources": ["manual"]})
    assert changed["action"] == {"type": "label", "labels": ["a", "b"]}
    assert shell.json("show", added["id"]) == changed
    with shell.database():
        ids = make_exports(customer, 3, utc_now())
    tested = shell.json("test", added["id"])
    assert tested == {"matched": 3, "examined": 3, "examples": sorted(ids, reverse=True)}
    assert shell.json("remove", added["id"]) == {"id": added["id"], "removed": True}
    assert shell.run("list").stdout == "There are no approval rules.\n"
    assert "no such approval rule" in shell.refused("show", added["id"])


def test_the_author_of_a_rule_needs_a_token_with_the_abilities_of_its_action(shell: RuleShell) -> None:
    customer, target_id = made(shell, Ability.MANAGE_RULES)
    words = ("add", "Severe", "--user", customer.email, "--severity", "high")
    assert "ticket-exports:approve" in shell.refused(*words, "--approve-for", target_id)
    added = shell.json(*words, "--label", "later")
    with shell.database():
        tokens.revoke_all(customer.email, NOW)
        colleague = make_colleague(customer)
    assert shell.json("show", added["id"])["stopped_reason"] == "author_lost_ability"
    assert "author_lost_ability" in shell.refused("set", added["id"], "--enable")
    enabled = shell.json("set", added["id"], "--enable", "--user", colleague.email)
    assert (enabled["enabled"], enabled["author"]["email"]) == (True, colleague.email)


def test_incomplete_or_conflicting_rule_options_are_refused(shell: RuleShell) -> None:
    customer, target_id = made(shell)
    both = ("add", "X", "--user", customer.email, "--severity", "low", "--approve-for", target_id, "--dismiss", "test")
    assert "Use one of" in shell.run(*both).output
    assert "empty match" in shell.run("add", "X", "--user", customer.email, "--dismiss", "test").output
    assert "action" in shell.run("add", "X", "--user", customer.email, "--severity", "low").output
    assert shell.run("add", "X", "--severity", "low", "--dismiss", "test").exit_code == 2
