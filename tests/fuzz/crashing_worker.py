"""A worker within this process that dies or sleeps at a named point, when it calls one of the test's fakes.

It is the dispatcher of `worker.daemon`, with a clock, an HTTP client and a counter of the test. From its
death on none of its threads gets further than its next call of the fakes; a sleeping thread is outside of transactions.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.exports.delivery import CompletedAttempt, Outcome
from storage.db.engine import database
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from tests.fuzz.erratic_receiver import ModelClock
from tests.support.fakes import NO_TRACKERS
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.signed_request import Post

#: Delays of the retries of one export: few, so that some exports use all of them.
RETRIES_S: Final = (5.0, 30.0, 120.0, 3600.0)
MAX_AGE: Final = timedelta(hours=72)
#: A longer wait is a failure.
PATIENCE_S: Final = 20.0
NO_SWEEP_S: Final = 600.0

#: The points at which a worker can die; the last two are before and after a commit.
DEATHS: Final = ("claimed", "before the request", "answered", "before the result", "result written", "result committed")
#: The points at which it can sleep, with one sending thread: it holds no lock there, and reads the state again afterwards.
SLEEPS: Final = ("claimed", "answered")


class Died(BaseException):
    """Ends each thread of a dead worker. The product does not catch it, as it is a BaseException."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Makes a worker die, or sleep, when it reaches a point for the `nth` time."""

    point: str
    nth: int = 1
    only_sleeps: bool = False


class HaltingWorker:
    """A dispatcher that delivers all due exports once, unless a Halt ends it."""

    def __init__(
        self, name: str, post: Post, vault: Vault, secret: str, clock: ModelClock, concurrency: int, halt: Halt | None
    ) -> None:
        self.name = name
        self.sent: set[str] = set()
        self.is_dead = self.was_asleep = self.was_misled = False
        self._post = post
        self._clock = clock
        self._halt = halt
        self._passed = self._answered = self._written = self._posting = 0
        self._dispatcher_stopped = False
        self._over = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        options = AttemptOptions(DefaultSecret(secret), Schedule(RETRIES_S, MAX_AGE), self._senders_now, lambda: 0.0)
        dispatcher_options = DispatcherOptions(
            name, concurrency, NO_SWEEP_S, self._dispatcher_now, quick_scan_s=NO_SWEEP_S, count=self._count_written
        )
        self._dispatcher = Dispatcher(AttemptRunner(self._send, vault, options, NO_TRACKERS), dispatcher_options)

    @property
    def is_asleep(self) -> bool:
        """Whether the worker sleeps."""
        return not self._awake.is_set()

    @property
    def may_have_lost_lease(self) -> bool:
        """Whether it may have lost a lease: it died, slept, or ran beside a worker that started when the clock was set."""
        return self.is_dead or self.was_asleep or self.was_misled

    def begin(self, notifications: int = 1) -> None:
        """Start, and receive this number of notifications."""
        self._dispatcher.start()
        # Daemon threads, because calls to a dead worker never return.
        callers = [
            threading.Thread(target=self._dispatcher.deliver_due, args=(PATIENCE_S,), daemon=True)
            for _ in range(notifications)
        ]
        for caller in callers:
            caller.start()
        threading.Thread(target=self._wait_for, args=(callers,), daemon=True).start()

    def end(self) -> None:
        """Wait until nothing is due or the worker has halted. Stop it, unless it sleeps."""
        assert self._over.wait(PATIENCE_S + 5), f"{self.name} came to no end"
        if self.is_asleep:
            self._dispatcher._inbox.wake()
            self._wait_until(lambda: self._dispatcher_stopped and not self._posting)
        elif self.is_dead:
            self._stop_dead()
        else:
            self._stop()

    def wake(self) -> None:
        """Continue after the sleep, until nothing is due, and stop."""
        self._over.clear()
        self._awake.set()
        caller = threading.Thread(target=self._dispatcher.deliver_due, args=(PATIENCE_S,))
        caller.start()
        self._wait_for([caller])
        self._stop()

    def kill(self) -> None:
        """Make the sleeping worker die."""
        self.is_dead = True
        self._awake.set()
        self._stop_dead()

    def _wait_for(self, callers: Sequence[threading.Thread]) -> None:
        for caller in callers:
            caller.join()
        self._over.set()

    def _stop(self) -> None:
        self._dispatcher.stop()
        assert self._dispatcher.join(PATIENCE_S), f"{self.name} does not end"
        if self.is_dead:
            # It died while it stopped.
            self._stop_dead()
            return
        assert not self._dispatcher._leases, f"{self.name} holds claims at rest"
        assert not self._dispatcher._queues._queues, f"{self.name} has queues at rest"

    def _stop_dead(self) -> None:
        self._dispatcher.stop()
        self._dispatcher._pool.stop()
        assert self._dispatcher.join(PATIENCE_S), f"{self.name} does not stay dead"
        self._wait_until(lambda: not self._posting)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        gives_up_at = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < gives_up_at, f"{self.name} does not stand still"
            time.sleep(0.001)

    # --- the fakes that the dispatcher calls

    def _senders_now(self) -> datetime:
        has_posted = getattr(self._of_thread, "has_posted", False)
        self._of_thread.has_posted = False
        self._at("answered" if has_posted else "claimed")
        return self._clock.at

    def _send(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        with self._lock:
            self._posting += 1
        try:
            self._at("before the request")
            self.sent.add(headers["X-Request-Id"])
            outcome = self._post(url, headers, body, account_id, certificate)
        finally:
            with self._lock:
                self._posting -= 1
        self._of_thread.has_posted = True
        with self._lock:
            self._answered += 1
        return outcome

    def _dispatcher_now(self) -> datetime:
        if self._answered > self._written:
            self._at("result written" if database.in_transaction() else "before the result")
        else:
            self._at("anywhere")
        return self._clock.at

    def _count_written(self, attempts: Sequence[CompletedAttempt], _moved: Collection[str]) -> None:
        self._written += len(attempts)
        if attempts:
            self._at("result committed")

    def _at(self, point: str) -> None:
        if self.is_dead:
            raise Died
        if self._halt is not None and self._halt.point == point and self._is_reached(self._halt):
            self._stop_here(self._halt)
        # A worker that sleeps within a transaction would block all others.
        if not database.in_transaction() and not self._awake.is_set():
            self._dispatcher_stopped = self._dispatcher_stopped or threading.current_thread() is self._dispatcher._thread
            self._awake.wait()
        if self.is_dead:
            raise Died

    def _is_reached(self, halt: Halt) -> bool:
        with self._lock:
            self._passed += 1
            return self._passed == halt.nth

    def _stop_here(self, halt: Halt) -> None:
        if halt.only_sleeps:
            self.was_asleep = True
            self._awake.clear()
        else:
            self.is_dead = True
        self._over.set()


def run_in_parallel(workers: Sequence[HaltingWorker], notifications: int) -> None:
    """Run workers in parallel until each is done, dead or asleep."""
    for worker in workers:
        worker.begin(notifications)
    for worker in workers:
        worker.end()
