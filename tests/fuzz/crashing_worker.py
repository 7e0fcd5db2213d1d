"""A worker of this process that dies or falls asleep at a named point, where its own tools are called.

It is the dispatcher of `worker.daemon`, with the clock, the sender and the counter of the test. From its
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

#: Retries of one export, in seconds: few, so that some are spent.
RETRIES_S: Final = (5.0, 30.0, 120.0, 3600.0)
MAX_AGE: Final = timedelta(hours=72)
#: Whatever waits so long has failed.
PATIENCE_S: Final = 20.0
NO_SWEEP_S: Final = 600.0

#: Where a worker may die; the last two are on either side of a commit.
DEATHS: Final = ("claimed", "before the request", "answered", "before the result", "result written", "result committed")
#: Where it may fall asleep, with one thread that sends: nothing is locked there, and what it does next it looks at anew.
SLEEPS: Final = ("claimed", "answered")


class Died(BaseException):
    """The end of a worker: every thread of it ends by it, and nothing of the product catches it."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a worker when it comes to a point for the `nth` time."""

    point: str
    nth: int = 1
    only_sleeps: bool = False


class MortalWorker:
    """One dispatcher that works once, on everything that is due."""

    def __init__(
        self, name: str, post: Post, vault: Vault, secret: str, clock: ModelClock, concurrency: int, fate: Fate | None
    ) -> None:
        self.name = name
        self.sent: set[str] = set()
        self.is_dead = self.was_asleep = self.was_misled = False
        self._post = post
        self._clock = clock
        self._fate = fate
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
        """Return whether the worker is stopped."""
        return not self._awake.is_set()

    @property
    def is_unlucky(self) -> bool:
        """Return whether it may have lost a lease: dead, asleep, or beside one that started just when the clock was set."""
        return self.is_dead or self.was_asleep or self.was_misled

    def begin(self, notifications: int = 1) -> None:
        """Start, and receive so many notifications."""
        self._dispatcher.start()
        # Daemons: nobody answers the calls to one that died.
        callers = [
            threading.Thread(target=self._dispatcher.deliver_due, args=(PATIENCE_S,), daemon=True)
            for _ in range(notifications)
        ]
        for caller in callers:
            caller.start()
        threading.Thread(target=self._wait_for, args=(callers,), daemon=True).start()

    def end(self) -> None:
        """Wait until nothing is due, or it met its fate; one that lives on leaves, one that is dead is buried."""
        assert self._over.wait(PATIENCE_S + 5), f"{self.name} came to no end"
        if self.is_asleep:
            self._dispatcher._inbox.wake()
            self._wait_until(lambda: self._dispatcher_stopped and not self._posting)
        elif self.is_dead:
            self._bury()
        else:
            self._leave()

    def wake(self) -> None:
        """Go on where it stood, to the end."""
        self._over.clear()
        self._awake.set()
        caller = threading.Thread(target=self._dispatcher.deliver_due, args=(PATIENCE_S,))
        caller.start()
        self._wait_for([caller])
        self._leave()

    def kill(self) -> None:
        """Die in its sleep."""
        self.is_dead = True
        self._awake.set()
        self._bury()

    def _wait_for(self, callers: Sequence[threading.Thread]) -> None:
        for caller in callers:
            caller.join()
        self._over.set()

    def _leave(self) -> None:
        self._dispatcher.stop()
        assert self._dispatcher.join(PATIENCE_S), f"{self.name} does not end"
        if self.is_dead:
            # It died on its way out.
            self._bury()
            return
        assert not self._dispatcher._leases, f"{self.name} holds claims at rest"
        assert not self._dispatcher._queues._queues, f"{self.name} has queues at rest"

    def _bury(self) -> None:
        self._dispatcher.stop()
        self._dispatcher._pool.stop()
        assert self._dispatcher.join(PATIENCE_S), f"{self.name} does not stay dead"
        self._wait_until(lambda: not self._posting)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        gives_up_at = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < gives_up_at, f"{self.name} does not stand still"
            time.sleep(0.001)

    # --- the tools that it works with

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
        if self._fate is not None and self._fate.point == point and self._is_the_time(self._fate):
            self._meet(self._fate)
        # Who stood still within a transaction would keep all others standing.
        if not database.in_transaction() and not self._awake.is_set():
            self._dispatcher_stopped = self._dispatcher_stopped or threading.current_thread() is self._dispatcher._thread
            self._awake.wait()
        if self.is_dead:
            raise Died

    def _is_the_time(self, fate: Fate) -> bool:
        with self._lock:
            self._passed += 1
            return self._passed == fate.nth

    def _meet(self, fate: Fate) -> None:
        if fate.only_sleeps:
            self.was_asleep = True
            self._awake.clear()
        else:
            self.is_dead = True
        self._over.set()


def all_at_once(workers: Sequence[MortalWorker], notifications: int) -> None:
    """Let workers work beside each other until each is done, dead or asleep."""
    for worker in workers:
        worker.begin(notifications)
    for worker in workers:
        worker.end()
