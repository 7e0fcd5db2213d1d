"""Which targets to look at: those that something is due for, all of them once around, beginning behind the one served last.

Where thousands of targets wait for nothing that a look could bring, rounds are spaced so that they take a small part of the
time, and the looks between them see the targets that the last round found. And as long as claims get all that they were to
get, what a round saw serves the next ones: the claim itself asks the database what is due and whether it may be sent.
"""

import time
from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timedelta
from typing import Final

from schemas.targets.throttle_state import ThrottleState
from storage.targets import throttle_state

#: Targets of one statement: a few milliseconds on either database.
LOOK_TARGETS: Final = 256
#: After a round that took longer than a tick can spare the next one waits nine times as long: they get a tenth of the time.
QUICK_SCAN_S: Final = 0.005
REST_FACTOR: Final = 9.0
#: But no longer than a sweep's period: where a process or a database stood still within a round, what is new must not wait
#: for minutes, nor longer than after a lost wake-up.
MAX_REST_S: Final = 1.0
#: Targets that are looked at between rounds.
MAX_KNOWN: Final = 1000
#: How long what a round saw serves further claims: what comes due for another target meanwhile waits no longer than this.
#: A round of twenty targets took 0.2 ms on SQLite; on PostgreSQL 1.3, which must pass over what ticks have just left behind.
REMEMBERED_S: Final = 0.1
#: A rest that ended within a look; a moment that is past would say that there is nothing to wait for.
_AT_ONCE_S: Final = 0.001


class DueTargets:
    """Goes around the targets; a round that took longer than `quick_round_s` is followed by a rest."""

    def __init__(self, quick_scan_s: float = QUICK_SCAN_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quick_scan_s = quick_scan_s
        self._monotonic = monotonic
        self._cursor = ""
        #: What the last round found, and from when on the next one may begin.
        self._known: list[str] = []
        self._rests_until = monotonic()
        self._went_around = False
        #: What the last round saw, if it was a whole one, when it began, and whether it serves once more.
        self._seen: list[ThrottleState] = []
        self._seen_at = 0.0
        self._is_kept = False

    def remembered(self) -> list[ThrottleState]:
        """Return what the last round saw, if it was kept and not long ago, in the order of a round; else nothing."""
        is_fresh = self._is_kept and self._monotonic() < self._seen_at + REMEMBERED_S
        return self._in_order(self._seen) if is_fresh else []

    def keep(self) -> None:
        """Let what the last round saw serve once more."""
        self._is_kept = True

    def forget(self) -> None:
        """Look anew next time."""
        self._is_kept = False

    def look(self, now: datetime) -> Generator[ThrottleState, None, None]:
        """Yield the targets that something is due for at `now`, as many as are asked for."""
        self.forget()
        self._went_around = self._monotonic() >= self._rests_until
        return self._go_around(now) if self._went_around else self._look_at_known(now)

    def begin_behind(self, target_id: str) -> None:
        """Let the next look begin behind this target."""
        self._cursor = target_id

    def next_look_at(self, now: datetime) -> datetime | None:
        """Return when to look again after a look that found nothing to be claimed; None where nothing waits for a moment."""
        if self._went_around:
            return throttle_state.next_ready(now)
        return now + timedelta(seconds=max(_AT_ONCE_S, self._rests_until - self._monotonic()))

    def _look_at_known(self, now: datetime) -> Generator[ThrottleState, None, None]:
        yield from self._in_order(throttle_state.due_of(self._known, now))

    def _in_order(self, found: list[ThrottleState]) -> list[ThrottleState]:
        """Return targets in the order in which a round would come to them."""
        return sorted(found, key=lambda state: (state.target_id <= self._cursor, state.target_id))

    def _go_around(self, now: datetime) -> Generator[ThrottleState, None, None]:
        seen: list[ThrottleState] = []
        began_at, self._known, self._seen = self._monotonic(), [], []
        try:
            for state in _around(self._cursor, now):
                if len(seen) < MAX_KNOWN:
                    seen.append(state)
                    self._known.append(state.target_id)
                yield state
            if len(seen) < MAX_KNOWN:
                self._seen, self._seen_at = seen, began_at
        finally:
            # Whoever has seen enough ends the round; what it took until then counts.
            ended_at = self._monotonic()
            took_s = ended_at - began_at
            rest_s = min(MAX_REST_S, REST_FACTOR * took_s)
            self._rests_until = ended_at + (rest_s if took_s > self._quick_scan_s else 0)


def _around(cursor: str, now: datetime) -> Iterator[ThrottleState]:
    """Yield the targets behind the cursor, then those up to it."""
    yield from _behind(cursor, now)
    for state in _behind("", now) if cursor else ():
        if state.target_id > cursor:
            return
        yield state


def _behind(after_id: str, now: datetime) -> Iterator[ThrottleState]:
    while True:
        found = throttle_state.due(after_id, LOOK_TARGETS, now)
        yield from found
        if len(found) < LOOK_TARGETS:
            return
        after_id = found[-1].target_id
