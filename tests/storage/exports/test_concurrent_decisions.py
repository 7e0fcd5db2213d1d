"""Decisions on one export at once: one wins, the others are repeats or conflicts, and no result is mixed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest

from schemas.base.errors import Conflict
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import digest
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.triage.decision_forms import Edit
from storage.accounts import projects
from storage.db.engine import connection, rows, transaction
from storage.exports import queries, transitions
from storage.triage import decisions, targeting
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    make_exports,
    make_failed,
    make_target,
    postback,
    record_postback,
)

LATER: Final = NOW + timedelta(seconds=60)
#: The repetitions of each race; in about half of them the decisions overlap.
RUNS: Final = 12


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Run each function in its own thread; return its result, or the string `conflict`."""
    start = threading.Barrier(len(work))

    def run(each: Callable[[], Any]) -> Any:
        with connection():
            start.wait()
            try:
                return each()
            except Conflict:
                return "conflict"

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def approval_of(export_id: str, customer: Customer, approval: Approval) -> Callable[[], Any]:
    return partial(transitions.approve, export_id, customer.account_id, approval, LATER, "user:1", LOOPBACK_POLICY)


def decided(export_id: str) -> int:
    """Return how many decisions on an export the audit log contains."""
    [(count,)] = rows("SELECT COUNT(*) FROM audit_entries WHERE subject_id = ? AND action <> 'prepare'", (export_id,))
    return int(count)


@pytest.mark.parametrize("names_the_digest", [True, False])
def test_an_approval_during_an_edit_freezes_the_complete_old_or_new_ticket(
    names_the_digest: bool, customer: Customer
) -> None:
    target = make_target(customer)
    for export_id in make_exports(customer, RUNS):
        before = queries.get(export_id)
        approval = Approval(target.id, before.ticket_digest if names_the_digest else None)
        edit = partial(decisions.edit, export_id, None, LATER, "user:2", Edit(title="Edited", severity="low"))
        approved, edited = at_once(approval_of(export_id, customer, approval), edit)
        after = queries.get(export_id)
        assert after.ticket_digest == digest(after.ticket)
        if edited == "conflict":
            assert after.ticket == before.ticket
        else:
            assert (after.ticket["title"], after.ticket["severity"], after.severity) == ("Edited", "low", "low")
        if approved == "conflict":
            assert names_the_digest
            assert after.status is ExportStatus.PREPARED
            continue
        body = queries.get_frozen_body(export_id, customer.account_id).body
        assert body is not None
        is_new = b'"title":"Edited"' in body
        assert is_new == (after.ticket["title"] == "Edited")
        assert not (is_new and names_the_digest)


def test_of_a_simultaneous_approval_dismissal_and_snooze_one_succeeds(customer: Customer) -> None:
    target = make_target(customer)
    for export_id in make_exports(customer, RUNS):
        approved, dismissed, _ = at_once(
            approval_of(export_id, customer, Approval(target.id, None)),
            partial(decisions.dismiss, export_id, None, LATER, "user:2", DismissalReason.TEST),
            partial(decisions.snooze, export_id, None, LATER, "user:3", None),
        )
        after = queries.get(export_id)
        assert [approved, dismissed].count("conflict") == 1
        assert after.status is (ExportStatus.DISMISSED if approved == "conflict" else ExportStatus.APPROVED)
        assert after.snooze is None
        assert after.version == 1 + decided(export_id)


def test_simultaneous_restoring_and_dismissing_leaves_a_consistent_state(customer: Customer) -> None:
    for export_id in make_exports(customer, RUNS):
        decisions.dismiss(export_id, None, NOW, "user:1", DismissalReason.TEST, "A test shop.")
        at_once(
            partial(decisions.restore, export_id, None, LATER, "user:1"),
            partial(decisions.restore, export_id, None, LATER, "user:2"),
            partial(decisions.dismiss, export_id, None, LATER, "user:3", DismissalReason.OTHER),
        )
        after = queries.get(export_id)
        if after.status is ExportStatus.PREPARED:
            assert (after.dismissal, after.finished_at) == (None, None)
        else:
            assert after.dismissal is not None
            assert (after.dismissal.reason, after.dismissal.note) == (DismissalReason.OTHER, None)
        assert after.version == 1 + decided(export_id)


def test_a_recovery_and_a_retry_at_another_target_schedule_an_export_once(customer: Customer) -> None:
    wrong, right = make_target(customer).id, make_target(customer).id
    ids = make_failed(customer, wrong, RUNS)

    def recover() -> int:
        with transaction():
            return transitions.recover_batch(wrong, NOW, "", 100, LATER, "operator", "rec_1")[1]

    def move() -> int:
        moved = 0
        for export_id in ids:
            try:
                targeting.retry_elsewhere(export_id, customer.account_id, right, LATER, "user:1", LOOPBACK_POLICY)
                moved += 1
            except Conflict:
                continue
        return moved

    recovered, moved = at_once(recover, move)
    assert recovered + moved == RUNS
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'retry'") == [(RUNS,)]
    found = rows("SELECT target_id, body FROM exports WHERE status = 'approved'")
    assert len(found) == RUNS
    # `make_failed` stores an empty object as the frozen body for the first target.
    assert all((target_id == right) == (right.encode() in bytes(body)) for target_id, body in found)


def test_a_double_approval_for_several_targets_makes_the_copies_once(customer: Customer) -> None:
    target_ids = tuple(make_target(customer).id for _ in range(3))
    [export_id] = make_exports(customer, 1)
    approval = ApprovalForAll(target_ids, None)

    def approve() -> list[str]:
        found = targeting.approve_for_all(export_id, customer.account_id, approval, LATER, "user:1", LOOPBACK_POLICY)
        return [each.id for each in found]

    first, *others = at_once(*[approve] * 6)
    assert others == [first] * 5
    assert rows("SELECT COUNT(*) FROM exports") == [(3,)]


def test_a_restore_during_postbacks_that_begin_another_group_leaves_one_open_group(customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")

    def post(page: int, rule: str) -> tuple[str, ...]:
        issue = {"code": rule, "title": "Missing text", "severity": "high", "location": "img"}
        body = postback(1, [issue], page={"url": f"https://shop.example/{page}"})
        return record_postback(PostbackForm().read(body), customer.project_id).ticket_exports

    for run in range(RUNS):
        rule = f"rule-{run}"
        [export_id] = post(0, rule)
        decisions.dismiss(export_id, None, NOW, "user:1", DismissalReason.DUPLICATE)
        results = at_once(
            partial(post, 1, rule), partial(decisions.restore, export_id, None, LATER, "user:1"), partial(post, 2, rule)
        )
        assert "conflict" not in results
        assert queries.get(export_id).status is ExportStatus.PREPARED
        assert len(rows("SELECT id FROM exports WHERE open_group = ?", (rule,))) == 1
        assert rows("SELECT SUM(findings_total) FROM exports WHERE rule = ?", (rule,)) == [(3,)]
