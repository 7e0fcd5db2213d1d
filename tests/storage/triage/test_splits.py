"""A split creates one export for each finding of a group, and loses none."""

from datetime import timedelta
from typing import Any

import pytest

from schemas.base.errors import Conflict, ExportNotFound
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Export
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.triage.approval_rules import RuleAction, RuleActionType
from schemas.triage.decision_forms import Edit
from storage.accounts import projects
from storage.db.engine import rows
from storage.exports import queries
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.targets import targets
from storage.triage import decisions, splits
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK_POLICY,
    NOW,
    Customer,
    issue,
    make_customer,
    make_exports,
    make_rule,
    make_target,
    postback,
    record_postback,
)


@pytest.fixture
def customer(customer: Customer) -> Customer:
    """The usual customer; the project groups findings by rule."""
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    return customer


def post(customer: Customer, page: str, **changes: Any) -> tuple[str, ...]:
    screenshot = {"screenshotPath": f"artifacts/{page}.png"}
    body = postback(1, [issue("csp", **changes)], page={"url": f"https://shop.example/{page}"}, artifacts=screenshot)
    return record_postback(PostbackForm().read(body), customer.project_id, NOW).ticket_exports


def grouped(customer: Customer) -> str:
    """Store a group of three findings; return its export."""
    [export_id] = post(customer, "a", severity="low", snippet="<img>", description="Say what it shows.")
    post(customer, "b", severity="high", helpUrl="https://rules.example/csp")
    post(customer, "c", severity="low", title="Another wording")
    return export_id


def split(export_id: str, customer: Customer) -> list[Export]:
    ids = splits.split(export_id, customer.account_id, NOW + timedelta(hours=1), "user:1")
    assert ids[0] == export_id
    return [queries.get(each) for each in ids]


def test_each_finding_of_a_group_gets_an_export(customer: Customer) -> None:
    before = queries.get(grouped(customer))
    kept, second, third = split(before.id, customer)
    assert [each.findings for each in (kept, second, third)] == [(1, 0)] * 3
    assert [each.severity for each in (kept, second, third)] == ["low", "high", "low"]
    assert [each.ticket["title"] for each in (kept, second, third)] == [
        "Image without alternative text on shop.example/a (img.hero)",
        "Image without alternative text on shop.example/b (img.hero)",
        "Another wording on shop.example/c (img.hero)",
    ]
    assert kept.ticket["evidence"] == {
        "snippet": "<img>",
        "rule": "csp",
        "location": "main > img.hero",
        "screenshot": "artifacts/a.png",
    }
    assert second.ticket["evidence"] == {
        "rule": "csp",
        "location": "main > img.hero",
        "screenshot": "artifacts/b.png",
        "help_url": "https://rules.example/csp",
    }
    for each in (kept, second, third):
        assert each.ticket["description"].startswith("Say what it shows.\n\nPage: https://shop.example/")
    assert kept.ticket_digest != before.ticket_digest
    assert kept.version == before.version + 1
    stored = dict(rows("SELECT export_id, id FROM findings"))
    assert {each.id: each.source.id for each in (kept, second, third)} == stored
    actions = rows("SELECT action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id DESC LIMIT 1", (kept.id,))
    assert actions == [("split", "3 findings")]


def test_later_findings_of_the_rule_begin_a_new_group(customer: Customer) -> None:
    parts = split(grouped(customer), customer)
    [new] = post(customer, "d")
    assert new not in {each.id for each in parts}
    assert post(customer, "e") == (new,)
    # The finding of this part has become more severe, so its ticket changes.
    assert post(customer, "a") == (parts[0].id,)
    assert post(customer, "a") == ()


def test_a_group_is_split_while_a_later_one_of_its_rule_is_open(customer: Customer) -> None:
    first = grouped(customer)
    decisions.dismiss(first, customer.account_id, NOW, "user:1", DismissalReason.OTHER)
    [later] = post(customer, "d")
    decisions.restore(first, customer.account_id, NOW, "user:1")
    assert [each.findings for each in split(first, customer)] == [(1, 0)] * 3
    assert post(customer, "e") == (later,)


@pytest.mark.parametrize("fixed", ["a", "b"])
def test_each_part_of_a_split_group_counts_its_own_fixed_finding(customer: Customer, fixed: str) -> None:
    export_id = grouped(customer)
    post_again = {"url": f"https://shop.example/{fixed}", "statusCode": 200}
    for run in (2, 3):
        record_postback(PostbackForm().read(postback(run, [], page=post_again)), customer.project_id, NOW)
    assert queries.get(export_id).findings == (3, 1)
    parts = {each.ticket["page_url"][-1]: each.id for each in split(export_id, customer)}
    assert {page: queries.get(each).findings for page, each in parts.items()} == {
        page: (1, int(page == fixed)) for page in "abc"
    }
    post(customer, fixed)
    assert [queries.get(each).findings for each in parts.values()] == [(1, 0)] * 3


def test_the_parts_of_a_split_group_no_longer_wait_for_the_target_of_a_rule(customer: Customer) -> None:
    target = make_target(customer)
    targets.change_status(target.id, "pause", NOW, "user:1")
    rule = make_rule(customer, RuleAction(RuleActionType.APPROVE, target.id))
    export_id = grouped(customer)
    assert rows("SELECT approved_by_rule_id FROM exports") == [(rule.id,)]
    split(export_id, customer)
    targets.change_status(target.id, "resume", NOW, "user:1", default=DEFAULT_SECRET)
    while ApprovalRules(LOOPBACK_POLICY).resume(NOW):
        pass
    assert {row[0] for row in rows("SELECT status FROM exports")} == {"prepared"}


def test_an_edited_group_keeps_the_edit_on_its_own_export(customer: Customer) -> None:
    export_id = grouped(customer)
    edit = Edit(title="Add a header", description="Please.", severity="info", labels=("security",), ticket_digest=None)
    decisions.edit(export_id, customer.account_id, NOW, "user:1", edit)
    kept, second, _ = split(export_id, customer)
    ticket = kept.ticket
    assert (ticket["title"], ticket["description"], kept.severity) == ("Add a header", "Please.", "info")
    assert (ticket["labels"], "places" in ticket["evidence"]) == (["security"], False)
    assert second.ticket["description"].startswith("Say what it shows.")


def test_a_part_that_was_not_edited_names_no_place_of_the_others(customer: Customer) -> None:
    export_id = grouped(customer)
    decisions.edit(export_id, customer.account_id, NOW, "user:1", Edit(labels=("security",)))
    kept, second, _ = split(export_id, customer)
    assert kept.ticket["labels"] == ["security"]
    assert "places" not in kept.ticket["title"]
    assert "Places:" not in kept.ticket["description"]
    assert second.ticket["page_url"] not in kept.ticket["description"]


def test_only_a_prepared_group_of_the_account_is_split(customer: Customer) -> None:
    [alone] = post(customer, "a")
    [by_hand] = make_exports(customer, 1)
    for export_id in (alone, by_hand):
        with pytest.raises(Conflict, match="needs a group"):
            splits.split(export_id, customer.account_id, NOW, "user:1")
    post(customer, "b")
    with pytest.raises(ExportNotFound):
        splits.split(alone, make_customer().account_id, NOW, "user:1")
    decisions.dismiss(alone, customer.account_id, NOW, "user:1")
    with pytest.raises(Conflict, match="dismissed; split needs the status prepared"):
        splits.split(alone, customer.account_id, NOW, "user:1")
    assert rows("SELECT COUNT(*) FROM exports") == [(2,)]


def test_a_finding_that_joined_while_the_group_was_dismissed_is_split_off_too(customer: Customer) -> None:
    [export_id] = post(customer, "a")
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1", DismissalReason.WONT_FIX)
    post(customer, "b")
    decisions.restore(export_id, customer.account_id, NOW, "user:1")
    assert [each.ticket["page_url"] for each in split(export_id, customer)] == [
        "https://shop.example/a",
        "https://shop.example/b",
    ]
