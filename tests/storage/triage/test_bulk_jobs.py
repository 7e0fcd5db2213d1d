"""A bulk job decides once on each matching export, also if workers compete, are killed, or write with an old lease."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from schemas.base.errors import Conflict, NotFound, ValidationFailed
from schemas.base.principal import Role
from schemas.exports.decisions import DismissalReason, Snooze
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import Target
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.bulk_jobs import BulkJob, CountDiffers
from schemas.triage.export_filter import ExportQuery
from storage.accounts import accounts, users
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.db.leases import BatchProgress, JobBatch, JobLease, LeasedJobs
from storage.db.models import BulkJobRow
from storage.exports import queries
from storage.triage import bulk_jobs, decisions
from storage.triage.bulk_jobs import BATCH_SIZE, LEASE_S, MAX_RUNNING, NewBulkJob
from tests.support.database.many_rows import many_finished, many_targets
from tests.support.factories import LOOPBACK_POLICY, NOW, Customer, make_approved, make_customer, make_exports, make_failed
from tests.support.fakes import Rollback

DISMISS = BulkDecision(BulkAction.DISMISS, reason=DismissalReason.TEST, note="A test page.")
RESTORE = BulkDecision(BulkAction.RESTORE)
WAITING = b"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def approval(target: Target) -> BulkDecision:
    return BulkDecision(BulkAction.APPROVE, target.id)


def new(customer: Customer, decision: BulkDecision, expected: int, *statuses: str) -> NewBulkJob:
    query = ExportQuery(customer.account_id, statuses=statuses)
    return NewBulkJob(decision, query, expected, customer.account_id, customer.user_id, f"user:{customer.user_id}")


def begin(customer: Customer, decision: BulkDecision, expected: int, *statuses: str) -> JobLease:
    return bulk_jobs.begin(new(customer, decision, expected, *statuses), NOW, LOOPBACK_POLICY)


def advance(held: JobLease, now: datetime = NOW, limits: AccountLimits = UNLIMITED) -> JobBatch:
    return bulk_jobs.advance(held, now, LOOPBACK_POLICY, limits)


def work(held: JobLease) -> BulkJob:
    while advance(held).progress is BatchProgress.MORE:
        pass
    return bulk_jobs.get(held.id)


def counts(job: BulkJob) -> tuple[Any, ...]:
    return job.status, job.total, job.done, job.changed, job.skipped, dict(job.errors)


def decided(action: str) -> Counter[str]:
    return Counter(row[0] for row in rows("SELECT subject_id FROM audit_entries WHERE action = ?", (action,)))


def items() -> int:
    return int(rows("SELECT COUNT(*) FROM bulk_job_items")[0][0])


def test_a_job_decides_on_what_matched_when_it_was_created(customer: Customer, target: Target) -> None:
    ids = make_exports(customer, 5)
    make_exports(make_customer(), 1)
    held = begin(customer, approval(target), 5)
    later = make_exports(customer, 1, at(1))
    job = work(held)
    assert counts(job) == ("done", 5, 5, 5, 0, {})
    assert (job.finished_at, items()) == (NOW, 0)
    assert decided("approve") == Counter(ids)
    assert queries.get(later[0]).status is ExportStatus.PREPARED
    audited = "SELECT actor, reason FROM audit_entries WHERE action = 'approve'"
    assert set(rows(audited)) == {(f"user:{customer.user_id}", held.id)}
    assert [row[0] for row in rows("SELECT action FROM audit_entries WHERE subject_id = ? ORDER BY id", (held.id,))] == [
        "begin_bulk_approve",
        "finish_bulk_job",
    ]


def test_exports_changed_meanwhile_are_skipped_and_counted_by_code(customer: Customer, target: Target) -> None:
    edited, unsafe, dismissed, *_ = ids = make_exports(customer, 5)
    make_approved(customer, target.id)
    failed = make_failed(customer, target.id)
    execute("UPDATE exports SET preview_problems = '[{}]' WHERE id = ?", (unsafe,))
    held = begin(customer, approval(target), 7)
    execute("UPDATE exports SET version = version + 1 WHERE id = ?", (edited,))
    decisions.dismiss(dismissed, None, NOW, "user:9")
    job = work(held)
    assert counts(job) == ("done", 7, 7, 2, 1, {"changed": 2, "preview_not_safe": 1, "CONFLICT": 1})
    assert queries.get(failed[0]).status is ExportStatus.FAILED
    assert {queries.get(each).status for each in ids[3:]} == {ExportStatus.APPROVED}


def test_exports_already_in_the_requested_state_are_skipped_even_if_they_changed(customer: Customer) -> None:
    ids = make_exports(customer, 2)
    held = begin(customer, DISMISS, 2)
    decisions.dismiss(ids[0], None, NOW, "user:9")
    assert counts(work(held)) == ("done", 2, 2, 1, 1, {})
    assert decided("dismiss") == Counter(ids)
    assert rows("SELECT dismissal_reason, dismissal_note FROM exports WHERE id = ?", (ids[1],)) == [("test", "A test page.")]
    # The note is stored with the exports, where an erasure finds it.
    assert rows("SELECT options FROM bulk_jobs") == [("{}",)]


def test_a_job_continues_where_the_last_lease_holder_stopped(customer: Customer) -> None:
    ids = make_exports(customer, BATCH_SIZE + 3)
    first = begin(customer, DISMISS, len(ids))
    assert advance(first) == JobBatch(BatchProgress.MORE, BATCH_SIZE)
    assert (items(), decided("dismiss").total()) == (3, BATCH_SIZE)
    assert bulk_jobs.claim_next(at(LEASE_S - 1)) is None
    second = bulk_jobs.claim_next(at(LEASE_S))
    assert second is not None
    assert second.id == first.id
    assert advance(first, at(LEASE_S)) == JobBatch(BatchProgress.LEASE_LOST)
    assert advance(second, at(LEASE_S)) == JobBatch(BatchProgress.FINISHED, 3)
    assert advance(second, at(LEASE_S)) == JobBatch(BatchProgress.LEASE_LOST)
    assert decided("dismiss") == Counter(ids)
    assert not LeasedJobs(BulkJobRow).any_waiting(at(1000))


def test_a_rolled_back_batch_changes_nothing_and_is_repeated(customer: Customer) -> None:
    make_exports(customer, 3)
    held = begin(customer, DISMISS, 3)
    with suppress(Rollback), transaction():
        advance(held)
        raise Rollback
    assert (counts(bulk_jobs.get(held.id)), items(), decided("dismiss")) == (("running", 3, 0, 0, 0, {}), 3, Counter())
    assert counts(work(held)) == ("done", 3, 3, 3, 0, {})


def test_a_cancelled_job_decides_no_more_and_ends_once(customer: Customer) -> None:
    ids = make_exports(customer, BATCH_SIZE + 1)
    held = begin(customer, DISMISS, len(ids))
    advance(held)
    with pytest.raises(NotFound):
        bulk_jobs.cancel(held.id, NOW, "user:9", make_customer().account_id)
    cancelled = bulk_jobs.cancel(held.id, at(1), "user:9", customer.account_id)
    assert counts(cancelled) == ("cancelled", len(ids), BATCH_SIZE, BATCH_SIZE, 0, {})
    assert advance(held, at(2)).progress is BatchProgress.LEASE_LOST
    assert bulk_jobs.cancel(held.id, at(3), "user:9") == cancelled
    assert (items(), decided("cancel_bulk_job")) == (0, Counter([held.id]))


def test_a_cancellation_that_waited_for_the_last_batch_returns_the_finished_job(postgres_url: str) -> None:
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        make_exports(customer, 2)
        held = begin(customer, DISMISS, 2)

    def cancel() -> BulkJob:
        with connection():
            return bulk_jobs.cancel(held.id, at(1), "user:9", customer.account_id)

    with ThreadPoolExecutor(1) as pool, psycopg.connect(postgres_url, autocommit=True) as watcher:
        with connection(), transaction():
            advance(held)
            cancelled = pool.submit(cancel)
            while watcher.execute(WAITING).fetchone() != (1,):
                assert not cancelled.done()
                time.sleep(0.005)
        assert counts(cancelled.result(10)) == ("done", 2, 2, 2, 0, {})
    close_database()


def test_a_job_is_refused_if_the_count_differs_from_the_expected_one(customer: Customer) -> None:
    make_exports(customer, 2)
    with pytest.raises(CountDiffers) as refused:
        begin(customer, DISMISS, 3)
    assert refused.value.details == {"count": 2}
    assert rows("SELECT COUNT(*) FROM bulk_jobs") == [(0,)]


def test_a_job_without_matches_is_done_at_once(customer: Customer) -> None:
    assert counts(work(begin(customer, DISMISS, 0))) == ("done", 0, 0, 0, 0, {})


def test_more_exports_than_a_job_takes_are_refused(customer: Customer) -> None:
    many_targets(customer, 0, 1, "https://tracker.example.com/hook")
    many_finished(customer, 0, bulk_jobs.MAX_MATCHES + 1, (0, 1), NOW)
    with pytest.raises(ValidationFailed) as refused:
        begin(customer, DISMISS, bulk_jobs.MAX_MATCHES + 1)
    assert [(each.path, each.code) for each in refused.value.problems] == [("/filter", "too_many_matches")]
    assert "10,000" in refused.value.problems[0].message


def test_a_job_for_an_inactive_target_is_refused_and_a_running_one_ends_in_errors(
    customer: Customer, target: Target
) -> None:
    make_exports(customer, 2)
    held = begin(customer, approval(target), 2)
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (target.id,))
    assert counts(work(held)) == ("done", 2, 2, 0, 0, {"target_not_active": 2})
    with pytest.raises(ValidationFailed):
        begin(customer, approval(target), 2)


@pytest.mark.parametrize("action", ["approve", "dismiss"])
def test_a_job_stops_when_its_user_is_disabled(customer: Customer, target: Target, action: str) -> None:
    make_exports(customer, BATCH_SIZE + 5)
    held = begin(customer, approval(target) if action == "approve" else DISMISS, BATCH_SIZE + 5)
    advance(held)
    users.disable(customer.email, NOW, "operator")
    assert advance(held) == JobBatch(BatchProgress.FINISHED, 5)
    job = bulk_jobs.get(held.id)
    assert counts(job) == ("cancelled", BATCH_SIZE + 5, BATCH_SIZE + 5, BATCH_SIZE, 0, {"user_disabled": 5})
    assert (items(), decided(action).total()) == (0, BATCH_SIZE)


@pytest.mark.parametrize(
    ("role", "code"), [(Role.VIEWER, "user_lost_ability"), (None, "user_lost_ability"), (Role.TRIAGER, None)]
)
def test_a_job_stops_when_its_users_role_allows_no_decision(customer: Customer, role: Role | None, code: str | None) -> None:
    make_exports(customer, 2)
    held = begin(customer, DISMISS, 2)
    users.set_role(customer.email, role, NOW, "operator")
    stopped = ("cancelled", 2, 2, 0, 0, {code: 2})
    assert counts(work(held)) == (stopped if code else ("done", 2, 2, 2, 0, {}))


def test_a_job_that_delivers_stops_when_its_account_may_not_use_webhooks(customer: Customer, target: Target) -> None:
    make_exports(customer, 2)
    approving, dismissing = begin(customer, approval(target), 2), begin(customer, DISMISS, 2)
    accounts.set_webhooks(customer.account_id, False, NOW, "operator")
    assert counts(work(approving)) == ("cancelled", 2, 2, 0, 0, {"webhooks_forbidden": 2})
    assert counts(work(dismissing)) == ("done", 2, 2, 2, 0, {})


def test_a_restoration_beyond_the_accounts_limit_is_counted_as_errors(customer: Customer) -> None:
    for each in make_exports(customer, 3):
        decisions.dismiss(each, None, NOW, "user:1")
    held = begin(customer, RESTORE, 3, "dismissed")
    advance(held, limits=AccountLimits({Limited.WAITING_EXPORTS: 2}))
    assert counts(bulk_jobs.get(held.id)) == ("done", 3, 3, 0, 0, {"limit_reached": 3})
    assert counts(work(begin(customer, RESTORE, 3, "dismissed"))) == ("done", 3, 3, 3, 0, {})


def test_a_restoration_ends_snoozes_which_are_not_counted_towards_the_accounts_limit_again(customer: Customer) -> None:
    snoozed, moved, waiting = make_exports(customer, 3)
    for each in (snoozed, moved):
        decisions.snooze(each, None, NOW, "user:1", None)
    held = begin(customer, RESTORE, 3, "prepared")
    decisions.snooze(moved, None, NOW, "user:1", at(60))
    advance(held, limits=AccountLimits({Limited.WAITING_EXPORTS: 1}))
    assert counts(bulk_jobs.get(held.id)) == ("done", 3, 3, 1, 1, {"changed": 1})
    assert [queries.get(each).snooze for each in (snoozed, moved, waiting)] == [None, Snooze(at(60)), None]
    audited = "SELECT subject_id, status_before, status_after, reason FROM audit_entries WHERE action = 'restore'"
    assert rows(audited) == [(snoozed, "prepared", "prepared", held.id)]


def test_an_account_has_a_limited_number_of_running_jobs(customer: Customer) -> None:
    held = [begin(customer, DISMISS, 0) for _ in range(MAX_RUNNING)]
    with pytest.raises(Conflict, match="20 running bulk jobs"):
        begin(customer, DISMISS, 0)
    begin(make_customer(), DISMISS, 0)
    work(held[0])
    begin(customer, DISMISS, 0)


def test_jobs_are_listed_and_read_by_account(customer: Customer) -> None:
    mine = [bulk_jobs.request(new(customer, DISMISS, 0), at(second), LOOPBACK_POLICY) for second in range(3)]
    stranger = make_customer()
    foreign = bulk_jobs.request(new(stranger, DISMISS, 0), NOW, LOOPBACK_POLICY)
    assert bulk_jobs.list_page(customer.account_id, 2) == [mine[2], mine[1]]
    assert bulk_jobs.list_page(customer.account_id, 2, mine[1].id) == [mine[0]]
    assert {each.id for each in bulk_jobs.list_page()} == {foreign.id, *(each.id for each in mine)}
    with pytest.raises(NotFound):
        bulk_jobs.get(foreign.id, customer.account_id)


def test_a_released_job_is_claimed_at_once(customer: Customer) -> None:
    held = begin(customer, DISMISS, 0)
    bulk_jobs.release(held, NOW)
    again = bulk_jobs.claim_next(NOW)
    assert again is not None
    assert (again.id, advance(held).progress) == (held.id, BatchProgress.LEASE_LOST)


def test_a_new_job_locks_exports_in_the_order_of_their_ids(postgres_url: str) -> None:
    """Decisions use the same order: a transaction that waits for the first export holds no other, so nothing deadlocks."""
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        ids = make_exports(customer, 3)

    def create() -> None:
        with connection():
            begin(customer, DISMISS, 3, "prepared")

    with psycopg.connect(postgres_url) as deciding, psycopg.connect(postgres_url, autocommit=True) as watcher:
        deciding.execute("SELECT 1 FROM exports WHERE id = %s FOR UPDATE", (ids[0],))
        creator = threading.Thread(target=create)
        creator.start()
        while watcher.execute(WAITING).fetchone() != (1,):
            assert creator.is_alive()
            time.sleep(0.005)
        deciding.execute("SELECT 1 FROM exports WHERE id = ANY(%s) FOR UPDATE NOWAIT", (ids[1:],))
        deciding.rollback()
        creator.join(10)
    with connection():
        assert items() == 3
    close_database()
