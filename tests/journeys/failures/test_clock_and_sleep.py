"""A worker that wakes after its claims have expired does not use them. A clock that jumps loses and repeats nothing."""

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows, transaction
from storage.exports import queries
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.http.storefront import SHOP, receive
from tests.support.processes.backups import VAULT
from tests.support.processes.hosts import approved_for_each, claimed_by, delivered_by, name_of
from tests.support.processes.workers import (
    CountingReceiver,
    FailingWorker,
    SteppingClock,
    WorkerProcess,
    all_are,
    approved,
    approved_each,
    delete_workers,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import RedisServer

HOUR_S: Final = 3600.0
#: How long to wait for something that must not happen: three sweeps, and every renewal of a lease in between.
OBSERVED_S: Final = 3.0


def due_at(export_id: str, clock: SteppingClock) -> float:
    """Return in how many seconds, by this clock, the export is due."""
    found = queries.get(export_id).due_at
    assert found is not None
    return (found - clock.now()).total_seconds()


def processor_share(worker: WorkerProcess, span_s: float) -> float:
    """Return the share of one CPU that a worker uses during `span_s` seconds."""
    before = worker.cpu_s()
    time.sleep(span_s)
    return (worker.cpu_s() - before) / span_s


@on_postgresql
def test_a_worker_stopped_within_a_transaction_delays_deliveries_only_briefly(
    start: Callable[..., WorkerProcess], failing: Callable[..., FailingWorker], receiver: CountingReceiver
) -> None:
    """For the server this worker is like one whose machine lost power: its connection stays open and keeps its locks."""
    [export_id] = approved(receiver.url())
    with failing("--at", "claimed", "--signal", "STOP") as stopped:
        stopped.go()
        wait_until(stopped.is_stopped)
        with start():
            wait_until(is_exported(export_id), 20)
        stopped.signal(signal.SIGCONT)
        time.sleep(OBSERVED_S / 2)
        stopped.signal()
        assert stopped.wait() == 0
    assert receiver.keys == [export_id]
    assert queries.get(export_id).attempts == 1


@on_postgresql
def test_a_worker_resumed_after_its_leases_expired_sends_and_writes_nothing(
    start: Callable[..., WorkerProcess], failing: Callable[..., FailingWorker], receiver: CountingReceiver
) -> None:
    with ExitStack() as stack:
        committed, sending = failing("--at", "claim committed", "--signal", "STOP"), failing()
        for late in (committed, sending):
            stack.enter_context(late)
        not_begun = approved_each(receiver.url(), 4)
        committed.go()
        wait_until(committed.is_stopped)
        receiver.gate.clear()
        unanswered = approved_each(receiver.url(), 2)
        delete_workers()
        sending.go()
        wait_until(lambda: len(receiver.requests) == 2)
        sending.signal(signal.SIGSTOP)
        receiver.gate.set()
        successor = stack.enter_context(start())
        wait_until(all_are("exported"))
        written = rows("SELECT export_id, number, worker FROM attempts ORDER BY id")
        for late in (committed, sending):
            late.signal(signal.SIGCONT)
        time.sleep(OBSERVED_S / 2)
        for worker in (committed, sending, successor):
            worker.signal()
            assert worker.wait() == 0
    assert Counter(receiver.keys) == dict.fromkeys(not_begun, 1) | dict.fromkeys(unanswered, 2)
    for export_id in unanswered:
        first, second = receiver.of(export_id)
        assert first.body == second.body
    assert rows("SELECT export_id, number, worker FROM attempts ORDER BY id") == written
    assert {number for _, number, _ in written} == {2}
    assert len({worker for *_, worker in written}) == 1


@pytest.fixture
def pair(failing: Callable[..., FailingWorker], stepping_clock: SteppingClock) -> Callable[..., FailingWorker]:
    """Return a function that starts workers with the stepping clock, as on one machine."""

    def started(**changes: str) -> FailingWorker:
        return failing("--clock", str(stepping_clock.path), **changes)

    return started


@on_sqlite
@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_clock_step_during_deliveries_causes_no_repeated_delivery(
    pair: Callable[..., FailingWorker], stepping_clock: SteppingClock, receiver: CountingReceiver, step_s: float
) -> None:
    receiver.gate.clear()
    # The idle worker sweeps so often that it scans before the busy worker's next renewal.
    with pair() as busy, pair(SWEEP_SECONDS="0.1") as idle:
        ids = approved_each(receiver.url(), 4)
        busy.go()
        wait_until(lambda: len(receiver.requests) == 4)
        idle.go()
        wait_until(lambda: idle.has_logged("worker started"))
        stepping_clock.step_to(step_s)
        time.sleep(OBSERVED_S)
        receiver.gate.set()
        wait_until(all_are("exported"))
        # Exports that are approved after the step are due by the stepped clock.
        ids += approved(receiver.url(), at=stepping_clock.now())
        wait_until(is_exported(ids[-1]))
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)
    assert rows("SELECT DISTINCT number FROM attempts") == [(1,)]


@on_sqlite
def test_a_clock_step_with_waiting_exports_causes_no_repeated_or_early_delivery(
    pair: Callable[..., FailingWorker], stepping_clock: SteppingClock, redis: RedisServer, receiver: CountingReceiver
) -> None:
    soon = approved(receiver.url(), 20, stepping_clock.now() + timedelta(minutes=30))
    later = approved(receiver.url(), 20, stepping_clock.now() + timedelta(hours=3))
    with pair() as one, pair() as other:
        for worker in (one, other):
            worker.go()
        for offset_s in (-HOUR_S, 0.0):
            stepping_clock.step_to(offset_s)
            assert notify_workers(redis)
            assert processor_share(one, OBSERVED_S / 2) < 0.5
        assert receiver.requests == []
        stepping_clock.step_to(HOUR_S)
        wait_until(lambda: all(is_exported(each)() for each in soon))
        stepping_clock.step_to(0.0)
        assert notify_workers(redis)
        assert processor_share(one, OBSERVED_S / 2) < 0.5
        assert Counter(receiver.keys) == dict.fromkeys(soon, 1)
        assert {queries.get(each).status.value for each in later} == {"approved"}
        assert min(due_at(each, stepping_clock) for each in later) > 2 * HOUR_S
        ids = approved(receiver.url())
        wait_until(is_exported(ids[0]))


@on_sqlite
@pytest.mark.parametrize("successor_is", ["already there", "started later"])
def test_a_dead_worker_does_not_delay_deliveries_after_the_clock_stepped_back(
    pair: Callable[..., FailingWorker], stepping_clock: SteppingClock, receiver: CountingReceiver, successor_is: str
) -> None:
    """Its lease expires, and its heartbeat was written, at a time that the clock reaches again only after an hour."""
    receiver.gate.clear()
    with pair() as dying, pair() as successor:
        [taken_over] = approved(receiver.url())
        dying.go()
        wait_until(lambda: receiver.requests)
        if successor_is == "already there":
            successor.go()
            wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(2,)])
        dying.kill()
        receiver.gate.set()
        stepping_clock.step_to(-HOUR_S)
        if successor_is == "started later":
            successor.go()
        with transaction():
            fresh = approved_each(receiver.url(), 8, stepping_clock.now())
            # One request at a time for each target. If the dead worker still counted, it would own some of the targets.
            execute("UPDATE targets SET ramp = 1")
        wait_until(all_are("exported"), 20)
    assert Counter(receiver.keys) == dict.fromkeys(fresh, 1) | {taken_over: 2}


@on_postgresql
@pytest.mark.parametrize("off_s", [60.0, -60.0])
def test_a_host_with_a_wrong_clock_takes_over_no_valid_lease_and_delivers_its_share(
    failing: Callable[..., FailingWorker], stepping_clock: SteppingClock, receiver: CountingReceiver, off_s: float
) -> None:
    """There are two hosts. One has the correct time. The other's clock is wrong, and is corrected at the end."""
    stepping_clock.step_to(off_s)
    receiver.gate.clear()
    with failing() as right, failing("--clock", str(stepping_clock.path)) as wrong:
        right.go()
        ids = approved_each(receiver.url(), 4)
        wait_until(lambda: len(receiver.requests) == 4)
        wrong.go()
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(2,)])
        time.sleep(OBSERVED_S)
        ids += approved_for_each(receiver.url(), targets=20, each=4)
        wait_until(lambda: len(claimed_by()) == 2)
        stepping_clock.step_to(0.0)
        time.sleep(OBSERVED_S)
        receiver.gate.set()
        wait_until(all_are("exported"))
        assert set(delivered_by()) == {name_of(right), name_of(wrong)}
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)
    assert rows("SELECT DISTINCT number FROM attempts") == [(1,)]


@on_postgresql
def test_a_host_with_a_wrong_clock_takes_over_no_leased_compliance_request(
    failing: Callable[..., FailingWorker], stepping_clock: SteppingClock
) -> None:
    stepping_clock.step_to(HOUR_S)
    shop, other_shop = (receive(Topic.SHOP_REDACT, VAULT, None, domain) for domain in (SHOP, "other.shops.example"))
    lapses_at = to_ms(utc_now() + timedelta(seconds=HOUR_S / 2))
    execute("UPDATE compliance_requests SET lease = 'lse_other', next_run_at = ? WHERE id = ?", (lapses_at, shop))
    with failing("--clock", str(stepping_clock.path)) as wrong:
        wrong.go()
        wait_until(lambda: compliance_requests.get(other_shop).finished_at is not None)
        # By now the worker has scanned for more exports.
        time.sleep(OBSERVED_S)
    assert rows("SELECT lease, next_run_at FROM compliance_requests WHERE id = ?", (shop,)) == [("lse_other", lapses_at)]
