"""Workers continue recoveries that commands began, one batch at a time, and notify after each batch."""

from contextlib import suppress
from datetime import datetime

from runtime.clock import utc_now
from schemas.targets.target import Target
from storage.db.engine import database as peewee_database
from storage.db.engine import execute, rows
from storage.db.leases import BatchProgress, JobBatch, JobLease
from storage.exports import recoveries
from storage.exports.recoveries import BATCH_SIZE
from tests.support.factories import NOW, Customer, make_failed, make_target
from tests.support.fakes import FakeWakeUpQueue
from worker.background.batches.batch_task import recovery_task


def abandoned(target: Target) -> JobLease:
    """Begin a recovery and let its command die: its lease is long over."""
    return recoveries.begin(target.id, NOW, NOW, "operator")


def status_counts() -> dict[str, int]:
    return dict(rows("SELECT status, COUNT(*) FROM exports GROUP BY status"))


def test_an_abandoned_recovery_is_finished_by_a_worker(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, BATCH_SIZE + 2)
    held = abandoned(target)
    wake_ups = FakeWakeUpQueue(status_counts)
    task = recovery_task(wake_ups, utc_now)
    runs = [task.run_once() for _ in range(4)]
    assert runs == [True, True, True, False]
    assert recoveries.get(held.id).status == "done"
    # Each notification follows the commit of its batch; the last step put nothing back and notifies nobody.
    assert wake_ups.seen == [{"approved": BATCH_SIZE, "failed": 2}, {"approved": BATCH_SIZE + 2}]


def test_a_worker_does_not_take_over_a_recovery_leased_by_a_command(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    held = recoveries.begin(target.id, NOW, utc_now(), "operator")
    assert not recovery_task(FakeWakeUpQueue(), utc_now).run_once()
    assert recoveries.get(held.id).done == 0


def test_a_task_carries_out_recoveries_one_after_another(customer: Customer) -> None:
    made = [make_target(customer) for _ in range(3)]
    for target in made:
        make_failed(customer, target.id)
    held = [abandoned(target) for target in made]
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    while task.run_once():
        pass
    assert [recoveries.get(each.id).status for each in held] == ["done"] * 3
    assert status_counts() == {"approved": 3}


def test_a_recovery_of_a_target_that_was_turned_off_delays_no_other(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    halted = abandoned(target)
    other = make_target(customer)
    make_failed(customer, other.id)
    execute("UPDATE targets SET status = 'disabled' WHERE id = ?", (target.id,))
    second = abandoned(other)
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    while task.run_once():
        pass
    assert (recoveries.get(halted.id).status, recoveries.get(second.id).status) == ("running", "done")


def test_a_recovery_that_fails_unexpectedly_delays_no_other(customer: Customer) -> None:
    broken, sound = (make_target(customer) for _ in range(2))
    for each in (broken, sound):
        make_failed(customer, each.id)
    first, second = abandoned(broken), abandoned(sound)
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    advance = task.advance

    def with_bug(lease: JobLease, now: datetime) -> JobBatch:
        if lease.id == first.id:
            raise KeyError(lease.id)
        return advance(lease, now)

    task.advance = with_bug
    for _ in range(5):
        with suppress(KeyError):
            task.run_once()
    assert [recoveries.get(each.id).status for each in (first, second)] == ["running", "done"]


def test_a_recovery_that_is_cancelled_while_it_runs_ends(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, BATCH_SIZE + 1)
    held = abandoned(target)
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    assert task.run_once()
    recoveries.cancel(held.id, utc_now(), "operator")
    assert task.run_once()
    assert not task.run_once()
    assert status_counts() == {"approved": BATCH_SIZE, "failed": 1}


def test_an_unavailable_redis_is_contacted_once_per_recovery_and_stops_nothing(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2 * BATCH_SIZE)
    held = abandoned(target)
    wake_ups = FakeWakeUpQueue()
    wake_ups.is_connected = False
    task = recovery_task(wake_ups, utc_now)
    while task.run_once():
        pass
    assert (recoveries.get(held.id).status, wake_ups.notifications) == ("done", 1)
    wake_ups.is_connected = True
    make_failed(customer, target.id)
    abandoned(target)
    while task.run_once():
        pass
    assert wake_ups.notifications == 2


def test_no_connection_is_held_while_workers_are_notified(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id)
    abandoned(target)
    peewee_database.close()
    wake_ups = FakeWakeUpQueue(peewee_database.is_closed)
    task = recovery_task(wake_ups, utc_now)
    while task.run_once():
        pass
    assert wake_ups.seen == [True]


def test_a_command_carries_out_only_its_own_recovery(customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 3)
    held = recoveries.begin(target.id, NOW, utc_now(), "operator")
    wake_ups = FakeWakeUpQueue()
    task = recovery_task(wake_ups, utc_now)
    assert (task.process_batch(held).processed, task.process_batch(held).progress) == (3, BatchProgress.FINISHED)
    assert wake_ups.notifications == 1
