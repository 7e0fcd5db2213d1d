"""Prepared exports are edited, dismissed, restored and snoozed, each in one transaction with an audit entry."""

from datetime import timedelta
from typing import Any, Final

import pytest

from schemas.base.errors import Conflict, ExportNotFound, ValidationFailed
from schemas.exports.decisions import Dismissal, DismissalReason, Snooze
from schemas.exports.record import Approval, Export
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket, digest
from schemas.triage.decision_forms import Edit
from storage.db.engine import execute, rows, transaction
from storage.exports import queries, transitions
from storage.exports.rows import Draft
from storage.triage import decisions
from tests.support.factories import LOOPBACK_POLICY, NOW, Customer, in_s, make_customer, make_exports, make_target

USER: Final = "user:1"


def audit_log(export_id: str) -> list[tuple[Any, ...]]:
    return rows(
        "SELECT actor, action, status_before, status_after, reason FROM audit_entries WHERE subject_id = ? ORDER BY id",
        (export_id,),
    )


def make_group(customer: Customer, rule: str = "img-alt") -> str:
    """Store an open group of a rule; return its ID."""
    places = [{"url": "https://shop.example/", "location": "img.hero"}, {"url": "https://shop.example/b", "location": ""}]
    ticket = Ticket(
        "Missing text",
        "On 2 pages.",
        "high",
        None,
        ("severity:high",),
        {"rule": rule, "places": places, "findings": 2, "pages": 2, "sites": []},
    )
    draft = Draft(customer.account_id, customer.project_id, Source("manual", ""), ticket, rule, 2, rule)
    with transaction():
        return transitions.prepare([draft], NOW, "scanner")[0]


def open_group(export_id: str) -> str | None:
    [(group,)] = rows("SELECT open_group FROM exports WHERE id = ?", (export_id,))
    return group if group is None else str(group)


def edit(export_id: str, **parts: Any) -> Export:
    return decisions.edit(export_id, None, in_s(1), USER, Edit(**parts))


# --- edit


def test_an_edit_replaces_parts_of_the_ticket_and_keeps_the_original(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    after = edit(export_id, title="Name the field", severity="low", labels=("a11y", "form"))
    assert after.ticket == {**before.ticket, "title": "Name the field", "severity": "low", "labels": ["a11y", "form"]}
    assert (after.ticket_digest, after.severity) == (digest(after.ticket), "low")
    assert after.original_ticket == before.ticket
    assert after.version == before.version + 1
    assert audit_log(export_id)[1:] == [(USER, "edit", "prepared", "prepared", None)]


def test_the_first_original_stays_over_several_edits(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    original = queries.get(export_id).ticket
    edit(export_id, title="First")
    assert edit(export_id, title="Second").original_ticket == original


def test_an_edit_back_to_the_original_leaves_no_original(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    edit(export_id, title="Another", severity="low")
    after = edit(export_id, title=before.ticket["title"], severity="high")
    assert after.original_ticket is None
    assert (after.ticket, after.ticket_digest) == (before.ticket, before.ticket_digest)


def test_an_edit_that_changes_nothing_writes_nothing(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    assert edit(export_id, title=before.ticket["title"]) == before
    assert len(audit_log(export_id)) == 1


def test_a_label_of_the_severity_follows_a_new_severity_unless_labels_are_given(customer: Customer) -> None:
    export_id = make_group(customer)
    assert edit(export_id, severity="low").ticket["labels"] == ["severity:low"]
    assert edit(export_id, severity="info", labels=("mine",)).ticket["labels"] == ["mine"]


def test_an_edit_with_the_digest_of_another_ticket_is_a_conflict(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    edited = edit(export_id, title="First", ticket_digest=before.ticket_digest)
    with pytest.raises(Conflict, match="digest"):
        edit(export_id, title="Second", ticket_digest=before.ticket_digest)
    assert queries.get(export_id) == edited


@pytest.mark.parametrize("how", ["approve", "dismiss"])
def test_only_a_prepared_export_is_edited_or_snoozed(how: str, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    if how == "approve":
        approval = Approval(make_target(customer).id, None)
        transitions.approve(export_id, customer.account_id, approval, NOW, USER, LOOPBACK_POLICY)
    else:
        decisions.dismiss(export_id, None, NOW, USER)
    before = queries.get(export_id)
    with pytest.raises(Conflict, match="edit needs the status prepared"):
        edit(export_id, title="Another")
    with pytest.raises(Conflict, match="snooze needs the status prepared"):
        decisions.snooze(export_id, None, NOW, USER, None)
    assert queries.get(export_id) == before


def test_an_edit_can_cause_and_remove_a_problem_of_the_preview(customer: Customer) -> None:
    # An email address or a name alone is allowed; together they are an order record.
    ticket = Ticket("Order form", "The name is wrong.", "info", None, (), {"email": "a@b.example", "customer_name": "A"})
    with transaction():
        draft = Draft(customer.account_id, None, Source("manual", ""), ticket)
        [export_id] = transitions.prepare([draft], NOW, USER)
    before = queries.get(export_id).preview_problems
    assert before
    leaked = "DB_PASSWORD=hunter2hunter2"
    assert len(edit(export_id, description=leaked).preview_problems) > len(before)
    assert edit(export_id, description="The name is wrong again.").preview_problems == before


def test_the_approval_freezes_the_edited_ticket(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    seen = queries.get(export_id).ticket_digest
    edited = edit(export_id, title="Name the field")
    target = make_target(customer)
    with pytest.raises(Conflict, match="digest"):
        transitions.approve(export_id, customer.account_id, Approval(target.id, seen), NOW, USER, LOOPBACK_POLICY)
    approval = Approval(target.id, edited.ticket_digest)
    transitions.approve(export_id, customer.account_id, approval, NOW, USER, LOOPBACK_POLICY)
    body = queries.get_frozen_body(export_id, customer.account_id).body
    assert body is not None
    assert b'"title":"Name the field"' in body


# --- dismiss


def test_a_dismissal_keeps_its_reason_and_note(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    decisions.snooze(export_id, None, NOW, USER, None)
    export = decisions.dismiss(export_id, None, in_s(1), USER, DismissalReason.TEST, "A test shop.")
    assert export.dismissal == Dismissal(DismissalReason.TEST, "A test shop.", in_s(1))
    assert export.snooze is None
    assert audit_log(export_id)[-1] == (USER, "dismiss", "prepared", "dismissed", "test")


def test_the_same_dismissal_again_changes_nothing_and_another_one_is_a_conflict(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    first = decisions.dismiss(export_id, None, NOW, USER, DismissalReason.TEST, "A test shop.")
    assert decisions.dismiss(export_id, None, in_s(9), "user:2", DismissalReason.TEST, "A test shop.") == first
    for other in ((DismissalReason.OTHER, "A test shop."), (DismissalReason.TEST, None), (None, None)):
        with pytest.raises(Conflict, match="is dismissed; dismiss needs the status prepared"):
            decisions.dismiss(export_id, None, in_s(9), USER, *other)
    assert queries.get(export_id) == first


@pytest.mark.parametrize("reason", [None, *DismissalReason])
def test_only_a_false_positive_and_wont_fix_leave_a_group_open_for_new_places(
    reason: DismissalReason | None, customer: Customer
) -> None:
    export_id = make_group(customer)
    decisions.dismiss(export_id, None, NOW, USER, reason)
    stays = reason in {DismissalReason.FALSE_POSITIVE, DismissalReason.WONT_FIX}
    assert open_group(export_id) == ("img-alt" if stays else None)


# --- restore


@pytest.mark.parametrize("reason", [None, DismissalReason.WONT_FIX])
def test_a_dismissed_group_is_restored_as_it_was(reason: DismissalReason | None, customer: Customer) -> None:
    export_id = make_group(customer)
    before = queries.get(export_id)
    decisions.dismiss(export_id, None, NOW, USER, reason, "Later.")
    after = decisions.restore(export_id, None, in_s(1), USER)
    assert (after.status, after.finished_at, after.dismissal) == (ExportStatus.PREPARED, None, None)
    assert (after.ticket, after.ticket_digest, open_group(export_id)) == (before.ticket, before.ticket_digest, "img-alt")
    assert after.version == before.version + 2
    assert audit_log(export_id)[-1] == (USER, "restore", "dismissed", "prepared", None)
    # Nothing of the dismissal remains that the next one could inherit.
    assert rows("SELECT dismissal_reason, dismissal_note FROM exports") == [(None, None)]


def test_a_restored_group_does_not_replace_the_group_that_was_opened_since(customer: Customer) -> None:
    first = make_group(customer)
    decisions.dismiss(first, None, NOW, USER, DismissalReason.DUPLICATE)
    second = make_group(customer)
    assert decisions.restore(first, None, in_s(1), USER).status is ExportStatus.PREPARED
    assert (open_group(first), open_group(second)) == (None, "img-alt")


def test_an_export_of_one_finding_is_restored_without_a_group(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    # A scanner may use such a name in its evidence.
    execute("UPDATE exports SET rule = 'img-alt', ticket = replace(ticket, '\"rule\"', '\"places\"')")
    decisions.dismiss(export_id, None, NOW, USER)
    decisions.restore(export_id, None, in_s(1), USER)
    assert open_group(export_id) is None


def test_a_manual_ticket_that_looks_like_a_group_is_restored_unchanged(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    evidence = '"evidence":{"places":["x"],"findings":2,"pages":{},"sites":5}'
    execute("UPDATE exports SET ticket = REPLACE(ticket, ?, ?)", ('"evidence":{"rule":"label"}', evidence))
    before = queries.get(export_id).ticket
    assert before["evidence"]["findings"] == 2
    decisions.dismiss(export_id, None, NOW, USER)
    assert decisions.restore(export_id, None, in_s(1), USER).ticket == before


def test_restoring_a_prepared_export_changes_nothing(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    assert decisions.restore(export_id, None, in_s(1), USER) == before
    assert len(audit_log(export_id)) == 1


def test_a_redacted_export_is_not_restored(customer: Customer) -> None:
    export_id = make_group(customer)
    edit(export_id, title="About Erika Mustermann")
    decisions.dismiss(export_id, None, NOW, USER, DismissalReason.WONT_FIX, "Erika Mustermann asked for it.")
    with transaction():
        transitions.redact([export_id], in_s(1), "worker")
    with pytest.raises(Conflict, match="redacted"):
        decisions.restore(export_id, None, in_s(2), USER)
    [row] = rows("SELECT original_ticket, dismissal_note, open_group FROM exports WHERE id = ?", (export_id,))
    assert row == (None, None, None)


# --- snooze


@pytest.mark.parametrize("until", [None, NOW + timedelta(days=14, microseconds=7)])
def test_a_snoozed_export_stays_prepared_until_it_is_restored(until: Any, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    snoozed = decisions.snooze(export_id, None, NOW, USER, until)
    at = None if until is None else NOW + timedelta(days=14)
    assert (snoozed.status, snoozed.snooze, snoozed.version) == (ExportStatus.PREPARED, Snooze(at), 2)
    assert decisions.snooze(export_id, None, in_s(1), USER, until) == snoozed
    restored = decisions.restore(export_id, None, in_s(2), USER)
    assert (restored.snooze, restored.version) == (None, 3)
    reason = None if until is None else "2026-03-15T12:00:00.000Z"
    assert audit_log(export_id)[1:] == [
        (USER, "snooze", "prepared", "prepared", reason),
        (USER, "restore", "prepared", "prepared", None),
    ]


def test_a_snooze_is_replaced_by_another_snooze_and_ended_by_an_approval(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    decisions.snooze(export_id, None, NOW, USER, None)
    assert decisions.snooze(export_id, None, NOW, USER, in_s(60)).snooze == Snooze(in_s(60))
    approval = Approval(make_target(customer).id, None)
    approved = transitions.approve(export_id, customer.account_id, approval, NOW, USER, LOOPBACK_POLICY)
    assert approved.snooze is None


def test_a_snooze_ends_with_a_redaction(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    decisions.snooze(export_id, None, NOW, USER, None)
    with transaction():
        transitions.redact([export_id], NOW, "compliance")
    assert queries.get(export_id).snooze is None


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_snooze_until_a_past_time_is_refused(seconds: int, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    with pytest.raises(ValidationFailed) as refused:
        decisions.snooze(export_id, None, NOW, USER, in_s(seconds))
    assert [(each.path, each.code) for each in refused.value.problems] == [("/until", "in_the_past")]
    assert queries.get(export_id).snooze is None


def test_decisions_on_another_accounts_export_are_not_found(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    stranger = make_customer().account_id
    before = queries.get(export_id)
    with pytest.raises(ExportNotFound):
        decisions.edit(export_id, stranger, NOW, USER, Edit(title="Mine"))
    with pytest.raises(ExportNotFound):
        decisions.snooze(export_id, stranger, NOW, USER, None)
    with pytest.raises(ExportNotFound):
        decisions.restore(export_id, stranger, NOW, USER)
    assert queries.get(export_id) == before
