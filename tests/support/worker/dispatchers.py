"""Dispatchers for tests: a scripted receiver that counts requests, a frozen clock, and exports that are due."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from runtime.clock import utc_now
from schemas.exports.delivery import Outcome
from storage.db.engine import execute, rows
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from tests.support.factories import NOW, Customer, make_approved, make_target
from tests.support.fakes import NO_TRACKERS
from tests.support.processes.workers import wait_until
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.signed_request import Post

#: Make the name of each dispatcher unique, like that of each worker process.
NUMBERS: Final = itertools.count()
#: Long enough for a busy machine; a longer wait is a failure.
PATIENCE_S: Final = 10.0
#: No sweep occurs during a test: every delivery is started by a wake-up.
NO_SWEEP_S: Final = 600.0
#: No retry occurs during a test.
MUCH_LATER: Final = Schedule((3600, 3600), timedelta(hours=72))


class FakeClock:
    """A clock that only a test advances. It counts its reads."""

    def __init__(self) -> None:
        self.at = NOW
        self.reads = 0

    def __call__(self) -> datetime:
        self.reads += 1
        return self.at

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.at += timedelta(seconds=seconds)

    def wait_for_scans(self, reads: int = 40) -> None:
        """Wait for `reads` more reads of the clock, so that dispatchers have scanned at its current time."""
        seen = self.reads
        wait_until(lambda: self.reads >= seen + reads)


class FakePost:
    """Responds 202 once `gate` is open, after `delay_s` seconds. Counts requests by key, and the maximum in parallel.

    While the gate is closed, `let_through` releases some responses. `calls` has the time and the URL of each request.
    """

    def __init__(
        self, answer: Callable[[str], Outcome] = lambda _url: Outcome(status=202), now: Callable[[], datetime] = utc_now
    ) -> None:
        self.answer = answer
        self.gate = threading.Event()
        self.gate.set()
        self.delay_s = 0.0
        self.sent: Counter[str] = Counter()
        self.calls: list[tuple[datetime, str]] = []
        self.at_once = self.most_at_once = 0
        self._let_through = threading.Semaphore(0)
        self._now = now
        self._lock = threading.Lock()

    def __call__(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        with self._lock:
            self.sent[headers["Idempotency-Key"]] += 1
            self.calls.append((self._now(), url))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self._wait()
        time.sleep(self.delay_s)
        with self._lock:
            self.at_once -= 1
        return self.answer(url)

    def let_through(self, count: int) -> None:
        """Release the responses to this many of the requests that wait at the gate."""
        self._let_through.release(count)

    def to(self, url: str) -> list[datetime]:
        """Return the times of the requests to a URL."""
        return [at for at, where in self.calls if where == url]

    def _wait(self) -> None:
        gives_up_at = time.monotonic() + PATIENCE_S
        while not self.gate.is_set() and time.monotonic() < gives_up_at:
            if self._let_through.acquire(timeout=0.005):
                return


class RoutedPost(FakePost):
    """Posts to each URL of `by_url` with its own fake, to any other URL with `default`."""

    def __init__(self, by_url: Mapping[str, FakePost], default: FakePost) -> None:
        super().__init__()
        self._by_url = by_url
        self._default = default

    def __call__(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        return self._by_url.get(url, self._default)(url, headers, body, account_id)


@contextmanager
def running_dispatcher(
    post: FakePost, concurrency: int = 8, sweep_s: float = NO_SWEEP_S, **options: Any
) -> Iterator[Dispatcher]:
    """Run a dispatcher during the block. At the end, open the gate for waiting requests, and stop the dispatcher."""
    dispatcher = make_dispatcher(post, concurrency, sweep_s, **options)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        post.gate.set()
        dispatcher.stop()
        assert dispatcher.join(PATIENCE_S)


def make_dispatcher(
    post: Post,
    concurrency: int = 8,
    sweep_s: float = NO_SWEEP_S,
    now: Callable[[], datetime] = utc_now,
    schedule: Schedule = MUCH_LATER,
    **options: Any,
) -> Dispatcher:
    """Return a dispatcher without starting it."""
    runner = AttemptRunner(post, Vault(()), AttemptOptions(DefaultSecret("secret"), schedule, now, lambda: 0.0), NO_TRACKERS)
    # Every scan counts as quick, so that the dispatcher never pauses after one. On a busy machine scans are slow.
    return Dispatcher(runner, DispatcherOptions(name(), concurrency, sweep_s, now, **{"quick_scan_s": 600.0, **options}))


def name() -> str:
    """Return a new worker name."""
    return f"worker:test:{next(NUMBERS)}"


def approved(
    customer: Customer, count: int = 1, url: str = "https://tracker.example.com/hook", now: datetime | None = None
) -> list[str]:
    """Store approved exports for a target whose ramp is complete, as after many deliveries; return their ids."""
    target = make_target(customer, url)
    execute("UPDATE targets SET ramp = 16")
    return [make_approved(customer, target.id, now or utc_now()) for _ in range(count)]


def statuses() -> Counter[str]:
    """Count the exports in each status."""
    return Counter(status for (status,) in rows("SELECT status FROM exports"))


def all_exported(count: int) -> Callable[[], bool]:
    """Return a function that returns whether there are `count` exports, all exported."""
    return lambda: statuses() == {"exported": count}
