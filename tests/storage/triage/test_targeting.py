"""An export is approved for several targets at once, and one that ended is retried at another target."""

import json
from typing import Any

import pytest

from schemas.base.errors import Conflict, ExportNotFound, ValidationFailed
from schemas.exports.record import Approval, ApprovalForAll, Export
from schemas.exports.state_machine import ExportStatus, Transition
from schemas.exports.tickets.ticket import digest
from schemas.targets.approval import TargetUrlRefused
from schemas.triage.decision_forms import Edit
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits, Limited
from storage.db.engine import execute, rows, transaction
from storage.exports import claims_sql, queries, transitions
from storage.triage import decisions, targeting
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    in_s,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_target,
)


def approve(customer: Customer, export_id: str, *target_ids: str, **options: Any) -> list[Export]:
    approval = ApprovalForAll(target_ids, options.pop("ticket_digest", None))
    policy = options.pop("policy", LOOPBACK_POLICY)
    return targeting.approve_for_all(export_id, customer.account_id, approval, NOW, "user:1", policy, **options)


def retry_at(customer: Customer, export_id: str, target_id: str) -> Export | None:
    return targeting.retry_elsewhere(export_id, customer.account_id, target_id, in_s(60), "user:7", LOOPBACK_POLICY)


def envelope(export: Export) -> Any:
    body = queries.get_frozen_body(export.id, export.account_id).body
    assert body is not None
    return json.loads(body)


def problems(refused: pytest.ExceptionInfo[ValidationFailed]) -> list[tuple[str, str]]:
    return [(each.path, each.code) for each in refused.value.problems]


# --- several targets


def test_an_approval_for_several_targets_copies_the_export_for_all_but_the_first(customer: Customer) -> None:
    ids = [make_target(customer).id for _ in range(3)]
    [export_id] = make_exports(customer, 1)
    before = queries.get(export_id)
    found = approve(customer, export_id, *ids)
    assert found[0].id == export_id
    assert [each.target_id for each in found] == ids
    siblings = tuple(each.id for each in found)
    for each, target_id in zip(found, ids, strict=True):
        assert (each.status, each.siblings) == (ExportStatus.APPROVED, siblings)
        assert (each.ticket, each.ticket_digest, each.source) == (before.ticket, before.ticket_digest, before.source)
        assert each.due_at == NOW
        body = envelope(each)
        assert (body["id"], body["export"]["target_id"], body["ticket"]) == (each.id, target_id, before.ticket)
    audited = rows("SELECT subject_id, action FROM audit_entries WHERE action = 'approve' ORDER BY subject_id")
    assert audited == [(each, "approve") for each in sorted(siblings)]
    assert len(claim_due(9, NOW, 6, "worker:1")) == 3


def test_an_edited_export_is_edited_in_every_copy(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    original = queries.get(export_id).ticket
    decisions.edit(export_id, None, NOW, "user:1", Edit(title="Name the field"))
    found = approve(customer, export_id, make_target(customer).id, make_target(customer).id)
    assert [each.original_ticket for each in found] == [original, original]
    assert {each.ticket["title"] for each in found} == {"Name the field"}


def test_the_same_approval_again_returns_the_same_exports(customer: Customer) -> None:
    one, two = make_target(customer).id, make_target(customer).id
    [export_id] = make_exports(customer, 1)
    first = approve(customer, export_id, one, two)
    assert approve(customer, export_id, one, two) == first
    assert approve(customer, export_id, two, one) == first[::-1]
    assert rows("SELECT COUNT(*) FROM exports") == [(2,)]
    with pytest.raises(Conflict):
        approve(customer, export_id, one, make_target(customer).id)
    with pytest.raises(Conflict, match="digest"):
        approve(customer, export_id, one, two, ticket_digest=digest({}))
    # Approving one of the copies for its own target is a repeat, too.
    again = transitions.approve(first[1].id, customer.account_id, Approval(two, None), NOW, "user:1", LOOPBACK_POLICY)
    assert again == first[1]


def test_one_target_that_accepts_nothing_leaves_the_export_prepared(customer: Customer) -> None:
    good, paused = make_target(customer).id, make_target(customer).id
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (paused,))
    [export_id] = make_exports(customer, 1)
    foreign = make_target(make_customer()).id
    for bad, code in ((paused, "target_not_active"), (foreign, "unknown_target"), ("tgt_none", "unknown_target")):
        with pytest.raises(ValidationFailed) as refused:
            approve(customer, export_id, good, bad)
        assert problems(refused) == [("/target_ids/1", code)]
    with pytest.raises(TargetUrlRefused) as blocked:
        approve(customer, export_id, good, make_target(customer).id, policy=TargetPolicy(False, ((444, 444),), ()))
    assert blocked.value.target_id == good
    assert queries.get(export_id).version == 1
    assert rows("SELECT COUNT(*) FROM exports") == [(1,)]


def test_copies_count_against_the_limit_of_the_account(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    target_ids = [make_target(customer).id for _ in range(3)]
    with pytest.raises(ValidationFailed) as refused:
        approve(customer, export_id, *target_ids, limits=AccountLimits({Limited.WAITING_EXPORTS: 2}))
    assert problems(refused) == [("", "limit_reached")]
    assert queries.get(export_id).status is ExportStatus.PREPARED


def test_an_unsafe_preview_is_approved_for_no_target(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    execute("UPDATE exports SET preview_problems = '[{}]'")
    with pytest.raises(ValidationFailed) as refused:
        approve(customer, export_id, make_target(customer).id, make_target(customer).id)
    assert problems(refused) == [("", "preview_not_safe")]


# --- another target


@pytest.mark.parametrize("status", ["failed", "blocked"])
def test_an_export_that_ended_is_retried_at_another_target(status: str, customer: Customer) -> None:
    wrong, right = make_target(customer).id, make_target(customer).id
    export_id = make_approved(customer, wrong)
    [claim] = claim_due(1, NOW, 6, "worker:1")
    how = Transition.FAIL if status == "failed" else Transition.BLOCK
    claims_sql.record_attempts([completed_attempt(claim, how, reason="receiver_gone")], NOW, "worker:1")
    execute("UPDATE exports SET provider_ticket_id = 'T-1', provider_ticket_url = 'https://a.example/T-1'")
    before = queries.get(export_id)
    after = retry_at(customer, export_id, right)
    assert after is not None
    assert (after.status, after.status_reason, after.target_id) == (ExportStatus.APPROVED, None, right)
    assert (after.ticket, after.ticket_digest) == (before.ticket, before.ticket_digest)
    assert (after.due_at, after.finished_at, after.attempts) == (in_s(60), None, 1)
    assert (after.provider_ticket_id, after.provider_ticket_url) == (None, None)
    assert (after.approved_at, after.approved_by) == (before.approved_at, before.approved_by)
    assert after.version == before.version + 1
    body = envelope(after)
    assert (body["export"]["target_id"], body["created_at"]) == (right, "2026-03-01T12:00:00.000Z")
    last = rows("SELECT actor, action, status_before, status_after, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert last == [("user:7", "retry", status, "approved", wrong)]
    # The schedule starts again, with a new count of tries.
    [again] = claim_due(1, in_s(60), 6, "worker:1")
    assert (again.target_id, again.attempt, again.try_number) == (right, 2, 1)


def test_a_late_result_of_the_former_target_changes_nothing(customer: Customer) -> None:
    wrong, right = make_target(customer).id, make_target(customer).id
    export_id = make_approved(customer, wrong)
    [late] = claim_due(1, NOW, 6, "worker:1")
    # The lease has lapsed while the receiver still responds slowly, and then the target is disabled.
    execute("UPDATE targets SET status = 'disabled' WHERE id = ?", (wrong,))
    with transaction():
        assert transitions.end_waiting([wrong], in_s(30), "worker:1", 9) == 1
    moved = retry_at(customer, export_id, right)
    assert claims_sql.record_attempts([completed_attempt(late)], in_s(60), "worker:1") == set()
    assert claims_sql.postpone([late], in_s(60), "worker:1") == 0
    assert queries.get(export_id) == moved


def test_a_repeated_retry_at_another_target_returns_the_export_and_its_own_target_is_not_accepted(
    customer: Customer,
) -> None:
    wrong, right = make_target(customer).id, make_target(customer).id
    [export_id] = make_failed(customer, wrong)
    assert retry_at(customer, export_id, wrong) is None
    first = retry_at(customer, export_id, right)
    assert retry_at(customer, export_id, right) == first
    with pytest.raises(Conflict):
        retry_at(customer, export_id, make_target(customer).id)


def test_a_target_that_accepts_no_approval_accepts_no_retry_of_another_targets_export(customer: Customer) -> None:
    [export_id] = make_failed(customer, make_target(customer).id)
    paused, unavailable, foreign = make_target(customer).id, make_target(customer).id, make_target(make_customer()).id
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (paused,))
    execute("UPDATE targets SET validation_status = 'failed', validation_reason = 'tls' WHERE id = ?", (unavailable,))
    codes = {paused: "target_not_active", unavailable: "target_unavailable", foreign: "unknown_target"}
    for target_id, code in codes.items():
        with pytest.raises(ValidationFailed) as refused:
            retry_at(customer, export_id, target_id)
        assert problems(refused) == [("/target_id", code)]
    with pytest.raises(ExportNotFound):
        retry_at(make_customer(), export_id, foreign)
    assert queries.get(export_id).status is ExportStatus.FAILED


def test_a_redacted_export_is_not_retried_elsewhere(customer: Customer) -> None:
    [export_id] = make_failed(customer, make_target(customer).id)
    execute("UPDATE exports SET redacted_at = 1")
    with pytest.raises(Conflict, match="redacted"):
        retry_at(customer, export_id, make_target(customer).id)


@pytest.mark.parametrize("covered", [True, False])
def test_another_target_gets_events_if_the_approval_covered_some(customer: Customer, covered: bool) -> None:
    [export_id] = make_failed(customer, make_target(customer).id)
    execute("UPDATE exports SET events = ?", ('["ticket.fixed"]' if covered else "[]",))
    elsewhere = make_target(customer, name="Elsewhere").id
    execute("UPDATE targets SET events = '[\"ticket.redact\"]' WHERE id = ?", (elsewhere,))
    retry_at(customer, export_id, elsewhere)
    assert rows("SELECT events FROM exports") == [('["ticket.redact"]' if covered else "[]",)]
    entries = rows("SELECT reason FROM audit_entries WHERE action = 'approve_events'")
    assert entries == ([("ticket.redact",)] if covered else [])
