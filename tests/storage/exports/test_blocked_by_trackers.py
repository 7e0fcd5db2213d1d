"""Exports that a tracker's configuration error blocked are due again once their target is resumed, each export once."""

from typing import Final

import pytest

from schemas.exports.delivery import Claim
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from schemas.trackers.failures import CONFIGURATION_CODES
from storage.db.engine import execute, rows, transaction
from storage.exports import claims_sql, queries, transitions
from storage.targets import targets
from tests.support.factories import Customer, claim_due, completed_attempt, in_s, make_approved, make_failed, make_tracker

URL: Final = "https://gitea.example.com/acme/shop"
WORKER: Final = "worker:1"


def block(target_id: str, reason: str = "tracker_forbidden") -> int:
    """Block a target, and end the exports that wait for it; return their number."""
    with transaction():
        targets.deactivate(target_id, TargetStatus.BLOCKED, reason, in_s(20), WORKER)
        return transitions.end_waiting([target_id], in_s(30), WORKER, 100)


def resume(target_id: str) -> int:
    with transaction():
        targets.change_status(target_id, "resume", in_s(60), "user:1")
        return transitions.requeue_blocked(target_id, in_s(60), "user:1")


def claims_by_id(at_s: float) -> dict[str, Claim]:
    return {claim.export_id: claim for claim in claim_due(100, in_s(at_s), 6, WORKER)}


@pytest.mark.parametrize("reason", sorted(CONFIGURATION_CODES))
def test_exports_that_wait_for_a_tracker_are_blocked_with_the_reason_and_due_after_a_resumption(
    customer: Customer, reason: str
) -> None:
    target_id = make_tracker(customer, URL)
    ids = [make_approved(customer, target_id) for _ in range(3)]
    assert block(target_id, reason) == 3
    assert {(queries.get(each).status, queries.get(each).status_reason) for each in ids} == {(ExportStatus.BLOCKED, reason)}
    assert resume(target_id) == 3
    for export in map(queries.get, ids):
        assert (export.status, export.status_reason, export.finished_at) == (ExportStatus.APPROVED, None, None)
        assert (export.due_at, export.version) == (in_s(60), 4)
    entries = rows("SELECT subject_id, actor, status_before, status_after, reason FROM audit_entries WHERE action = 'retry'")
    assert sorted(entries) == sorted((each, "user:1", "blocked", "approved", "target_resumed") for each in ids)


def test_the_whole_schedule_begins_again(customer: Customer) -> None:
    target_id = make_tracker(customer, URL)
    export_id = make_approved(customer, target_id)
    claims_by_id(1)
    block(target_id)
    resume(target_id)
    claim = claims_by_id(130)[export_id]
    assert (claim.attempt, claim.try_number, claim.schedule_began_at) == (2, 1, in_s(60))


def test_a_resumption_of_a_tracker_changes_no_other_exports(customer: Customer) -> None:
    target_id, other_id = make_tracker(customer, URL), make_tracker(customer, URL)
    make_approved(customer, other_id)
    block(other_id)
    # Not requeued: blocked by the address policy, failed, and redacted.
    make_failed(customer, target_id, status="blocked")
    [failed, redacted] = make_failed(customer, target_id) + make_failed(customer, target_id, status="blocked")
    execute("UPDATE exports SET status_reason = 'tracker_forbidden' WHERE id IN (?, ?)", (failed, redacted))
    with transaction():
        transitions.redact([redacted], in_s(10), "operator")
    block(target_id)
    before = rows("SELECT * FROM exports ORDER BY id")
    assert resume(target_id) == 0
    assert rows("SELECT * FROM exports ORDER BY id") == before


def test_a_retry_that_resumes_a_blocked_tracker_makes_all_its_exports_due_once(customer: Customer) -> None:
    target_id = make_tracker(customer, URL)
    ids = [make_approved(customer, target_id) for _ in range(3)]
    block(target_id)
    transitions.retry(ids[0], customer.account_id, in_s(60), "user:1", Validation(is_partial=True))
    assert targets.get(target_id, None).status is TargetStatus.ACTIVE
    assert rows("SELECT status, version FROM exports") == [("approved", 4)] * 3
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'retry'") == [(3,)]


def test_an_export_that_a_dead_worker_may_have_sent_is_looked_up_after_the_resumption(customer: Customer) -> None:
    target_id = make_tracker(customer, URL)
    sent = make_approved(customer, target_id)
    assert set(claims_by_id(1)) == {sent}
    waiting = make_approved(customer, target_id)
    # Two exports, because the lease of the first one has lapsed.
    assert block(target_id) == 2
    resume(target_id)
    assert set(claims_by_id(61)) == {waiting}
    claims = claims_by_id(130)
    assert claims[sent].is_outcome_unknown
    assert not claims[sent].has_lapsed


def test_a_claim_says_whether_an_earlier_attempt_may_have_delivered_it(customer: Customer) -> None:
    target_id = make_tracker(customer, URL)
    export_id = make_approved(customer, target_id)
    first = claims_by_id(0)[export_id]
    assert (first.is_outcome_unknown, first.has_lapsed) == (False, False)
    lapsed = claims_by_id(10)[export_id]
    assert (lapsed.is_outcome_unknown, lapsed.has_lapsed) == (True, True)
    assert claims_sql.postpone([lapsed], in_s(11), WORKER) == 1
    # Nothing is claimed until every tracker would find the issue.
    assert claims_by_id(12) == claims_by_id(70) == {}
    again = claims_by_id(72)[export_id]
    # No worker has looked the issue up yet.
    assert (again.is_outcome_unknown, again.has_lapsed) == (True, False)
    claims_sql.record_attempts([completed_attempt(again)], in_s(73), WORKER)
    assert rows("SELECT is_outcome_unknown FROM exports") == [(False,)]
