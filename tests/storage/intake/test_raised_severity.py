"""The ticket of a single finding has the highest severity that was reported while it is prepared."""

from datetime import timedelta
from typing import Any

import pytest

from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Export
from schemas.exports.tickets.ticket import digest
from schemas.exports.tickets.ticket_text import ticket_for_finding
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.triage.decision_forms import Edit
from storage.accounts import projects
from storage.db.engine import rows
from storage.exports import queries
from storage.intake import findings
from storage.triage import decisions, splits
from tests.support.factories import NOW, Customer, issue, postback, record_postback

#: More issues than a small postback has, so that tickets of new findings are written before the transaction.
OTHERS = [issue(f"other-{number}") for number in range(40)]


@pytest.fixture(autouse=True)
def each_finding_has_its_ticket(customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.FINDING, NOW, "test")


def post(customer: Customer, severity: str, run: int, *more: Any, **changes: Any) -> PostbackResult:
    body = postback(run, [issue("csp", severity=severity, **changes), *more])
    return record_postback(PostbackForm().read(body), customer.project_id)


def prepared(customer: Customer, **changes: Any) -> Export:
    [export_id] = post(customer, "low", 1, **changes).ticket_exports
    return queries.get(export_id)


@pytest.mark.parametrize("more", [[], OTHERS], ids=["few", "many"])
@pytest.mark.parametrize("changes", [{}, {"location": ""}, {"url": "https://shop.example/a?b=c", "title": "x" * 400}])
def test_a_higher_severity_rewrites_the_prepared_ticket(
    customer: Customer, changes: dict[str, Any], more: list[Any]
) -> None:
    before = prepared(customer, **changes)
    if more:
        post(customer, "low", 1, *more, **changes)
    assert post(customer, "critical", 2, *more, **changes).ticket_exports == (before.id,)
    after = queries.get(before.id)
    body = PostbackForm().read(postback(1, [issue("csp", severity="critical", **changes)]))
    wanted = ticket_for_finding(body.page, body.issues[0], 1, body.screenshot).record()
    assert after.ticket == wanted
    assert (after.severity, after.ticket_digest, after.version) == ("critical", digest(wanted), before.version + 1)
    actions = [action for (action,) in rows("SELECT action FROM audit_entries WHERE subject_id = ?", (before.id,))]
    assert actions == ["prepare", "extend"]


@pytest.mark.parametrize("grouping", [TicketGrouping.FINDING, TicketGrouping.RULE])
def test_a_snoozed_ticket_waits_for_a_decision_again_once_it_is_more_severe(
    customer: Customer, grouping: TicketGrouping
) -> None:
    projects.set_ticket_grouping(customer.project_id, None, grouping, NOW, "test")
    before = prepared(customer)
    decisions.snooze(before.id, None, NOW, "user:1", NOW + timedelta(days=90))
    post(customer, "low", 2)
    assert queries.get(before.id).snooze is not None
    assert post(customer, "critical", 3).ticket_exports == (before.id,)
    assert queries.get(before.id).snooze is None


def test_a_ticket_that_a_person_edited_meanwhile_keeps_the_edit(customer: Customer) -> None:
    before = prepared(customer)
    more_severe = PostbackForm().read(postback(2, [issue("csp", severity="critical"), *OTHERS]))
    early = findings.prepare_postback(more_severe, customer.project_id)
    decisions.edit(before.id, None, NOW, "user:1", Edit(title="Mine"))
    assert before.id in findings.record(early, customer.project_id, NOW, "scanner").ticket_exports
    assert (queries.get(before.id).severity, queries.get(before.id).ticket["title"]) == ("critical", "Mine")


def test_a_lower_severity_changes_nothing(customer: Customer) -> None:
    before = prepared(customer)
    post(customer, "high", 2)
    raised = queries.get(before.id)
    assert post(customer, "medium", 3).ticket_exports == ()
    assert queries.get(before.id).version == raised.version


def test_a_higher_severity_keeps_the_edits_of_a_user(customer: Customer) -> None:
    before = prepared(customer)
    decisions.edit(before.id, None, NOW, "user:1", Edit(title="Mine", severity="high", labels=("team-a",)))
    assert post(customer, "medium", 2).ticket_exports == ()
    assert post(customer, "critical", 3).ticket_exports == (before.id,)
    after = queries.get(before.id)
    assert (after.severity, after.ticket["title"], after.ticket["labels"]) == ("critical", "Mine", ["team-a"])
    assert after.ticket["evidence"] == before.ticket["evidence"]


def test_a_dismissed_ticket_is_raised_when_it_is_restored(customer: Customer) -> None:
    before = prepared(customer)
    decisions.dismiss(before.id, None, NOW, "user:1", DismissalReason.WONT_FIX)
    assert post(customer, "critical", 2).ticket_exports == ()
    assert queries.get(before.id).ticket == before.ticket
    decisions.restore(before.id, None, NOW, "user:1")
    assert queries.get(before.id).severity == "critical"


def test_the_tickets_of_a_split_group_are_raised(customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    second = issue("csp", severity="low", location="footer")
    [group] = post(customer, "low", 1, second).ticket_exports
    kept, split = splits.split(group, None, NOW, "user:1")
    assert post(customer, "high", 2, second).ticket_exports == (kept,)
    assert [queries.get(each).severity for each in (kept, split)] == ["high", "low"]
    assert "Places:" not in queries.get(kept).ticket["description"]
