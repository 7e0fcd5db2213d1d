"""A recovery redelivers each export once, also if workers compete, are killed, or write with an old lease."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from peewee import IntegrityError

from schemas.base.errors import Conflict, NotFound, TargetNotFound
from schemas.base.timestamps import to_ms
from schemas.exports.recoveries import Recovery
from schemas.targets.target import Target
from storage.db import identifiers
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.db.leases import BatchProgress, JobBatch, JobLease, LeasedJobs
from storage.db.models import ExportRow, RecoveryRow
from storage.exports import queries, recoveries, transitions
from storage.exports.recoveries import BATCH_SIZE, COUNTED_AT_FIRST, HALTED_RETRY_S, LEASE_S, AlreadyRecovering
from storage.exports.transitions import RECOVERY_EXAMINED
from storage.triage import decisions
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.database.query_plans import full_scans, plan_of, statements
from tests.support.factories import NOW, Customer, make_approved, make_customer, make_exports, make_failed, make_target
from tests.support.fakes import Rollback

SINCE: Final = NOW - timedelta(hours=1)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def begin(target: Target, since: datetime = SINCE, now: datetime = NOW) -> JobLease:
    return recoveries.begin(target.id, since, now, "operator")


def work(held: JobLease, now: datetime = NOW) -> list[JobBatch]:
    """Advance until the recovery ends; return the steps."""
    steps = [recoveries.advance(held, now)]
    while steps[-1].progress is BatchProgress.MORE:
        steps.append(recoveries.advance(held, now))
    return steps


def recover(target: Target, since: datetime = SINCE) -> Recovery:
    held = begin(target, since)
    assert work(held)[-1].progress is BatchProgress.FINISHED
    return recoveries.get(held.id)


def statuses(ids: list[str]) -> list[str]:
    return [queries.get(export_id).status.value for export_id in ids]


def retried() -> list[tuple[Any, ...]]:
    """Return how often each export was put back."""
    return rows("SELECT subject_id, COUNT(*) FROM audit_entries WHERE action = 'retry' GROUP BY subject_id ORDER BY 1")


def set_status(target: Target, status: str) -> None:
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))


# --- which exports are put back


def test_failed_and_blocked_exports_start_their_schedule_again(customer: Customer, target: Target) -> None:
    [failed] = make_failed(customer, target.id)
    [blocked] = make_failed(customer, target.id, status="blocked")
    before = queries.get(failed)
    recovery = recover(target)
    assert (recovery.status, recovery.total, recovery.done, recovery.finished_at) == ("done", 2, 2, NOW)
    for export_id in (failed, blocked):
        export = queries.get(export_id)
        assert (export.status, export.status_reason, export.due_at) == ("approved", None, NOW)
        assert (export.attempts, export.finished_at, export.version) == (2, None, before.version + 1)
        began = rows("SELECT schedule_began_at, attempts_before FROM exports WHERE id = ?", (export_id,))
        assert began == [(to_ms(NOW), 2)]
    reported = (
        "SELECT actor, status_before, status_after, reason FROM audit_entries WHERE action = 'retry' AND subject_id = ?"
    )
    assert rows(reported, (failed,)) == [("operator", "failed", "approved", recovery.id)]
    assert rows(reported, (blocked,)) == [("operator", "blocked", "approved", recovery.id)]


# Columns: when an export finished; whether a recovery of the last hour puts it back.
FINISHED = [(at(-3600.001), False), (at(-3600), True), (at(-1), True), (at(5), True)]  # the last clock is ahead


@pytest.mark.parametrize(("finished_at", "is_recovered"), FINISHED)
def test_only_exports_that_finished_since_the_given_time_are_recovered(
    customer: Customer, target: Target, finished_at: datetime, is_recovered: bool
) -> None:
    ids = make_failed(customer, target.id, finished_at=finished_at)
    recovery = recover(target)
    assert (recovery.total, recovery.done) == (int(is_recovered),) * 2
    assert statuses(ids) == ["approved" if is_recovered else "failed"]


def test_no_other_exports_are_changed(customer: Customer, target: Target) -> None:
    elsewhere = make_failed(customer, make_target(customer).id)
    prepared, delivered, dismissed = make_exports(customer, 3)
    execute(
        "UPDATE exports SET status = 'exported', target_id = ?, body = ?, finished_at = ? WHERE id = ?",
        (target.id, b"{}", to_ms(NOW), delivered),
    )
    decisions.dismiss(dismissed, None, NOW, "user:1")
    waiting = make_approved(customer, target.id)
    redacted = make_failed(customer, target.id)
    with transaction():
        transitions.redact(redacted, NOW, "worker:test")
    others = [*elsewhere, prepared, delivered, dismissed, waiting, *redacted]
    before = [queries.get(export_id) for export_id in others]
    recovery = recover(target)
    assert (recovery.total, recovery.done) == (0, 0)
    assert [queries.get(export_id) for export_id in others] == before
    assert retried() == []


def test_many_exports_are_recovered_in_batches(customer: Customer, target: Target) -> None:
    ids = make_failed(customer, target.id, BATCH_SIZE + 7)
    held = begin(target)
    assert recoveries.advance(held, NOW) == JobBatch(BatchProgress.MORE, BATCH_SIZE, BATCH_SIZE)
    assert sorted(row[0] for row in retried()) == sorted(ids)[:BATCH_SIZE]
    half = recoveries.get(held.id)
    assert (half.status, half.total, half.done, half.finished_at) == ("running", BATCH_SIZE + 7, BATCH_SIZE, None)
    assert work(held) == [JobBatch(BatchProgress.MORE, 7, 7), JobBatch(BatchProgress.FINISHED)]
    assert set(statuses(ids)) == {"approved"}
    assert retried() == [(export_id, 1) for export_id in sorted(ids)]


def test_an_export_that_fails_again_meanwhile_is_not_recovered_twice(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, BATCH_SIZE + 1)
    held = begin(target)
    recoveries.advance(held, NOW)
    execute(
        "UPDATE exports SET status = 'failed', due_at = NULL, finished_at = ? WHERE status = 'approved'", (to_ms(at(1)),)
    )
    assert work(held, at(2)) == [JobBatch(BatchProgress.MORE, 1, 1), JobBatch(BatchProgress.FINISHED)]
    assert {count for _, count in retried()} == {1}
    assert rows("SELECT COUNT(*) FROM exports WHERE status = 'failed'") == [(BATCH_SIZE,)]


def test_exports_that_were_changed_meanwhile_are_skipped(customer: Customer, target: Target) -> None:
    ids = sorted(make_failed(customer, target.id, 5))
    held = begin(target)
    transitions.retry(ids[0], None, NOW, "user:1")
    with transaction():
        transitions.redact([ids[1]], NOW, "worker:test")
    work(held)
    recovery = recoveries.get(held.id)
    assert (recovery.total, recovery.done, recovery.status) == (5, 3, "done")
    assert statuses(ids) == ["approved", "failed", "approved", "approved", "approved"]
    assert retried() == [(export_id, 1) for export_id in ids if export_id != ids[1]]


def test_the_total_is_never_less_than_the_number_done(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2)
    held = begin(target)
    make_failed(customer, target.id, 3, at(1))
    work(held, at(2))
    recovery = recoveries.get(held.id)
    assert (recovery.total, recovery.done) == (5, 5)


def test_a_batch_that_fails_is_rolled_back(customer: Customer, target: Target) -> None:
    ids = make_failed(customer, target.id, 2)
    held = begin(target)

    def break_off() -> None:
        with transaction():
            assert recoveries.advance(held, NOW).processed == 2
            raise Rollback

    with pytest.raises(Rollback):
        break_off()
    assert statuses(ids) == ["failed", "failed"]
    assert (recoveries.get(held.id).done, retried()) == (0, [])
    assert work(held)[0] == JobBatch(BatchProgress.MORE, 2, 2)


# --- who may advance a recovery


def test_a_recovery_is_leased_by_its_starter_until_the_lease_expires(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 1)
    held = begin(target)
    assert not LeasedJobs(RecoveryRow).any_waiting(at(LEASE_S - 0.001))
    assert recoveries.claim_next(at(LEASE_S - 0.001)) is None
    assert recoveries.advance(held, at(LEASE_S - 1)).processed == 1
    assert not LeasedJobs(RecoveryRow).any_waiting(at(LEASE_S))
    assert LeasedJobs(RecoveryRow).any_waiting(at(2 * LEASE_S - 1))
    successor = recoveries.claim_next(at(2 * LEASE_S - 1))
    assert successor is not None
    assert (successor.id, successor.lease != held.lease) == (held.id, True)
    assert recoveries.claim_next(at(2 * LEASE_S - 1)) is None


def test_a_recovery_is_continued_by_a_new_holder_and_the_former_one_changes_nothing(
    customer: Customer, target: Target
) -> None:
    ids = make_failed(customer, target.id, BATCH_SIZE + 3)
    held = begin(target)
    recoveries.advance(held, NOW)
    successor = recoveries.claim_next(at(LEASE_S))
    assert successor is not None
    before = recoveries.get(held.id)
    assert recoveries.advance(held, at(LEASE_S)) == JobBatch(BatchProgress.LEASE_LOST)
    assert (recoveries.get(held.id), len(retried())) == (before, BATCH_SIZE)
    assert work(successor, at(LEASE_S)) == [JobBatch(BatchProgress.MORE, 3, 3), JobBatch(BatchProgress.FINISHED)]
    assert retried() == [(export_id, 1) for export_id in sorted(ids)]
    assert recoveries.advance(held, at(LEASE_S)) == JobBatch(BatchProgress.LEASE_LOST)


def test_a_holder_whose_lease_expired_but_was_not_taken_over_continues(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    held = begin(target)
    assert [step.progress for step in work(held, at(LEASE_S + 60))] == [BatchProgress.MORE, BatchProgress.FINISHED]


def test_a_released_recovery_is_claimed_at_once_and_released_only_by_its_holder(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    held = begin(target)
    recoveries.release(held, at(1))
    assert recoveries.advance(held, at(1)) == JobBatch(BatchProgress.LEASE_LOST)
    successor = recoveries.claim_next(at(1))
    assert successor is not None
    recoveries.release(held, at(1))
    assert not LeasedJobs(RecoveryRow).any_waiting(at(1))
    assert work(successor, at(1))[-1].progress is BatchProgress.FINISHED
    recoveries.release(successor, at(1))
    assert not LeasedJobs(RecoveryRow).any_waiting(at(3600))


def test_concurrent_workers_recover_each_export_once(customer: Customer, target: Target) -> None:
    ids = make_failed(customer, target.id, 2 * BATCH_SIZE + 5)
    held = begin(target)
    start, claim_numbers = threading.Barrier(6), itertools.count(1)

    def race(_number: int) -> int:
        moved = 0
        with connection():
            start.wait()
            while recoveries.get(held.id).status == "running":
                # Each claim comes after the lease of the previous holder has lapsed.
                now = at(next(claim_numbers) * (LEASE_S + 1))
                successor = recoveries.claim_next(now)
                moved += recoveries.advance(successor, now).processed if successor else 0
        return moved

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(race, range(6))) == len(ids)
    assert retried() == [(export_id, 1) for export_id in sorted(ids)]
    [recovery] = recoveries.list_page()
    assert (recovery.status, recovery.done) == ("done", len(ids))


def test_the_recovery_that_has_waited_longest_is_claimed_first(customer: Customer) -> None:
    held = [begin(make_target(customer), now=at(second)) for second in (1, 0, 2)]
    taken = [recoveries.claim_next(at(60)) for _ in range(4)]
    assert [each and each.id for each in taken] == [held[1].id, held[0].id, held[2].id, None]


# --- targets that accept nothing

# Columns: status of the target; whether its exports are put back.
TARGETS = [("active", True), ("paused", True), ("inactive", False), ("blocked", False), ("disabled", False)]


@pytest.mark.parametrize(("status", "may"), TARGETS)
def test_a_recovery_for_a_target_that_accepts_nothing_is_refused_with_the_remedy(
    customer: Customer, target: Target, status: str, may: bool
) -> None:
    make_failed(customer, target.id)
    set_status(target, status)
    if may:
        assert recover(target).done == 1
        return
    with pytest.raises(Conflict, match=f"{target.id} is {status}.*target resume {target.id}"):
        begin(target)
    assert (recoveries.list_page(), retried()) == ([], [])


@pytest.mark.parametrize("target_id", ["tgt_x", "tgt_\0", f"{identifiers.TARGET}_{26 * '0'}"])
def test_an_unknown_target_is_not_found(database: str, target_id: str) -> None:
    with pytest.raises(TargetNotFound):
        recoveries.begin(target_id, SINCE, NOW, "operator")


@pytest.mark.parametrize("status", ["blocked", "disabled", "inactive"])
def test_a_recovery_waits_for_a_target_that_was_turned_off_meanwhile(
    customer: Customer, target: Target, status: str
) -> None:
    ids = make_failed(customer, target.id, BATCH_SIZE + 1)
    held = begin(target)
    recoveries.advance(held, NOW)
    set_status(target, status)
    assert recoveries.advance(held, at(1)) == JobBatch(BatchProgress.WAITING_FOR_TARGET)
    # The lease was given back, and nothing was put back.
    assert recoveries.advance(held, at(1)) == JobBatch(BatchProgress.LEASE_LOST)
    recovery = recoveries.get(held.id)
    assert (recovery.status, recovery.done, len(retried())) == ("running", BATCH_SIZE, BATCH_SIZE)
    assert not LeasedJobs(RecoveryRow).any_waiting(at(1 + HALTED_RETRY_S - 0.001))
    successor = recoveries.claim_next(at(1 + HALTED_RETRY_S))
    assert successor is not None
    set_status(target, "active")
    assert [step.progress for step in work(successor, at(60))] == [BatchProgress.MORE, BatchProgress.FINISHED]
    assert retried() == [(export_id, 1) for export_id in sorted(ids)]


# --- one at a time, its end, its record


def test_a_target_has_one_recovery_at_a_time(customer: Customer, target: Target) -> None:
    first = begin(target)
    elsewhere = begin(make_target(customer))
    with pytest.raises(Conflict, match=first.id):
        begin(target)
    assert {each.id for each in recoveries.list_page()} == {first.id, elsewhere.id}
    work(first)
    second = begin(target, now=at(1))
    recoveries.cancel(second.id, at(2), "operator")
    third = begin(target, now=at(3))
    assert [each.id for each in recoveries.list_page()] == [third.id, second.id, *sorted((first.id, elsewhere.id))[::-1]]


def test_of_simultaneous_requests_for_a_recovery_one_succeeds(target: Target) -> None:
    start = threading.Barrier(6)

    def race(_number: int) -> str:
        with connection():
            start.wait()
            try:
                return begin(target).id
            except Conflict as conflict:
                return conflict.message

    with ThreadPoolExecutor(6) as pool:
        reported = list(pool.map(race, range(6)))
    [recovery] = recoveries.list_page()
    assert reported.count(recovery.id) == 1
    assert all(recovery.id in each for each in reported)


def test_a_cancelled_recovery_stops_and_recovered_exports_stay_approved(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, BATCH_SIZE + 1)
    held = begin(target)
    recoveries.advance(held, NOW)
    cancelled = recoveries.cancel(held.id, at(1), "operator:2")
    assert (cancelled.status, cancelled.done, cancelled.finished_at) == ("cancelled", BATCH_SIZE, at(1))
    assert recoveries.advance(held, at(1)) == JobBatch(BatchProgress.LEASE_LOST)
    assert recoveries.claim_next(at(3600)) is None
    assert len(retried()) == BATCH_SIZE
    reported = rows("SELECT actor, action FROM audit_entries WHERE subject_id = ? ORDER BY id", (held.id,))
    assert reported == [("operator", "begin_recovery"), ("operator:2", "cancel_recovery")]


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_a_recovery_that_has_ended_is_not_cancelled(target: Target, end: str) -> None:
    held = begin(target)
    if end == "done":
        work(held)
    else:
        recoveries.cancel(held.id, NOW, "operator")
    before = recoveries.get(held.id)
    with pytest.raises(Conflict, match=f"is {end}; only a running one"):
        recoveries.cancel(held.id, at(1), "operator")
    assert recoveries.get(held.id) == before


@pytest.mark.parametrize("recovery_id", ["rec_x", "rec_\0", "exp_1", f"{identifiers.RECOVERY}_{26 * '0'}"])
@pytest.mark.parametrize("do", [recoveries.get, lambda recovery_id: recoveries.cancel(recovery_id, NOW, "operator")])
def test_an_unknown_recovery_is_not_found(database: str, recovery_id: str, do: Callable[[str], object]) -> None:
    with pytest.raises(NotFound, match="no such recovery"):
        do(recovery_id)


@pytest.mark.parametrize(
    "change", ["status = 'done'", "finished_at = 1", "next_run_at = NULL", "target_id = 'tgt_none'", "status = 'other'"]
)
def test_a_contradictory_recovery_row_is_rejected(target: Target, change: str) -> None:
    begin(target)
    with pytest.raises(IntegrityError):
        execute(f"UPDATE recoveries SET {change}")  # noqa: S608 - our own names


# --- recoveries that a user requests


def test_a_requested_recovery_has_no_lease_and_is_claimed_by_a_worker_at_once(customer: Customer, target: Target) -> None:
    ids = make_failed(customer, target.id, 3)
    ordered = recoveries.request(target.id, customer.account_id, SINCE, NOW, "user:7")
    assert (ordered.status, ordered.total, ordered.done) == ("running", 3, 0)
    assert set(statuses(ids)) == {"failed"}
    assert LeasedJobs(RecoveryRow).any_waiting(NOW)
    held = recoveries.claim_next(NOW)
    assert held is not None
    assert held.id == ordered.id
    work(held)
    assert (recoveries.get(ordered.id).status, set(statuses(ids))) == ("done", {"approved"})
    assert rows("SELECT DISTINCT actor FROM audit_entries WHERE action = 'retry'") == [("user:7",)]


def test_a_recovery_of_another_accounts_target_is_not_found(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    with pytest.raises(TargetNotFound):
        recoveries.request(target.id, make_customer().account_id, SINCE, NOW, "user:7")
    assert recoveries.list_page() == []


def test_a_second_request_is_refused_with_the_id_of_the_recovery_that_runs(customer: Customer, target: Target) -> None:
    ordered = recoveries.request(target.id, customer.account_id, SINCE, NOW, "user:7")
    for again in (lambda: recoveries.request(target.id, customer.account_id, SINCE, NOW, "user:7"), lambda: begin(target)):
        with pytest.raises(AlreadyRecovering, match=ordered.id) as refused:
            again()
        assert refused.value.recovery_id == ordered.id
    assert len(recoveries.list_page()) == 1


def test_an_account_lists_its_own_recoveries_in_pages(customer: Customer, target: Target) -> None:
    other = make_customer()
    own = [recoveries.request(make_target(customer).id, customer.account_id, SINCE, NOW, "user:7").id for _ in range(3)]
    others = recoveries.request(make_target(other).id, other.account_id, SINCE, NOW, "user:8")
    last = recoveries.request(target.id, customer.account_id, SINCE, NOW, "user:7")
    expected = sorted([*own, last.id], reverse=True)
    assert [each.id for each in recoveries.list_account_page(customer.account_id, 9)] == expected
    assert [each.id for each in recoveries.list_account_page(customer.account_id, 2)] == expected[:2]
    assert [each.id for each in recoveries.list_account_page(customer.account_id, 2, expected[1])] == expected[2:]
    assert [each.id for each in recoveries.list_page(target_id=target.id)] == [last.id]
    for find in (recoveries.get, lambda each, account_id: recoveries.cancel(each, NOW, "user:7", account_id)):
        with pytest.raises(NotFound, match="no such recovery"):
            find(others.id, customer.account_id)
    assert recoveries.get(others.id).status == "running"


# --- how many rows it reads at once


@pytest.mark.usefixtures("emptied")
def test_a_recovery_counts_up_to_ten_thousand_at_first_and_has_the_exact_total_at_the_end(
    customer: Customer, target: Target
) -> None:
    more = 3
    many_failed(customer, target, COUNTED_AT_FIRST + more, NOW)
    held = begin(target)
    assert recoveries.get(held.id).total == COUNTED_AT_FIRST
    assert work(held)[-1].progress is BatchProgress.FINISHED
    recovery = recoveries.get(held.id)
    assert (recovery.total, recovery.done) == (COUNTED_AT_FIRST + more,) * 2


@pytest.mark.usefixtures("emptied")
def test_a_batch_examines_no_more_than_ten_thousand_that_failed_too_long_ago(customer: Customer, target: Target) -> None:
    many_failed(customer, target, 2 * RECOVERY_EXAMINED + 3, SINCE - timedelta(days=1))
    execute("UPDATE exports SET finished_at = ? WHERE id = (SELECT MAX(id) FROM exports)", (to_ms(NOW),))
    # Each of the two batches without a match commits its position.
    assert [step.processed for step in work(begin(target))] == [0, 0, 1, 0]


@pytest.fixture
def emptied(database: str) -> Iterator[None]:
    """Truncate the tables of PostgreSQL afterwards: otherwise the next test would search the attempts of every export."""
    yield
    if not is_sqlite():
        execute("TRUNCATE exports CASCADE")


def many_failed(customer: Customer, target: Target, count: int, finished_at: datetime) -> None:
    """Store exports that failed at a target, without attempts."""
    stored = many_targets(customer, 0, 1, target.base_url)
    many_waiting(customer, 0, count, (0, 1), NOW)
    execute(
        "UPDATE exports SET status = 'failed', status_reason = 'receiver_gone', due_at = NULL, finished_at = ?, "
        "target_id = ? WHERE target_id = ?",
        (to_ms(finished_at), target.id, stored[0]),
    )


# --- queries


def test_recoverable_exports_are_counted_for_several_times_at_once_up_to_a_limit(customer: Customer, target: Target) -> None:
    for seconds, count in ((-7200, 2), (-1800, 3), (-60, 4)):
        make_failed(customer, target.id, count, at(seconds))
    make_failed(customer, make_target(customer).id, 5)
    moments = [at(-90_000), at(-3600), at(-600), NOW]
    if not is_sqlite():
        execute("SET enable_seqscan = off")  # PostgreSQL would read so few rows completely
    with statements() as found:
        counts = queries.count_recoverable_since(target.id, moments, 100)
    assert counts == [queries.recoverable(target.id, moment).count() for moment in moments] == [9, 7, 4, 0]
    assert [bool(full_scans(each)) for each in found] == [False]
    assert queries.count_recoverable_since(target.id, moments[:1], 5) == [5]
    assert queries.count_recoverable_since(target.id, [], 5) == []


def test_recoverable_exports_are_read_from_their_index_among_many_others(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 20)
    make_failed(customer, target.id, 1500, status="exported")
    make_failed(customer, make_target(customer).id, 500)
    execute("ANALYZE" if is_sqlite() else "VACUUM ANALYZE")
    with statements() as found:
        queries.count_recoverable_since(target.id, [SINCE], 100)
        list(queries.recoverable(target.id, SINCE).order_by(ExportRow.id).limit(500).tuples())
    assert len(found) == 2
    for statement in found:
        plan = " ".join(plan_of(statement))
        assert "exports_recoverable" in plan
        assert not full_scans(statement), plan
        assert "Seq Scan" not in plan
        assert "TEMP B-TREE" not in plan
