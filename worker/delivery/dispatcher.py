"""The dispatcher: one thread that claims due exports, hands them to the sender pool, and writes the results.

Each tick is one transaction (`worker.delivery.tick_writer`). The dispatcher owns the database work, the pool's threads own
the network, and neither waits for the other. It claims no more than the pool can soon send, so that claims do not wait here
while another worker is idle; no more of one account than its share of the threads, so that no account delays another
(`runtime.account_shares`); and no more of one target than its throttle state and this worker's share of it allow
(`worker.delivery.throttle`), so that no target delays another.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from schemas.exports.delivery import Claim
from schemas.targets.throttle_state import ThrottleState
from storage.db.engine import OUTAGES
from worker.delivery.attempt import AttemptRunner
from worker.delivery.claim_planner import MAX_BATCH, ClaimPlanner, DueTargetScanner
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.inbox import Inbox, SendResult
from worker.delivery.lease_keeper import LeaseKeeper
from worker.delivery.options import DispatcherOptions
from worker.delivery.sender_pool import SenderPool
from worker.delivery.target_queues import TargetQueues
from worker.delivery.tick_writer import TickWriter

#: A commit costs a disk sync: at 20 ms dozens of deliveries share it, and no user notices the delay. A tick is twice as long
#: while every thread is busy and more claims are ready: further claims would only wait, too.
TICK_S: Final = 0.02
#: Due times are whole milliseconds; a wake-up slightly too early would cause a second scan.
MIN_SLEEP_S: Final = 0.005
#: How often to check for exports that have come due while requests are open and no result arrives.
IDLE_SCAN_S: Final = 0.5
#: How long one wake-up may occupy its RQ job; the next wake-up continues.
SLICE_S: Final = 25.0

_log: Final = logging.getLogger(__name__)


class Dispatcher:
    """Delivers due exports when it is woken, and every `sweep_s` seconds without a wake-up."""

    def __init__(self, runner: AttemptRunner, options: DispatcherOptions) -> None:
        self._options = options
        self._stopped_at = float("inf")
        #: Monotonic time at which `join` stops waiting.
        self._ends_at = float("inf")
        self._planner = ClaimPlanner(options.concurrency, DueTargetScanner(options.quick_scan_s))
        self._inbox = Inbox(self._planner.scan_again)
        self._queues = TargetQueues(options.concurrency)
        self._pool = SenderPool(runner, self._queues, self._inbox)
        clock = ClockGuard(options.now, options.compare_clocks)
        self._leases = LeaseKeeper(options, clock)
        self._writer = TickWriter(options, self._planner, clock, self._leases, self._queues, self._gives_up)
        self._thread = threading.Thread(target=self._run, name="dispatcher")

    def start(self) -> None:
        """Start the threads; the first scan begins at once."""
        self._inbox.wake()
        self._pool.grow()
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread."""
        self._inbox.wake()

    def deliver_due(self, timeout_s: float = SLICE_S) -> bool:
        """Wake the thread and wait until nothing is due, at most `timeout_s` seconds; return False after the timeout."""
        return self._inbox.wake_and_wait(timeout_s)

    @property
    def has_work_for_other_workers(self) -> bool:
        """Return whether the last scan found due exports for which only another worker has a slot."""
        return self._planner.has_work_for_other_workers

    def stop(self) -> None:
        """Claim nothing more; running attempts finish, claims that were not sent are returned.

        Takes no lock, so that a signal handler may call it.
        """
        self._stopped_at = min(self._stopped_at, time.monotonic())
        self._inbox.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after `stop`; return whether it ended. After `timeout_s`, the thread retries no write."""
        self._ends_at = min(self._ends_at, time.monotonic() + timeout_s)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_stopping(self) -> bool:
        return self._stopped_at < float("inf")

    def _gives_up(self, began_at: float) -> bool:
        """Return whether work that began at `began_at` is no longer retried.

        A request may end later than `stop_timeout_s` after the stop, and its result is stored nowhere else. So the timeout
        counts from the stop or from `began_at`, whichever is later.
        """
        now = time.monotonic()
        return now > self._ends_at or now - max(self._stopped_at, began_at) > self._options.stop_timeout_s

    def _run(self) -> None:
        while not self._is_stopping():
            if not self._leases:
                # Wait for a wake-up, the next sweep or the next due time. The next scan serves every wake-up until then.
                self._inbox.take(self._wait_s())
                self._inbox.take_wake_ups()
            self._safely(self._deliver_until_idle)
            self._inbox.release_callers()
        self._safely(self._return_unsent)
        # Before the open requests end, so that other workers at once get targets that allow only one request.
        self._safely(self._leases.leave)
        self._safely(self._finish_sending)
        self._pool.stop()
        self._inbox.take_wake_ups()
        self._inbox.release_callers()

    def _safely(self, work: Callable[[], None]) -> None:
        """Keep the thread alive after an unexpected error; running attempts stay held and are written later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the next scan starts again, and nothing is lost: the table is the truth
            _log_failure("dispatcher failed, starting again", error)

    def _deliver_until_idle(self) -> None:
        while not self._is_stopping():
            claims = self._tick(claiming=True)
            if not claims and not self._leases:
                return

    def _finish_sending(self) -> None:
        """Write the results of open requests until no request is open; results that cannot be written in time are lost."""
        while self._leases:
            try:
                self._tick(claiming=False)
                # Threads may have put claims back into a paused queue; these were not sent either.
                self._return_unsent()
                self._inbox.release_callers()
            except Exception as error:
                if time.monotonic() > self._ends_at:
                    raise
                # Other requests may still be open, and their results are stored nowhere else.
                _log_failure("dispatcher failed, finishing its attempts", error)

    def _tick(self, *, claiming: bool) -> list[Claim]:
        """Write the results that have arrived, claim, and return the new claims."""
        results = self._collect()
        try:
            tick = self._writer.write(results, claiming=claiming)
        finally:
            # Written or not: if a result could not be written, its lease expires, and the export is sent again.
            self._leases.drop(each.claim for each in results)
            for each in results:
                if each.pauses_queue:
                    self._queues.commit(each.claim.target_id)
        self._leases.hold(tick.claims)
        self._queues.add(tick.claims)
        if claiming:
            self._open_queues(tick.states)
        return tick.claims

    def _collect(self) -> list[SendResult]:
        """Wait for the first result, let a tick pass if more are expected, and take all that have arrived."""
        first = self._inbox.take(min(IDLE_SCAN_S, self._wait_s())) if self._leases else None
        if first is None:
            return []
        results = [first]
        if len(self._leases) > 1:
            # Sleep instead of waiting for each result: each wake-up of this thread would delay the sender threads.
            time.sleep(TICK_S)
            if self._queues.has_ready():
                time.sleep(TICK_S)
        while len(results) < MAX_BATCH and (another := self._inbox.take(0)) is not None:
            results.append(another)
        return results

    def _open_queues(self, states: dict[str, ThrottleState]) -> None:
        """Set the slots of each queue as its target's throttle state allows; take the claims out of queues without slots."""
        waiting, now = self._queues.waiting(), self._options.now()
        if unknown := waiting - states.keys():
            states |= self._writer.read_states(unknown)
        for state in [states[target_id] for target_id in waiting if target_id in states]:
            slots = self._planner.slots(state, now)
            self._queues.set_slots(state.target_id, slots)
            for claim in self._queues.remove(state.target_id) if not slots else ():
                self._inbox.put(SendResult(claim, is_unsent=True))
        self._pool.grow()

    def _return_unsent(self) -> None:
        unsent = self._queues.remove_all()
        self._leases.drop(unsent)
        if unsent:
            self._writer.postpone(unsent)

    def _wait_s(self) -> float:
        """Return the seconds to wait: the sweep's period, or less if an attempt may start or a renewal is due earlier."""
        if not self._inbox.is_empty():
            return 0.0
        wait_s = min(self._options.sweep_s, self._leases.until_renewal_s())
        ready_at = self._planner.ready_at
        if ready_at is None or self._is_stopping():
            return wait_s
        return min(wait_s, max(MIN_SLEEP_S, (ready_at - self._options.now()).total_seconds()))


def _log_failure(message: str, error: Exception) -> None:
    """Log an error with its traceback; an outage, whose retries have ended, needs no traceback."""
    _log.error(message, extra={"error": type(error).__name__}, exc_info=not isinstance(error, OUTAGES))
