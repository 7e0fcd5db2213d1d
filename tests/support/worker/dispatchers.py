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

#: Each dispatcher has a name of its own, as each worker process has.
NUMBERS: Final = itertools.count()
#: Long enough for a busy machine; a longer wait is a failure.
PATIENCE_S: Final = 10.0
#: No sweep within a test: everything that happens was started by a wake-up.
NO_SWEEP_S: Final = 600.0
#: No retry within a test.
MUCH_LATER: Final = Schedule((3600, 3600), timedelta(hours=72))


class FakeClock:
    """A clock that stands still until it is set, and counts how often it was read."""

    def __init__(self) -> None:
        self.at = NOW
        self.looks = 0

    def __call__(self) -> datetime:
        self.looks += 1
        return self.at

    def advance(self, seconds: float) -> None:
        """Set the clock ahead."""
        self.at += timedelta(seconds=seconds)

    def wait_for_scans(self, looks: int = 40) -> None:
        """Wait until dispatchers have read the clock often at its current time."""
        seen = self.looks
        wait_until(lambda: self.looks >= seen + looks)


class FakePost:
    """Responds 202 once `gate` is open, after `delay_s` seconds; counts requests by key, and the most at once.

    While the gate is closed, `let_through` lets some responses pass. `calls` has the time and the URL of each request.
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
        """Let this many of the requests that wait at the gate have their response."""
        self._let_through.release(count)

    def to(self, url: str) -> list[datetime]:
        """Return when requests were sent to a URL."""
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
    """Start a dispatcher and stop it at the end; requests that wait at the gate are let through then."""
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
    """Return a dispatcher that was not started."""
    runner = AttemptRunner(post, Vault(()), AttemptOptions(DefaultSecret("secret"), schedule, now, lambda: 0.0), NO_TRACKERS)
    # On a busy machine every scan is a long one: without rests, a wake-up is answered when nothing is due at all.
    return Dispatcher(runner, DispatcherOptions(name(), concurrency, sweep_s, now, **{"quick_scan_s": 600.0, **options}))


def name() -> str:
    """Return the name of one more worker."""
    return f"worker:test:{next(NUMBERS)}"


def approved(
    customer: Customer, count: int = 1, url: str = "https://tracker.example.com/hook", now: datetime | None = None
) -> list[str]:
    """Approve exports for a target whose ramp is over, as after many deliveries; return their ids."""
    target = make_target(customer, url)
    execute("UPDATE targets SET ramp = 16")
    return [make_approved(customer, target.id, now or utc_now()) for _ in range(count)]


def statuses() -> Counter[str]:
    """Count the exports in each status."""
    return Counter(status for (status,) in rows("SELECT status FROM exports"))


def all_exported(count: int) -> Callable[[], bool]:
    """Return a function that returns whether there are `count` exports, all exported."""
    return lambda: statuses() == {"exported": count}
