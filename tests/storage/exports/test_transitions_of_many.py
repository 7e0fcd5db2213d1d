"""Decisions on many exports at once: each export has its own result, and the number of statements is fixed."""

import json
import logging
from datetime import timedelta
from typing import Final

import pytest

from schemas.base.errors import Conflict, ValidationFailed
from schemas.exports.record import Approval
from schemas.exports.state_machine import ExportStatus
from schemas.triage.bulk_decisions import DecisionResult, ExportReference
from schemas.triage.decision_forms import DismissalRequest
from storage.db.engine import execute, rows
from storage.exports import queries, transitions
from storage.triage import decisions
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    claim_due,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_target,
)

UNKNOWN: Final = "exp_00000000000000000000000000"


def refs(*ids: str) -> list[ExportReference]:
    return [ExportReference(each) for each in ids]


def approve(customer: Customer, target_id: str, *wanted: ExportReference) -> list[DecisionResult]:
    return transitions.approve_many(
        wanted, customer.account_id, Approval(target_id, None), NOW, "user:1", LOOPBACK_POLICY, "blk_1"
    )


def outcomes(results: list[DecisionResult]) -> list[str | None]:
    return [each.error_code or (each.status if each.is_changed else f"still {each.status}") for each in results]


def audit(action: str) -> list[tuple[str, ...]]:
    return rows("SELECT subject_id, actor, reason FROM audit_entries WHERE action = ? ORDER BY id", (action,))


def test_each_export_of_an_approval_has_its_own_result_in_order(customer: Customer) -> None:
    target, other = make_target(customer).id, make_target(customer).id
    fresh, dismissed, digested, changed, unsafe = make_exports(customer, 5)
    [foreign] = make_exports(make_customer(), 1)
    here, there = make_approved(customer, target), make_approved(customer, other)
    decisions.dismiss(dismissed, None, NOW, "user:1")
    execute("UPDATE exports SET preview_problems = '[{}]' WHERE id = ?", (unsafe,))
    results = approve(
        customer,
        target,
        *refs(here, "no id", fresh, UNKNOWN, foreign, dismissed, there, unsafe),
        ExportReference(digested, ticket_digest=f"sha256:{'0' * 64}"),
        ExportReference(changed, version=7),
    )
    assert outcomes(results) == [
        "still approved",
        "NOT_FOUND",
        "approved",
        "NOT_FOUND",
        "NOT_FOUND",
        "CONFLICT",
        "CONFLICT",
        "preview_not_safe",
        "CONFLICT",
        "changed",
    ]
    assert [each.id for each in results][:3] == [here, "no id", fresh]
    assert audit("approve")[2:] == [(fresh, "user:1", "blk_1")]
    assert queries.get(foreign).status is queries.get(digested).status is ExportStatus.PREPARED


def test_an_export_that_ended_without_a_delivery_is_an_error_in_a_batch_but_not_alone(customer: Customer) -> None:
    target = make_target(customer).id
    ids = {each: make_approved(customer, target) for each in ("approved", "delivering", "retry_scheduled")}
    execute("UPDATE exports SET status = 'delivering', lease = 'lse_1' WHERE id = ?", (ids["delivering"],))
    execute("UPDATE exports SET status = 'retry_scheduled' WHERE id = ?", (ids["retry_scheduled"],))
    for ended in ("exported", "failed", "blocked"):
        [ids[ended]] = make_failed(customer, target, status=ended)
    results = approve(customer, target, *refs(*ids.values()))
    on_their_way = [f"still {each}" for each in ids if each not in {"failed", "blocked"}]
    assert outcomes(results) == [*on_their_way, "CONFLICT", "CONFLICT"]
    assert "is blocked; approve needs the status prepared" in str(results[-1].error)
    for status in ("failed", "blocked"):
        approval = Approval(target, None)
        once = transitions.approve(ids[status], customer.account_id, approval, NOW, "user:1", LOOPBACK_POLICY)
        assert once.status == status


def test_a_batch_freezes_the_same_bytes_as_single_approvals(customer: Customer) -> None:
    target = make_target(customer)
    ids = make_exports(customer, 300)
    transitions.approve(ids[0], customer.account_id, Approval(target.id, None), NOW, "user:1", LOOPBACK_POLICY)
    assert outcomes(approve(customer, target.id, *refs(*ids))) == ["still approved", *["approved"] * 299]
    bodies = {claim.export_id: json.loads(claim.body) for claim in claim_due(1000, NOW, 6.0, "worker:1")}
    assert {export_id: body["export"]["target_id"] for export_id, body in bodies.items()} == dict.fromkeys(ids, target.id)
    first, last = queries.get(ids[0]), queries.get(ids[-1])
    assert bodies[last.id] == {
        **bodies[first.id],
        "id": last.id,
        "export": {"id": last.id, "target_id": target.id, "source": last.source.record()},
        "ticket": last.ticket,
    }


def test_a_target_that_accepts_nothing_is_the_error_of_each_export(customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (target.id,))
    assert outcomes(approve(customer, target.id, *refs(*make_exports(customer, 2)))) == ["target_not_active"] * 2
    assert audit("approve") == []


def test_a_batch_is_dismissed_and_restored_and_repetitions_change_nothing(customer: Customer) -> None:
    target = make_target(customer).id
    first, second = make_exports(customer, 2)
    approved = make_approved(customer, target)
    decisions.dismiss(first, None, NOW, "user:1")
    dismissed = transitions.dismiss_many(
        refs(second, first, approved), customer.account_id, NOW, "user:2", DismissalRequest(), "blk_1"
    )
    assert outcomes(dismissed) == ["dismissed", "still dismissed", "CONFLICT"]
    assert audit("dismiss") == [(first, "user:1", None), (second, "user:2", "blk_1")]
    execute("UPDATE exports SET redacted_at = 1 WHERE id = ?", (first,))
    restored = decisions.restore_many(refs(first, second, approved), customer.account_id, NOW, "user:2")
    assert outcomes(restored) == ["CONFLICT", "prepared", "CONFLICT"]
    assert (queries.get(second).status, queries.get(second).finished_at) == (ExportStatus.PREPARED, None)


def test_restoring_a_batch_ends_snoozes_like_restoring_one_export(customer: Customer) -> None:
    one, forever, for_a_while, dismissed, waiting = make_exports(customer, 5)
    for export_id, until in ((one, None), (forever, None), (for_a_while, NOW + timedelta(days=1))):
        decisions.snooze(export_id, None, NOW, "user:1", until)
    decisions.dismiss(dismissed, None, NOW, "user:1")
    # Exports that wait for the target of an approval rule continue to wait.
    execute("UPDATE exports SET approved_by_rule_id = 'rul_1'")
    decisions.restore(one, None, NOW, "user:2")
    wanted = refs(forever, for_a_while, dismissed, waiting)
    results = decisions.restore_many(wanted, customer.account_id, NOW, "user:2")
    assert outcomes(results) == ["prepared", "prepared", "prepared", "still prepared"]
    stored = "SELECT id, snoozed_at, snoozed_until, version, approved_by_rule_id FROM exports ORDER BY id"
    assert rows(stored) == [
        (one, None, None, 3, "rul_1"),
        (forever, None, None, 3, "rul_1"),
        (for_a_while, None, None, 3, "rul_1"),
        (dismissed, None, None, 3, None),
        (waiting, None, None, 1, "rul_1"),
    ]
    audited = "SELECT subject_id, actor, status_before, status_after, reason FROM audit_entries WHERE action = 'restore'"
    assert sorted(rows(audited)) == [
        (one, "user:2", "prepared", "prepared", None),
        (forever, "user:2", "prepared", "prepared", None),
        (for_a_while, "user:2", "prepared", "prepared", None),
        (dismissed, "user:2", "dismissed", "prepared", None),
    ]
    assert outcomes(decisions.restore_many(wanted, customer.account_id, NOW, "user:2")) == ["still prepared"] * 4


def test_a_batch_is_retried_if_its_targets_are_active(customer: Customer) -> None:
    active, paused = make_target(customer).id, make_target(customer).id
    failed = [*make_failed(customer, active), *make_failed(customer, paused)]
    waiting, [prepared] = make_approved(customer, active), make_exports(customer, 1)
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (paused,))
    later = NOW + timedelta(hours=1)
    results = transitions.retry_many(refs(*failed, waiting, prepared), customer.account_id, later, "user:1")
    assert outcomes(results) == ["approved", "target_not_active", "still approved", "CONFLICT"]
    again = queries.get(failed[0])
    assert (again.due_at, again.finished_at, again.status_reason) == (later, None, None)


def test_repeating_a_single_decision_is_a_conflict(customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    with pytest.raises(Conflict, match="retry needs the status blocked or failed"):
        transitions.retry(export_id, customer.account_id, NOW, "user:1")
    unknown = Approval("tgt_00000000000000000000000000", None)
    [prepared] = make_exports(customer, 1)
    with pytest.raises(ValidationFailed):
        transitions.approve(prepared, customer.account_id, unknown, NOW, "user:1", LOOPBACK_POLICY)


def test_a_batch_of_two_hundred_takes_no_more_statements_than_one_of_two(
    customer: Customer, caplog: pytest.LogCaptureFixture
) -> None:
    target = make_target(customer).id
    few, many = make_exports(customer, 2), make_exports(customer, 200)
    counts = []
    for ids in (few, many):
        with caplog.at_level(logging.DEBUG, logger="peewee"):
            caplog.clear()
            approve(customer, target, *refs(*ids))
            counts.append(len(caplog.records))
    # SQLite gets the rows of a statement in lists of fixed lengths, so more rows take a few more statements.
    assert counts[1] <= counts[0] + 9


def test_two_hundred_snoozes_end_with_no_more_statements_than_two(
    customer: Customer, caplog: pytest.LogCaptureFixture
) -> None:
    few, many = make_exports(customer, 2), make_exports(customer, 200)
    execute("UPDATE exports SET snoozed_at = 1")
    counts = []
    for ids in (few, many):
        with caplog.at_level(logging.DEBUG, logger="peewee"):
            caplog.clear()
            assert set(outcomes(decisions.restore_many(refs(*ids), customer.account_id, NOW, "user:1"))) == {"prepared"}
            counts.append(len(caplog.records))
    # See the test above.
    assert counts[1] <= counts[0] + 9
