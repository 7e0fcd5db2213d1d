"""A worker deletes expired records by itself: every hour, one worker at a time, and not right after its start."""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.compliance.requests import Topic
from storage.db import locks
from storage.db.engine import connection, database, execute, rows
from storage.db.locks import Lock
from storage.maintenance import retention
from storage.maintenance.retention import EXPORTS_AT_ONCE, Cutoffs
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, make_exports
from tests.support.http.storefront import give_shop, receive
from tests.support.processes.workers import wait_until
from tests.support.worker.dispatchers import FakeClock
from worker.background.compliance import ComplianceTask
from worker.background.retention import FIRST_RUN_AFTER, RUN_EVERY, RetentionTask
from worker.background.tasks import BackgroundTask, TaskThread
from worker.delivery.clock_guard import ClockGuard

OLD: Final = NOW - timedelta(days=91)
VAULT: Final = Vault([b"A" * 32])
#: Long enough for a busy machine.
AT_ONCE_S: Final = 5.0


def until(now: datetime) -> Cutoffs:
    return retention.cutoffs(now, timedelta(days=90), timedelta(hours=72))


class SettableClock(FakeClock):
    """A clock that can be set without any time passing."""

    set_by_s = 0.0

    def monotonic(self) -> float:
        return (self.at - NOW).total_seconds() - self.set_by_s

    def set_by(self, seconds: float) -> None:
        self.set_by_s += seconds
        self.advance(seconds)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


def started(clock: SettableClock) -> RetentionTask:
    guard = ClockGuard(clock, lambda: None, clock.monotonic)
    return RetentionTask(until, "worker:test", clock, guard, clock.monotonic)


@pytest.fixture
def task(customer: Customer, clock: SettableClock) -> RetentionTask:
    """A task that started long enough ago to delete."""
    made = started(clock)
    made.run_once()
    clock.advance(FIRST_RUN_AFTER.total_seconds())
    return made


def left() -> int:
    return int(rows("SELECT COUNT(*) FROM exports")[0][0])


def work(task: RetentionTask) -> int:
    """Run the task until it has nothing to do; return the number of parts."""
    parts = 0
    while task.run_once():
        parts += 1
    return parts


@contextmanager
def held_elsewhere() -> Iterator[None]:
    """Hold the lock on another connection, as another process would."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with connection(), locks.exclusive(Lock.PRUNE):
            taken.set()
            over.wait(AT_ONCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(AT_ONCE_S)
    yield
    over.set()
    holder.join()


def test_expired_rows_are_deleted_in_small_batches(
    customer: Customer, task: RetentionTask, caplog: pytest.LogCaptureFixture
) -> None:
    make_exports(customer, EXPORTS_AT_ONCE + 1, OLD)
    make_exports(customer, 1, NOW)
    with caplog.at_level(logging.INFO, "worker.background.retention"):
        assert work(task) == 2
    assert left() == 1
    [line] = caplog.records
    assert vars(line)["count"] == EXPORTS_AT_ONCE + 1


@on_sqlite
def test_deleted_rows_leave_nothing_in_the_files_of_sqlite(customer: Customer, task: RetentionTask) -> None:
    make_exports(customer, 1, OLD, labels=("of a customer",))
    files = [Path(f"{database.database}{end}") for end in ("", "-wal")]
    assert b"of a customer" in b"".join(file.read_bytes() for file in files)
    work(task)
    assert left() == 0
    assert b"of a customer" not in b"".join(file.read_bytes() for file in files)


@on_sqlite
def test_a_log_that_was_busy_during_a_redaction_is_emptied_by_the_next_run(customer: Customer, task: RetentionTask) -> None:
    make_exports(customer, 1, labels=("of a customer",))
    give_shop(customer)
    receive(Topic.SHOP_REDACT, VAULT)
    log = Path(f"{database.database}-wal")
    with closing(sqlite3.connect(database.database, isolation_level=None)) as reader:
        # As a backup does until it has copied everything.
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM exports").fetchone()
        assert ComplianceTask(VAULT, "worker:test", utc_now).run_once()
    assert rows("SELECT status, result FROM compliance_requests") == [("done", "redacted")]
    assert b"of a customer" in log.read_bytes()
    work(task)
    assert log.read_bytes() == b""


def test_nothing_is_deleted_in_the_first_minutes_while_the_clock_may_be_corrected(
    customer: Customer, clock: SettableClock
) -> None:
    make_exports(customer, 1, OLD)
    task = started(clock)
    clock.advance(FIRST_RUN_AFTER.total_seconds() - 1)
    assert work(task) == 0
    assert left() == 1
    clock.advance(1)
    assert work(task) == 1
    assert left() == 0


def test_retention_runs_once_an_hour_however_often_it_is_woken(
    customer: Customer, clock: SettableClock, task: RetentionTask
) -> None:
    assert work(task) == 0
    make_exports(customer, 1, OLD)
    clock.advance(RUN_EVERY.total_seconds() - 1)
    assert work(task) == 0
    clock.advance(1)
    assert work(task) == 1


@pytest.mark.parametrize("seconds", [-60.0, 3600.0, 86_400 * 3650.0])
def test_a_machine_has_time_to_correct_a_clock_that_was_set(
    customer: Customer, clock: SettableClock, task: RetentionTask, seconds: float
) -> None:
    make_exports(customer, EXPORTS_AT_ONCE + 1, OLD)
    assert task.run_once()
    clock.set_by(seconds)
    assert work(task) == 0
    assert left() == 1
    clock.advance(FIRST_RUN_AFTER.total_seconds() - 1)
    assert work(task) == 0
    clock.advance(1)
    assert work(task) == 1


def test_while_another_process_deletes_rows_retention_waits_an_hour(
    customer: Customer, clock: SettableClock, task: RetentionTask
) -> None:
    make_exports(customer, 1, OLD)
    with held_elsewhere():
        assert work(task) == 0
    assert work(task) == 0
    assert left() == 1
    clock.advance(RUN_EVERY.total_seconds())
    assert work(task) == 1


def test_a_run_that_failed_starts_again(customer: Customer, task: RetentionTask) -> None:
    make_exports(customer, EXPORTS_AT_ONCE + 1, OLD)
    assert task.run_once()
    execute("ALTER TABLE page_results RENAME TO gone")
    with pytest.raises(Exception, match="page_results"):
        work(task)
    execute("ALTER TABLE gone RENAME TO page_results")
    make_exports(customer, 1, OLD)
    assert work(task) == 1
    assert left() == 0


def test_retention_stops_after_the_current_batch(customer: Customer, clock: SettableClock, task: RetentionTask) -> None:
    many = EXPORTS_AT_ONCE * 25
    make_exports(customer, many, OLD)
    thread = TaskThread(BackgroundTask("retention", task.run_once, 600))
    thread.start()
    wait_until(lambda: left() < many)
    thread.stop()
    thread.join(AT_ONCE_S)
    assert not any(thread.name == "retention" for thread in threading.enumerate())
    assert left() > 0
