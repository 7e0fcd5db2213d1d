"""One thread that drains what is due: claim, hand to the pool, write what came back, in one transaction a tick.

The drain owns the database work; the pool's threads own the network, and neither waits for the other. It refuses to claim
more than the pool can soon send, so that what this process holds does not wait here while another one idles.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from schemas.delivery import Attempted, Claim
from storage import exports, targets
from storage.database import OUTAGES, connection, transaction
from worker.delivery import Courier

#: A commit costs a disk sync: at 20 ms it is shared by dozens of deliveries and still felt by nobody.
TICK_S: Final = 0.02
#: Due times are whole milliseconds; waking a little early would only mean looking twice.
MIN_SLEEP_S: Final = 0.005
#: With answers outstanding and none coming, how soon to look whether something else has come due.
PATIENCE_S: Final = 0.5
#: Held claims are renewed every 2 s and lapse after 6 s, so that a worker that died is replaced within 10 s.
RENEW_S: Final = 2.0
LEASE_S: Final = 6.0
#: How long one ring may keep its RQ job; the next ring carries on.
SLICE_S: Final = 25.0
#: How long the writes of a stopping worker may wait for a database that is away.
FAREWELL_S: Final = 10.0
#: Rows of one statement. An attempt takes 16 parameters, and SQLite's limit of 32,766 would look like an outage for ever.
MAX_BATCH: Final = 500

Result = TypeVar("Result")
#: A claim that came back: with its attempt, or with None where the attempt broke off.
Returned: TypeAlias = tuple[Claim, Attempted | None]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrainTerms:
    """How a worker process drains."""

    worker: str
    concurrency: int
    sweep_s: float
    now: Callable[[], datetime]
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S
    farewell_s: float = FAREWELL_S


class Drain:
    """Delivers what is due when it is woken, and looks by itself every `sweep_s` seconds."""

    def __init__(self, courier: Courier, terms: DrainTerms) -> None:
        self._courier = courier
        self._terms = terms
        self._held: dict[int, Claim] = {}
        #: What the pool is to send; None ends one of its threads. Plain queues and threads, because an executor's future
        #: costs a delivery more than its share of the database does.
        self._outbox: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        #: What the pool sends back; None is a ring. One queue for both, so that either ends the wait for the other, and a
        #: simple one, because a signal handler may put into it at any moment.
        self._inbox: queue.SimpleQueue[Returned | None] = queue.SimpleQueue()
        self._renew_at = 0.0
        self._idle = threading.Event()
        self._stopped_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="drain")

    def start(self) -> None:
        """Start the thread; its first look is at once."""
        self._inbox.put(None)
        for number in range(self._terms.concurrency):
            threading.Thread(target=self._send_claims, name=f"delivery-{number}", daemon=True).start()
        self._thread.start()

    def drain(self, timeout_s: float = SLICE_S) -> None:
        """Wake the thread and wait until nothing is due, at most `timeout_s` seconds."""
        self._idle.clear()
        self._inbox.put(None)
        self._idle.wait(timeout_s)

    def stop(self) -> None:
        """Claim nothing more; what is being sent is finished, what was not begun is given back.

        Takes no lock, so that a signal handler may call it.
        """
        self._stopped_at = min(self._stopped_at, time.monotonic())
        self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after `stop`; tell whether it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_stopping(self) -> bool:
        return self._stopped_at < float("inf")

    def _run(self) -> None:
        while not self._is_stopping():
            if not self._held:
                self._wait_for_a_ring()
            self._safely(self._until_nothing_is_due)
            self._idle.set()
        self._safely(self._give_back_what_was_not_begun)
        self._safely(self._until_nothing_is_held)
        for _ in range(self._terms.concurrency):
            self._outbox.put(None)
        self._idle.set()

    def _send_claims(self) -> None:
        """What each thread of the pool does: make one attempt after the other."""
        while (claim := self._outbox.get()) is not None:
            try:
                self._inbox.put((claim, self._courier.deliver(claim)))
            except Exception:  # noqa: BLE001 - the thread must go on; the claim is left to lapse
                _log.exception("attempt broke off", extra={"export_id": claim.export_id})
                self._inbox.put((claim, None))

    def _wait_for_a_ring(self) -> None:
        """Sleep until a ring, the next sweep or the next due time; the look that follows answers every ring until then."""
        try:
            self._inbox.get(timeout=self._until_next_look_s())
        except queue.Empty:
            return
        while not self._inbox.empty():
            self._inbox.get()

    def _until_next_look_s(self) -> float:
        """Return the sweep's period, or less where a retry comes due before the sweep would see it."""
        if not self._inbox.empty():
            return 0.0
        now = self._terms.now()
        try:
            with connection():
                due_at = exports.next_due(now)
        except Exception:  # noqa: BLE001 - the look that follows meets the same, and is prepared to tell it
            due_at = None
        if due_at is None:
            return self._terms.sweep_s
        return min(self._terms.sweep_s, max(MIN_SLEEP_S, (due_at - now).total_seconds()))

    def _safely(self, work: Callable[[], None]) -> None:
        """Keep the thread alive through what it does not expect; what is being sent stays held and is written later."""
        try:
            work()
        except Exception:  # noqa: BLE001 - the next look begins anew, and nothing is lost: the table is the truth
            _log.exception("drain broke off")

    def _until_nothing_is_due(self) -> None:
        while not self._is_stopping():
            claims = self._tick(claiming=True)
            if not claims and not self._held:
                return

    def _until_nothing_is_held(self) -> None:
        while self._held:
            self._tick(claiming=False)

    def _tick(self, *, claiming: bool) -> list[Claim]:
        """Write what came back since the last tick and claim what there is room for, in one transaction."""
        returned = self._returned()
        limit = self._room_after(len(returned)) if claiming else 0
        try:
            claims = self._write([attempt for _, attempt in returned if attempt is not None], limit)
        finally:
            # Written or not, it came back and is held no longer: what could not be written lapses and is sent again.
            for claim, _ in returned:
                del self._held[id(claim)]
        for claim in claims:
            self._held[id(claim)] = claim
            self._outbox.put(claim)
        return claims

    def _write(self, attempts: list[Attempted], limit: int) -> list[Claim]:
        """Write a tick; an answer that the database refuses is left out and does not take the others with it."""
        try:
            return self._persistently(lambda: self._write_and_claim(attempts, limit))
        except OUTAGES:
            raise
        except Exception:
            if not attempts:
                raise
            _log.exception("tick not written, writing its answers one by one")
        for attempt in attempts:
            self._safely(partial(self._write_alone, attempt))
        return []

    def _write_alone(self, attempt: Attempted) -> None:
        self._persistently(lambda: self._write_and_claim([attempt], 0))

    def _returned(self) -> list[Returned]:
        """Collect what the pool sends back: wait for the first, let a tick pass where more is out, take what is there."""
        first = self._next(min(PATIENCE_S, self._until_next_look_s())) if self._held else None
        if first is None:
            return []
        returned = [first]
        if len(self._held) > 1:
            # Asleep, not waiting for each: every one that woke this thread would hold up those that send.
            time.sleep(TICK_S)
        while len(returned) < MAX_BATCH and (another := self._next(0)) is not None:
            returned.append(another)
        return returned

    def _next(self, timeout_s: float) -> Returned | None:
        """Return what came back next; None when a ring or nothing came."""
        with suppress(queue.Empty):
            return self._inbox.get(timeout=timeout_s)
        return None

    def _room_after(self, returned: int) -> int:
        """Return how many more to hold: what the pool sends at once, and twice what it got through in this tick."""
        room = self._terms.concurrency + 2 * returned - (len(self._held) - returned)
        return min(max(0, room), MAX_BATCH)

    def _write_and_claim(self, attempts: list[Attempted], limit: int) -> list[Claim]:
        now, worker = self._terms.now(), self._terms.worker
        with connection():
            self._renew(now)
            # A look costs no write lock; most looks of an idle daemon end here.
            if not attempts and not (limit and exports.any_due(now)):
                return []
            with transaction():
                moved = exports.record_attempts(attempts, now, worker)
                targets.record_effects(attempts, moved, now, worker)
                claims = exports.claim_due(limit, now, self._terms.lease_s, worker) if limit else []
            _log_late(attempts, moved)
        return claims

    def _renew(self, now: datetime) -> None:
        if time.monotonic() < self._renew_at:
            return
        held = list(self._held.values())
        for first in range(0, len(held), MAX_BATCH):
            exports.renew(held[first : first + MAX_BATCH], now, self._terms.lease_s)
        self._renew_at = time.monotonic() + self._terms.renew_s

    def _give_back_what_was_not_begun(self) -> None:
        unsent: list[Claim] = []
        with suppress(queue.Empty):
            while (claim := self._outbox.get_nowait()) is not None:
                unsent.append(claim)
        for claim in unsent:
            del self._held[id(claim)]
        self._persistently(lambda: self._postpone(unsent))

    def _postpone(self, unsent: list[Claim]) -> None:
        with connection():
            exports.postpone(unsent, self._terms.now(), self._terms.worker)

    def _persistently(self, work: Callable[[], Result]) -> Result:
        """Try again while the database is away: what came back from receivers is nowhere else."""
        retrying = Retrying(
            retry=retry_if_exception_type(OUTAGES),
            wait=wait_exponential(multiplier=0.05, max=1.0),
            stop=self._has_waited_enough,
            before_sleep=_log_outage,
            reraise=True,
        )
        return retrying(work)

    def _has_waited_enough(self, _state: RetryCallState) -> bool:
        return time.monotonic() - self._stopped_at > self._terms.farewell_s


def _log_outage(state: RetryCallState) -> None:
    failure = state.outcome.exception() if state.outcome else None
    _log.warning("database away, trying again", extra={"error": type(failure).__name__})


def _log_late(attempts: list[Attempted], moved: set[str]) -> None:
    for attempt in attempts:
        if attempt.claim.export_id not in moved:
            fields = {"export_id": attempt.claim.export_id, "attempt_id": attempt.id}
            _log.warning("lease lapsed before the answer was written", extra=fields)
