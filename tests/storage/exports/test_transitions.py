"""Exports are prepared, approved, claimed and recorded; each transition is a compare-and-swap with an audit entry."""

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from peewee import IntegrityError

from schemas.base.errors import Conflict, ExportNotFound, ValidationFailed
from schemas.base.timestamps import to_ms
from schemas.exports.delivery import Claim
from schemas.exports.record import Approval, Export, Preparation, PreparationForm, as_shown
from schemas.exports.state_machine import FINISHED, TRANSITIONS, ExportStatus, Transition
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from storage.db.engine import execute, rows, transaction
from storage.exports import claims_sql, queries, transitions
from storage.targets import targets
from storage.triage import decisions
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    make_approved,
    make_customer,
    make_exports,
    make_target,
)

LEASE_S: Final = 6.0
WORKER: Final = "worker:test"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def audit_log(export_id: str) -> list[tuple[Any, ...]]:
    return rows(
        "SELECT actor, action, status_before, status_after, reason FROM audit_entries WHERE subject_id = ? ORDER BY id",
        (export_id,),
    )


def attempts_of(export_id: str) -> list[tuple[Any, ...]]:
    return rows("SELECT number, outcome, response_status FROM attempts WHERE export_id = ? ORDER BY number", (export_id,))


def approve(customer: Customer, export_id: str, target_id: str, digest: str | None = None, now: datetime = NOW) -> Export:
    return transitions.approve(export_id, customer.account_id, Approval(target_id, digest), now, "user:1", LOOPBACK_POLICY)


def claim(now: datetime = NOW, limit: int = 10) -> list[Claim]:
    return claim_due(limit, now, LEASE_S, WORKER)


def claimed(customer: Customer) -> Claim:
    make_approved(customer, make_target(customer).id)
    [held] = claim()
    return held


def record(held: Claim, transition: Transition, now: datetime = NOW, **verdict: Any) -> set[str]:
    if transition is Transition.RESCHEDULE:
        verdict = {"next_attempt_at": now + timedelta(seconds=30), **verdict}
    return claims_sql.record_attempts([completed_attempt(held, transition, now, **verdict)], now, WORKER)


def refused_fields(refused: pytest.ExceptionInfo[ValidationFailed]) -> list[tuple[str, str]]:
    return [(problem.path, problem.code) for problem in refused.value.problems]


# --- prepare and read


def test_a_prepared_export_has_its_ticket_and_digest_and_waits_for_a_person(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    export = queries.get(export_id, customer.account_id)
    assert (export.status, export.attempts, export.version, export.due_at) == (ExportStatus.PREPARED, 0, 1, None)
    spelled = json.dumps(export.ticket, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert export.ticket_digest == f"sha256:{hashlib.sha256(spelled).hexdigest()}"
    assert export.ticket["page_url"] == "https://shop.example/é"
    assert audit_log(export_id) == [("user:test", "prepare", None, "prepared", None)]
    assert claim() == []


def test_preparing_an_empty_list_stores_nothing(customer: Customer) -> None:
    assert transitions.prepare([], NOW, "user:1") == []
    assert rows("SELECT COUNT(*) FROM exports") == [(0,)]


def test_several_exports_are_prepared_in_order(customer: Customer) -> None:
    ids = make_exports(customer, 500)
    assert len(set(ids)) == 500
    numbers = [int(queries.get(export_id).source.id.removeprefix("note-")) for export_id in ids]
    assert numbers == sorted(numbers)


def test_an_export_of_another_account_is_not_found(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    stranger = make_customer()
    with pytest.raises(ExportNotFound):
        queries.get(export_id, stranger.account_id)
    with pytest.raises(ExportNotFound):
        decisions.dismiss(export_id, stranger.account_id, NOW, "user:2")
    with pytest.raises(ExportNotFound):
        transitions.retry(export_id, stranger.account_id, NOW, "user:2")
    with pytest.raises(ExportNotFound):
        approve(stranger, export_id, make_target(stranger).id)
    assert queries.get(export_id).version == 1


def test_an_unknown_export_is_not_found(customer: Customer) -> None:
    with pytest.raises(ExportNotFound):
        queries.get("exp_00000000000000000000000000")


# --- by hand


def by_hand(**members: Any) -> Preparation:
    preparation: Preparation = PreparationForm().read({"ticket": {"title": "The total is wrong"}, **members})
    return preparation


def test_a_manual_ticket_is_its_own_source_unless_it_names_a_source(customer: Customer) -> None:
    own = transitions.prepare_by_hand(by_hand(), customer.account_id, NOW, "user:1")
    named = transitions.prepare_by_hand(by_hand(source={"type": "manual", "id": "T-1"}), customer.account_id, NOW, "user:1")
    assert (own.source.record(), own.status) == ({"type": "manual", "id": own.id}, ExportStatus.PREPARED)
    assert named.source.record() == {"type": "manual", "id": "T-1"}
    assert audit_log(own.id) == [("user:1", "prepare", None, "prepared", None)]
    assert rows("SELECT project_id FROM exports") == [(None,), (None,)]


def test_a_manual_ticket_may_have_a_project_of_the_account(customer: Customer) -> None:
    transitions.prepare_by_hand(by_hand(project_id=customer.project_id), customer.account_id, NOW, "user:1")
    assert rows("SELECT project_id FROM exports") == [(customer.project_id,)]


@pytest.mark.parametrize("project_id", [999_999, 2**31, 2**63 - 1])
def test_an_unknown_project_and_one_of_another_account_get_the_same_error(customer: Customer, project_id: int) -> None:
    for unknown in (project_id, make_customer().project_id):
        with pytest.raises(ValidationFailed) as refused:
            transitions.prepare_by_hand(by_hand(project_id=unknown), customer.account_id, NOW, "user:1")
        assert refused_fields(refused) == [("/project_id", "unknown_project")]
    assert rows("SELECT COUNT(*) FROM exports") == [(0,)]


def test_due_exports_are_counted_up_to_a_limit(customer: Customer) -> None:
    target = make_target(customer)
    for _ in range(3):
        make_approved(customer, target.id, NOW)
    assert [queries.count_due(at, limit) for at, limit in ((NOW, 10), (NOW, 2), (NOW - timedelta(seconds=1), 10))] == [
        3,
        2,
        0,
    ]


# --- approve


def test_approval_freezes_the_bytes_that_every_attempt_sends(customer: Customer) -> None:
    target = make_target(customer)
    [export_id] = make_exports(customer, 1)
    export = approve(customer, export_id, target.id, now=at(1.5))
    assert export.status is ExportStatus.APPROVED
    assert (export.approved_at, export.due_at, export.version) == (at(1.5), at(1.5), 2)
    execute("UPDATE exports SET ticket = ? WHERE id = ?", ('{"title": "changed"}', export_id))
    [held] = claim(at(2))
    assert json.loads(held.body) == {
        "id": export_id,
        "type": "ticket.export",
        "version": 1,
        "created_at": "2026-03-01T12:00:01.500Z",
        "export": {"id": export_id, "target_id": target.id, "source": {"type": "manual", "id": export.source.id}},
        "ticket": export.ticket,
    }
    record(held, Transition.RESCHEDULE, at(2))
    [again] = claim(at(100))
    assert again.body == held.body


def test_the_digest_of_another_ticket_is_a_conflict_even_for_an_approved_export(customer: Customer) -> None:
    target = make_target(customer)
    [export_id] = make_exports(customer, 1)
    digest = queries.get(export_id).ticket_digest
    with pytest.raises(Conflict):
        approve(customer, export_id, target.id, f"sha256:{'0' * 64}")
    assert queries.get(export_id).status is ExportStatus.PREPARED
    assert approve(customer, export_id, target.id, digest).status is ExportStatus.APPROVED
    with pytest.raises(Conflict):
        approve(customer, export_id, target.id, f"sha256:{'0' * 64}")


def test_approving_again_for_the_same_target_starts_nothing(customer: Customer) -> None:
    target = make_target(customer)
    export_id = make_approved(customer, target.id)
    [held] = claim()
    record(held, Transition.DELIVER)
    before = queries.get(export_id), audit_log(export_id)
    again = approve(customer, export_id, target.id, now=at(60))
    assert (again, audit_log(export_id)) == before
    assert claim(at(1000)) == []


def test_approving_for_another_target_is_a_conflict(customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    with pytest.raises(Conflict, match=f"Export {export_id} is approved"):
        approve(customer, export_id, make_target(customer).id)


def test_a_dismissed_export_cannot_be_approved(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1")
    with pytest.raises(Conflict, match="dismissed"):
        approve(customer, export_id, make_target(customer).id)


@pytest.mark.parametrize("status", ["inactive", "paused", "disabled", "blocked"])
def test_an_approval_for_a_target_that_accepts_nothing_is_refused(customer: Customer, status: str) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    [export_id] = make_exports(customer, 1)
    with pytest.raises(ValidationFailed) as refused:
        approve(customer, export_id, target.id)
    assert refused_fields(refused) == [("/target_id", "target_not_active")]
    assert queries.get(export_id).version == 1


def test_an_unknown_target_and_one_of_another_account_get_the_same_error(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    for target_id in ("tgt_unknown", make_target(make_customer()).id):
        with pytest.raises(ValidationFailed) as refused:
            approve(customer, export_id, target_id)
        assert refused_fields(refused) == [("/target_id", "unknown_target")]


def test_the_exports_of_a_target_that_is_paused_wait(customer: Customer) -> None:
    target = make_target(customer)
    export_id = make_approved(customer, target.id)
    targets.change_status(target.id, "pause", NOW, "operator")
    assert not queries.count_due(at(10), 1)
    assert claim(at(10)) == []
    targets.change_status(target.id, "resume", NOW, "operator")
    assert queries.count_due(at(10), 1)
    assert [held.export_id for held in claim(at(10))] == [export_id]


def test_a_ticket_whose_preview_has_problems_is_not_approved(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    execute("UPDATE exports SET preview_problems = ? WHERE id = ?", ('[{"rule":"card_number"}]', export_id))
    with pytest.raises(ValidationFailed) as refused:
        approve(customer, export_id, make_target(customer).id)
    assert refused_fields(refused) == [("", "preview_not_safe")]
    assert queries.get(export_id).status is ExportStatus.PREPARED


# --- dismiss and retry


def test_a_dismissed_export_is_not_delivered(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    export = decisions.dismiss(export_id, customer.account_id, at(1), "user:1")
    assert (export.status, export.finished_at, export.version) == (ExportStatus.DISMISSED, at(1), 2)
    with pytest.raises(Conflict, match="dismissed"):
        transitions.retry(export_id, customer.account_id, at(2), "user:1")


@pytest.mark.parametrize("transition", [Transition.FAIL, Transition.BLOCK])
def test_a_manual_retry_starts_the_schedule_again(customer: Customer, transition: Transition) -> None:
    held = claimed(customer)
    record(held, transition, at(1), reason="receiver_gone", error_code="receiver_gone")
    finished = queries.get(held.export_id)
    assert (finished.finished_at, finished.status_reason, finished.due_at) == (at(1), "receiver_gone", None)
    export = transitions.retry(held.export_id, customer.account_id, at(1000), "user:1")
    assert (export.status, export.due_at, export.finished_at) == (ExportStatus.APPROVED, at(1000), None)
    assert export.status_reason is None
    [again] = claim(at(1001))
    assert (again.attempt, again.try_number, again.schedule_began_at) == (2, 1, at(1000))
    assert again.body == held.body


@pytest.mark.parametrize(("status", "may"), [("active", True), ("paused", False), ("blocked", False), ("disabled", False)])
def test_a_retry_requires_an_active_target(customer: Customer, status: str, may: bool) -> None:
    held = claimed(customer)
    record(held, Transition.FAIL)
    execute("UPDATE targets SET status = ?", (status,))
    before = queries.get(held.export_id)
    if may:
        assert transitions.retry(held.export_id, customer.account_id, at(1), "user:1").status is ExportStatus.APPROVED
        return
    with pytest.raises(ValidationFailed) as refused:
        transitions.retry(held.export_id, customer.account_id, at(1), "user:1")
    assert refused_fields(refused) == [("/target_id", "target_not_active")]
    assert queries.get(held.export_id) == before


def test_a_target_whose_last_validation_failed_is_tried_by_a_retry(customer: Customer) -> None:
    held = claimed(customer)
    record(held, Transition.FAIL)
    targets.record_validation(held.target_id, None, Validation("connect_refused"), at(1), "worker")
    assert transitions.retry(held.export_id, customer.account_id, at(1), "user:1").status is ExportStatus.APPROVED


@pytest.mark.parametrize("status", ["prepared", "approved", "delivering", "exported", "retry_scheduled"])
def test_only_failed_and_blocked_exports_can_be_retried(customer: Customer, status: str) -> None:
    [export_id] = make_exports(customer, 1)
    bring_to(customer, export_id, ExportStatus(status))
    with pytest.raises(Conflict, match=f"is {status}; retry needs the status blocked or failed"):
        transitions.retry(export_id, customer.account_id, NOW, "user:1")


# --- claim


def test_the_oldest_due_are_claimed_first_up_to_the_limit(customer: Customer) -> None:
    target = make_target(customer)
    ids = {second: make_approved(customer, target.id, at(second)) for second in (3, 1, 4, 2)}
    assert [held.export_id for held in claim(at(10), 2)] == [ids[1], ids[2]]
    assert [held.export_id for held in claim(at(10), 9)] == [ids[3], ids[4]]


def test_an_export_is_claimed_only_once_it_is_due(customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id, at(5))
    assert claim(at(4.999)) == []
    assert not queries.count_due(at(4.999), 1)
    assert queries.count_due(at(5), 1)
    assert [held.export_id for held in claim(at(5))] == [export_id]


@pytest.mark.parametrize("status", ["inactive", "paused", "blocked", "disabled"])
def test_only_exports_of_active_targets_are_claimed(customer: Customer, status: str) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    assert claim(at(10)) == []
    assert not queries.count_due(at(10), 1)


def test_a_claim_counts_the_attempt_and_holds_a_lease(customer: Customer) -> None:
    held = claimed(customer)
    export = queries.get(held.export_id)
    assert (export.status, export.attempts, export.version) == (ExportStatus.DELIVERING, 1, 3)
    assert export.due_at == at(LEASE_S)
    assert (held.attempt, held.try_number, held.schedule_began_at) == (1, 1, NOW)
    assert (held.base_url, held.secret_sealed) == ("https://tracker.example.com/hook", None)
    assert audit_log(held.export_id)[-1] == (WORKER, "claim", "approved", "delivering", None)


def test_an_export_with_an_expired_lease_is_claimed_again_and_the_audit_log_says_why(customer: Customer) -> None:
    held = claimed(customer)
    assert claim(at(LEASE_S - 0.001)) == []
    [taken_over] = claim(at(LEASE_S))
    assert (taken_over.export_id, taken_over.attempt) == (held.export_id, 2)
    assert taken_over.lease != held.lease
    assert audit_log(held.export_id)[-1] == (WORKER, "claim", "delivering", "delivering", "lease_lapsed")


def test_a_renewed_claim_expires_later(customer: Customer) -> None:
    held = claimed(customer)
    version = queries.get(held.export_id).version
    claims_sql.renew([held], at(4), LEASE_S)
    assert claim(at(9.9)) == []
    assert queries.get(held.export_id).version == version
    assert len(claim(at(10))) == 1


def test_a_claim_that_was_taken_over_cannot_be_renewed(customer: Customer) -> None:
    held = claimed(customer)
    [taken_over] = claim(at(LEASE_S))
    claims_sql.renew([held], at(100), LEASE_S)
    assert queries.get(held.export_id).due_at == at(2 * LEASE_S)
    claims_sql.renew([held, taken_over], at(100), LEASE_S)
    assert queries.get(held.export_id).due_at == at(100 + LEASE_S)


def test_renewing_recording_and_postponing_nothing_does_nothing(customer: Customer) -> None:
    claims_sql.renew([], NOW, LEASE_S)
    assert claims_sql.record_attempts([], NOW, WORKER) == set()
    assert claims_sql.postpone([], NOW, WORKER) == 0


# --- record and postpone


def test_a_delivered_attempt_is_written_with_its_export(customer: Customer) -> None:
    held = claimed(customer)
    moved = record(
        held, Transition.DELIVER, at(1), provider_ticket_id="T-7", provider_ticket_url="https://tracker.example.com/T-7"
    )
    assert moved == {held.export_id}
    export = queries.get(held.export_id)
    assert (export.status, export.finished_at, export.due_at) == (ExportStatus.EXPORTED, at(1), None)
    assert (export.provider_ticket_id, export.provider_ticket_url) == ("T-7", "https://tracker.example.com/T-7")
    assert export.last_attempt is not None
    assert (export.last_attempt.at, export.last_attempt.response_status, export.last_attempt.duration_ms) == (at(1), 202, 5)
    [stored] = rows(
        "SELECT number, outcome, address, dns_ms, connect_ms, tls_ms, first_byte_ms, total_ms, nonce, worker FROM attempts"
    )
    assert stored == (1, "delivered", "192.0.2.1", 1, 2, 3, 4, 5, "ab" * 16, WORKER)


def test_a_rescheduled_export_is_due_at_its_next_attempt_and_has_no_status_reason(customer: Customer) -> None:
    held = claimed(customer)
    record(held, Transition.RESCHEDULE, at(1), next_attempt_at=at(31), error_code="http_503", retry_after_s=30)
    export = queries.get(held.export_id)
    assert (export.status, export.due_at, export.status_reason) == (ExportStatus.RETRY_SCHEDULED, at(31), None)
    assert (export.last_attempt and export.last_attempt.error_code) == "http_503"
    assert claim(at(30.9)) == []
    assert [again.attempt for again in claim(at(31))] == [2]


# Columns: status of the export; end of the target's hold; status of the target; time of the next attempt that is shown.
NEXT = [
    ("approved", 90, "active", 90),
    ("retry_scheduled", 90, "active", 90),
    ("approved", 5, "active", 10),  # the export's own time is later
    ("retry_scheduled", 5, "active", 10),
    ("approved", 90, "paused", None),  # a user paused it, so nobody knows until when
    ("delivering", 90, "active", None),  # the end of a lease is not shown
]


@pytest.mark.parametrize(("status", "held_s", "turned", "next_s"), NEXT)
def test_no_next_attempt_is_shown_before_its_target_may_be_sent_to(
    customer: Customer, status: str, held_s: float, turned: str, next_s: float | None
) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    lease = "lse_1" if status == "delivering" else None
    execute("UPDATE exports SET status = ?, due_at = ?, lease = ?", (status, to_ms(at(10)), lease))
    execute("UPDATE targets SET status = ?, held_until = ?", (turned, to_ms(at(held_s))))
    assert as_shown(queries.get(export_id), at(0)).due_at == (None if next_s is None else at(next_s))


def test_a_worker_whose_lease_was_taken_over_writes_nothing(customer: Customer) -> None:
    late = claimed(customer)
    [present] = claim(at(LEASE_S))
    before = queries.get(late.export_id), audit_log(late.export_id)
    assert record(late, Transition.DELIVER, at(7)) == set()
    assert claims_sql.postpone([late], at(7), WORKER) == 0
    assert (queries.get(late.export_id), audit_log(late.export_id)) == before
    assert attempts_of(late.export_id) == []
    assert record(present, Transition.DELIVER, at(8)) == {late.export_id}
    assert record(present, Transition.DELIVER, at(9)) == set()
    assert attempts_of(late.export_id) == [(2, "delivered", 202)]


def test_a_worker_that_took_over_its_own_lease_records_only_the_later_attempt(customer: Customer) -> None:
    late = claimed(customer)
    [present] = claim(at(LEASE_S))
    both = [completed_attempt(present), completed_attempt(late)]
    assert claims_sql.record_attempts(both, at(7), WORKER) == {late.export_id}
    assert attempts_of(late.export_id) == [(2, "delivered", 202)]
    assert [entry[1] for entry in audit_log(late.export_id)] == ["prepare", "approve", "claim", "claim", "deliver"]


def test_results_of_many_exports_are_written_together(customer: Customer) -> None:
    target = make_target(customer)
    for second in range(4):
        make_approved(customer, target.id, at(second))
    held = claim(at(10))
    transitions = [Transition.DELIVER, Transition.RESCHEDULE, Transition.FAIL, Transition.BLOCK]
    results = [
        completed_attempt(
            each,
            transition,
            at(11),
            next_attempt_at=at(60) if transition is Transition.RESCHEDULE else None,
            reason=transition.value,
        )
        for each, transition in zip(held, transitions, strict=True)
    ]
    assert claims_sql.record_attempts(results, at(11), WORKER) == {each.export_id for each in held}
    after = [queries.get(each.export_id) for each in held]
    assert [export.status.value for export in after] == ["exported", "retry_scheduled", "failed", "blocked"]
    assert [export.status_reason for export in after] == ["deliver", None, "fail", "block"]


def test_a_postponed_export_is_due_at_once_and_keeps_its_attempt(customer: Customer) -> None:
    held = claimed(customer)
    assert claims_sql.postpone([held], at(1), WORKER) == 1
    export = queries.get(held.export_id)
    assert (export.status, export.attempts, export.due_at) == (ExportStatus.RETRY_SCHEDULED, 0, NOW)
    assert audit_log(held.export_id)[-1] == (WORKER, "postpone", "delivering", "retry_scheduled", None)
    assert [(again.attempt, again.try_number) for again in claim(at(1))] == [(1, 1)]


def test_a_postponed_export_is_sent_before_exports_that_became_due_later(customer: Customer) -> None:
    target_id = make_target(customer).id
    older, newer = (make_approved(customer, target_id, at(due_s)) for due_s in (0, 1))
    [held] = claim(at(2), limit=1)
    assert claims_sql.postpone([held], at(3), WORKER) == 1
    assert [each.export_id for each in claim(at(3))] == [older, newer]


def test_an_export_that_is_postponed_after_the_clock_was_set_back_is_due_at_once(customer: Customer) -> None:
    held = claimed(customer)
    assert claims_sql.postpone([held], at(-3600), WORKER) == 1
    assert [each.export_id for each in claim(at(-3600))] == [held.export_id]


# --- the audit log


def bring_to(customer: Customer, export_id: str, status: ExportStatus) -> Claim | None:
    """Bring a prepared export to `status` by the shortest path; return the claim that is held then, if any."""
    if status is ExportStatus.PREPARED:
        return None
    if status is ExportStatus.DISMISSED:
        decisions.dismiss(export_id, customer.account_id, NOW, "user:1")
        return None
    approve(customer, export_id, make_target(customer).id)
    if status is ExportStatus.APPROVED:
        return None
    [held] = claim()
    last = {
        TRANSITIONS[transition].target: transition
        for transition in (Transition.DELIVER, Transition.RESCHEDULE, Transition.FAIL, Transition.BLOCK)
    }
    if status in last:
        record(held, last[status])
    return None if last.get(status) is Transition.RESCHEDULE else held


def do(customer: Customer, export_id: str, transition: Transition, held: Claim | None, now: datetime) -> None:
    """Make one transition in the way that its caller makes it."""
    by_hand: dict[Transition, Callable[[], object]] = {
        Transition.APPROVE: lambda: approve(customer, export_id, make_target(customer).id, now=now),
        Transition.DISMISS: lambda: decisions.dismiss(export_id, customer.account_id, now, "user:1"),
        Transition.RESTORE: lambda: decisions.restore(export_id, customer.account_id, now, "user:1"),
        Transition.RETRY: lambda: transitions.retry(export_id, customer.account_id, now, "user:1"),
        Transition.WITHDRAW: lambda: transitions.redact([export_id], now, "user:1"),
        Transition.CLAIM: lambda: claim(now),
    }
    if transition in by_hand:
        by_hand[transition]()
        return
    if transition is Transition.BLOCK and held is None:
        target_id = queries.get(export_id).target_id
        assert target_id is not None
        with transaction():
            targets.deactivate(target_id, TargetStatus.BLOCKED, "address_private", now, WORKER)
            transitions.end_waiting([target_id], now, WORKER, 10)
        return
    assert held is not None
    if transition is Transition.POSTPONE:
        claims_sql.postpone([held], now, WORKER)
    else:
        record(held, transition, now)


@pytest.mark.parametrize(
    ("status", "transition"),
    [(status, transition) for transition in Transition for status in sorted(TRANSITIONS[transition].sources)],
    ids=str,
)
def test_every_transition_adds_one_audit_entry_and_a_new_version(
    customer: Customer, status: ExportStatus, transition: Transition
) -> None:
    [export_id] = make_exports(customer, 1)
    held = bring_to(customer, export_id, status)
    before = queries.get(export_id)
    reported = len(audit_log(export_id))
    do(customer, export_id, transition, held, at(1000))
    after = queries.get(export_id)
    assert (before.status, after.status) == (status, TRANSITIONS[transition].target)
    assert after.version == before.version + 1
    [entry] = audit_log(export_id)[reported:]
    assert entry[1:4] == (transition.value, status.value, TRANSITIONS[transition].target.value)


@pytest.mark.parametrize("seed", range(6))
def test_the_audit_log_has_every_transition_without_gaps_whatever_happens(customer: Customer, seed: int) -> None:
    chance = random.Random(seed)
    ids = make_exports(customer, 3)
    held: list[Claim] = []
    # Withdrawn exports are redacted, and no transition leads out of that.
    transitions = [
        Transition.CLAIM,
        Transition.CLAIM,
        *(transition for transition in Transition if transition is not Transition.WITHDRAW),
    ]
    for step in range(40):
        now, transition, export_id = at(step * 7), chance.choice(transitions), chance.choice(ids)
        if transition is Transition.CLAIM:
            held += claim(now, 1)
        elif transition in {Transition.APPROVE, Transition.DISMISS, Transition.RESTORE, Transition.RETRY}:
            if queries.get(export_id).status in TRANSITIONS[transition].sources and (
                transition is not Transition.DISMISS or chance.random() < 0.2
            ):
                do(customer, export_id, transition, None, now)
        elif held:
            do(customer, export_id, transition, chance.choice(held), now)
    for export_id in ids:
        reported, export = audit_log(export_id), queries.get(export_id)
        assert len(reported) == export.version
        assert reported[-1][3] == export.status.value
        assert all(later[2] == earlier[3] for earlier, later in itertools.pairwise(reported))
        assert (export.finished_at is not None) == (export.status in FINISHED)


# --- what the tables refuse, whatever the code does


@pytest.mark.parametrize(
    "change",
    [
        "status = 'lost'",  # an unknown status
        "due_at = NULL",  # an export being delivered is due when its lease lapses
        "lease = NULL",  # an export being delivered has a lease
        "status = 'exported'",  # finished, but due and leased
        "status = 'approved'",  # waits, but leased
        "status = 'retry_scheduled', lease = NULL, due_at = NULL",  # waits without a time
        "body = NULL",  # under way without a body
        "target_id = NULL",  # under way without a target
        "target_id = 'tgt_unknown'",  # an unknown target
        "account_id = 999999",  # an unknown account
    ],
)
def test_a_contradictory_export_row_is_rejected(customer: Customer, change: str) -> None:
    held = claimed(customer)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE exports SET {change} WHERE id = ?", (held.export_id,))  # noqa: S608 - our own names
    assert queries.get(held.export_id).status is ExportStatus.DELIVERING


@pytest.mark.parametrize("change", ["due_at = 1", "lease = 'lse_1'", "status = 'approved'", "status = 'failed'"])
def test_a_prepared_row_has_no_due_time_lease_or_other_status(customer: Customer, change: str) -> None:
    [export_id] = make_exports(customer, 1)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE exports SET {change} WHERE id = ?", (export_id,))  # noqa: S608 - our own names


def test_a_second_delivered_attempt_of_an_export_is_refused(customer: Customer) -> None:
    held = claimed(customer)
    record(held, Transition.DELIVER)
    insert = (
        "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) VALUES (?, ?, ?, ?, ?, 1, 'w')"
    )
    execute(insert, ("att_2", held.export_id, 2, to_ms(NOW), "retryable"))
    with pytest.raises(IntegrityError):
        execute(insert, ("att_3", held.export_id, 3, to_ms(NOW), "delivered"))


def test_two_attempts_of_an_export_never_have_one_number(customer: Customer) -> None:
    held = claimed(customer)
    record(held, Transition.FAIL)
    with pytest.raises(IntegrityError):
        execute(
            "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) "
            "VALUES ('att_2', ?, 1, 1, 'retryable', 1, 'w')",
            (held.export_id,),
        )


def test_a_rule_has_one_open_group_in_a_project(customer: Customer) -> None:
    one, two = make_exports(customer, 2)
    execute("UPDATE exports SET open_group = 'csp' WHERE id = ?", (one,))
    with pytest.raises(IntegrityError):
        execute("UPDATE exports SET open_group = 'csp' WHERE id = ?", (two,))


def test_all_results_of_a_tick_are_written_or_none(customer: Customer) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    make_approved(customer, target.id)
    good, bad = claim()
    # The table refuses a rescheduled export without a time.
    with pytest.raises(IntegrityError):
        claims_sql.record_attempts([completed_attempt(good), completed_attempt(bad, Transition.RESCHEDULE)], at(1), WORKER)
    assert queries.get(good.export_id).status is ExportStatus.DELIVERING
    assert attempts_of(good.export_id) == []
