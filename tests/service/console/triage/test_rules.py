"""Approval rules at the console: created, changed, tested, disabled, removed, and why a rule stopped."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.triage.approval_rules import ApprovalRule, RuleAction, RuleActionType
from service.console import choices
from service.http.limits import large_body_limiter
from storage.db.engine import execute
from storage.exports import queries
from storage.exports.rules import approval_rules
from storage.targets import changes
from tests.service.console.form_fields import shown_fields
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_project, make_rule, make_target
from tests.support.http.console_user import ConsoleBrowser, make_console_token

LABELS = {"name": "Team", "rule": "zap:*", "type": "label", "labels": "team\r\n shop "}


@pytest.fixture
def decider(person: ConsoleBrowser, customer: Customer) -> ConsoleBrowser:
    """A user whose token may manage rules."""
    made = ConsoleBrowser(person.client)
    made.sign_in(make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES, Ability.APPROVE_EXPORTS))
    return made


def stored(customer: Customer) -> list[ApprovalRule]:
    return list(approval_rules.list_page(customer.account_id, utc_now()))


def test_a_rule_is_created_described_changed_and_removed(
    decider: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    target = make_target(customer, name="Tracker <b>")
    assert "every ticket waits for a person" in decider.get("/rules").text
    form = decider.get("/rules/new", "rule=zap%3A10038")
    assert 'name="rule" value="zap:10038"' in form.text
    fields = {
        "name": "High ones",
        "severity_at_least": "high",
        "source-manual": "yes",
        "page_path": "/checkout/*",
        "project_id": str(customer.project_id),
        "type": "approve",
        "target_id": target.id,
    }
    assert decider.post("/rules/new", **fields).headers["location"] == "/console/rules?done=rule_saved"
    page = unescape(decider.get("/rules").text)
    for words in (
        "High ones",
        "high or higher",
        "written by hand",
        "pages /checkout/*",
        "Approve for Tracker <b> (",
        ">on<",
    ):
        assert words in page
    [rule] = stored(customer)
    assert (rule.action.type, rule.action.target_id) == (RuleActionType.APPROVE, target.id)
    edited = decider.get(f"/rules/{rule.id}")
    assert 'name="source-manual" value="yes" checked> written by hand' in edited.text
    assert decider.post(f"/rules/{rule.id}", **LABELS).status_code == 303
    [rule] = stored(customer)
    assert (rule.name, rule.action.labels, rule.match.rule) == ("Team", ("team", "shop"), "zap:*")
    assert rule.match.severity_at_least is None
    for verb, enabled in (("disable", False), ("enable", True)):
        assert decider.post(f"/rules/{rule.id}/{verb}").status_code == 303
        assert stored(customer)[0].enabled is enabled
    assert decider.post(f"/rules/{rule.id}/remove").status_code == 303
    assert stored(customer) == []


@on_sqlite
def test_a_test_shows_what_a_rule_would_have_matched(
    decider: ConsoleBrowser, customer: Customer, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, other = prepare("A high one", severity="high"), prepare("A low one", severity="low")
    fields = {"name": "Noise", "severity_at_least": "high", "type": "dismiss", "reason": "test"}
    assert decider.post("/rules/new", **fields).status_code == 303
    [rule] = stored(customer)
    resource: Any = (decider.client.app._router.find(f"/console/rules/{rule.id}/test") or (None,))[0]
    yields: list[bool] = []
    monkeypatch.setattr(large_body_limiter._YieldPoint, "__call__", lambda _: yields.append(resource._queue._is_busy))
    page = decider.get(f"/rules/{rule.id}/test")
    assert yields == [True]
    assert "<b>1</b> ticket of the last 30 days" in page.text
    assert f"/exports/{wanted}" in page.text
    assert "A low one" not in page.text
    assert "The newest" not in page.text
    monkeypatch.setattr(approval_rules, "MAX_EXAMPLES", 1)
    prepare("Another high one", severity="high")
    assert "The newest 1:" in decider.get(f"/rules/{rule.id}/test").text
    assert {queries.get(each).status.value for each in (wanted, other)} == {"prepared"}


@on_sqlite
def test_a_form_that_cannot_show_all_choices_keeps_those_of_the_rule(
    decider: ConsoleBrowser, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, project = make_target(customer), make_project(customer)
    fields = {"name": "Shop", "project_id": str(customer.project_id), "type": "approve", "target_id": target.id}
    assert decider.post("/rules/new", **fields).status_code == 303
    make_target(customer)
    for most in ("MAX_PROJECTS", "MAX_TARGETS"):
        monkeypatch.setattr(choices, most, 1)
    page = decider.get(f"/rules/{stored(customer)[0].id}").text
    assert f'<option value="{project}">' in page
    assert f'<option value="{customer.project_id}" selected>' in page
    assert f'<option value="{target.id}" selected>' in page


@on_sqlite
def test_a_rule_whose_target_was_removed_chooses_no_other_by_itself(decider: ConsoleBrowser, customer: Customer) -> None:
    target, other = make_target(customer), make_target(customer)
    assert decider.post("/rules/new", name="Shop", rule="x", type="approve", target_id=target.id).status_code == 303
    changes.remove(target.id, utc_now(), "operator")
    page = decider.get(f"/rules/{stored(customer)[0].id}").text
    assert target.id not in page
    assert f'<option value="">Target…</option>\n<option value="{other.id}">' in page


@on_sqlite
def test_a_stopped_rule_that_is_edited_says_that_it_is_still_off(decider: ConsoleBrowser, customer: Customer) -> None:
    removed, other = make_target(customer), make_target(customer)
    fields = {"name": "Shop", "rule": "x", "type": "approve"}
    assert decider.post("/rules/new", target_id=removed.id, **fields).headers["location"].endswith("?done=rule_saved")
    changes.remove(removed.id, utc_now(), "operator")
    execute("UPDATE approval_rules SET enabled = FALSE, stopped_reason = 'target_removed'")
    assert "choose another target, then turn it on." in decider.get("/rules").text
    path = f"/rules/{stored(customer)[0].id}"
    assert decider.post(path, target_id=other.id, **fields).headers["location"].endswith("?done=rule_saved_off")
    assert "It is off, and decides nothing" in decider.get("/rules", "done=rule_saved_off").text
    assert not stored(customer)[0].enabled
    assert decider.post(f"{path}/enable").status_code == 303
    assert decider.post(path, target_id=other.id, **fields).headers["location"].endswith("?done=rule_saved")


@on_sqlite
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"rule": ""}, "match"),
        ({"page_path": "checkout"}, "page_path"),
        ({"labels": ""}, "labels"),
        ({"labels": "x" * 200}, "labels"),
        ({"type": "approve", "target_id": "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"}, "target_id"),
        ({"type": "explode"}, "type"),
        ({"project_id": "999999"}, "project_id"),
        ({"project_id": "9" * 5000}, "project_id"),
    ],
)
def test_a_refused_rule_keeps_what_was_typed(
    changes: dict[str, str], field: str, decider: ConsoleBrowser, customer: Customer
) -> None:
    page = decider.post("/rules/new", **{**LABELS, "name": "Typed <name>", **changes})
    assert (page.status_code, f'id="problem-{field}"' in page.text) == (422, True)
    assert ("Typed &lt;name&gt;" in page.text) == ("name" not in changes)
    assert stored(customer) == []


@on_sqlite
@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"rule": ""}, "match", "Choose at least one condition."),
        ({"type": "approve", "target_id": ""}, "target_id", "Choose a target."),
        ({"type": "approve"}, "target_id", "Choose a target."),
        ({"labels": " "}, "labels", "Enter a label."),
    ],
)
def test_a_missing_choice_is_reported_at_its_field(
    changes: dict[str, str], field: str, text: str, decider: ConsoleBrowser
) -> None:
    assert f'id="problem-{field}">{text}</span>' in decider.post("/rules/new", **{**LABELS, **changes}).text


def test_a_rule_that_another_user_changed_is_not_overwritten(decider: ConsoleBrowser, customer: Customer) -> None:
    path = f"/rules/{make_rule(customer, RuleAction(RuleActionType.LABEL, labels=('team',))).id}"
    first, second = (shown_fields(decider.get(path), path) for _ in range(2))
    # A double click leads to the same page.
    for _ in range(2):
        assert decider.post(path, **{**first, "rule": "only:this"}).status_code == 303
    # Refused first for its name, and then because the rule has changed; the page shows the present rule.
    unnamed = decider.post(path, **{**second, "name": " "})
    assert (unnamed.status_code, "As it is now" in unnamed.text) == (422, False)
    stale = decider.post(path, **{**shown_fields(unnamed, path), "name": "Mine"})
    assert (stale.status_code, "The rule changed meanwhile" in stale.text) == (422, True)
    assert "rule only:this</bdi>. <bdi>Label team</bdi>." in stale.text.partition("As it is now")[2]
    assert stored(customer)[0].match.rule == "only:this"
    assert decider.post(path, **shown_fields(stale, path)).status_code == 303
    [rule] = stored(customer)
    assert (rule.name, rule.match.rule) == ("Mine", second["rule"] or None)


@on_sqlite
def test_a_token_without_the_ability_makes_no_rule(
    decider: ConsoleBrowser, person: ConsoleBrowser, customer: Customer
) -> None:
    make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("a",)))
    assert "/console/rules/new" in decider.get("/rules").text
    # The page does not offer what would be refused.
    listed = person.get("/rules").text
    assert ("/console/rules/" in listed, "a token that has the ability <code>approval-rules:manage" in listed) == (
        False,
        True,
    )
    assert person.get("/rules/new").status_code == 403
    execute("DELETE FROM approval_rules")
    page = person.post("/rules/new", **LABELS)
    assert (page.status_code, "approval-rules:manage" in page.text) == (403, True)
    assert stored(customer) == []


@on_sqlite
def test_the_form_names_the_missing_ability_if_the_token_may_only_label(decider: ConsoleBrowser, customer: Customer) -> None:
    assert "ticket-exports:approve" not in decider.get("/rules/new").text
    labeler = ConsoleBrowser(decider.client)
    labeler.sign_in(make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES))
    form = labeler.get("/rules/new").text
    assert "also has the ability <code>ticket-exports:approve</code>" in form
    assert re.findall(r'name="type" value="(\w+)"[^>]* checked', form) == ["label"]
    assert labeler.post("/rules/new", **LABELS).status_code == 303
    [rule] = stored(customer)
    assert "also has the ability <code>ticket-exports:approve</code>" in labeler.get(f"/rules/{rule.id}").text
    page = labeler.post("/rules/new", **{**LABELS, "type": "dismiss", "reason": "wont_fix"})
    assert (page.status_code, "ticket-exports:approve" in page.text) == (403, True)


@on_sqlite
def test_a_token_without_the_ability_removes_no_rule(
    decider: ConsoleBrowser, person: ConsoleBrowser, customer: Customer
) -> None:
    assert decider.post("/rules/new", **LABELS).status_code == 303
    [rule] = stored(customer)
    page = person.post(f"/rules/{rule.id}/remove")
    assert (page.status_code, "approval-rules:manage" in page.text) == (403, True)
    assert stored(customer) == [rule]
