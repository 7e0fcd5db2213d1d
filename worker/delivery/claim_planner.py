"""Plans how many exports of each target this worker claims now: what the throttle states allow, shared fairly.

A scan goes from target to target with due exports and ends when there is no room for more; so a target with a hundred
thousand waiting exports costs as much as a target with one, and is planned for no more often. With thousands of targets
for which nothing can be claimed, full scans are spaced so that they take a small part of the time; the scans between them
read the targets that the last full scan found. While claims get all they ask for, the result of a scan serves the next
plans too: the claim itself asks the database what is due and whether it may be sent.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import ThrottleState, WorkerShare
from storage.targets import throttle_state_sql
from worker.delivery import throttle

#: Exports of one claim. An attempt takes 16 parameters, and SQLite's limit of 32,766 would look like a permanent outage.
MAX_BATCH: Final = 500
#: What is claimed to wait for a slot: this many times what came back within a tick, and at most what is sent in this many
#: seconds. A claim that has waited for longer than `worker.delivery.attempt.FRESH` is checked in the database again, which
#: was 9 % of the sending threads' time where ticks took 70 ms.
_AHEAD: Final = 2.0
_WAITS_S: Final = 0.12
#: Statuses that end what waits for a target; a pause only keeps it waiting.
_TURNED_OFF: Final = frozenset({TargetStatus.BLOCKED, TargetStatus.DISABLED})

#: Targets of one statement: a few milliseconds on either database.
TARGETS_PER_QUERY: Final = 256
#: After a full scan that took longer than a tick can spare, the next one waits nine times as long: scans get a tenth of the
#: time.
QUICK_SCAN_S: Final = 0.005
REST_FACTOR: Final = 9.0
#: But no longer than a sweep's period: where a process or a database stalled within a scan, new exports must not wait for
#: minutes, nor longer than after a lost wake-up.
MAX_REST_S: Final = 1.0
#: Targets that are read between full scans.
MAX_KNOWN: Final = 1000
#: How long the result of a scan serves further claims: exports that come due for another target wait no longer than this.
#: A scan of twenty targets took 0.2 ms on SQLite; on PostgreSQL 1.3, which must skip the dead rows that ticks leave behind.
SCAN_REUSED_FOR_S: Final = 0.1
#: For a rest that ended within a scan: a moment in the past would mean that nothing waits.
_AT_ONCE_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What to claim: `quotas` by target; those of them with a rate limit; targets that are blocked or disabled."""

    quotas: dict[str, int] = field(default_factory=dict)
    rate_limited: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.quotas or self.off)


class DueTargetScanner:
    """Reads the throttle states of targets with due exports, beginning after the target that was served last.

    A full scan that took longer than `quick_scan_s` is followed by a rest.
    """

    def __init__(self, quick_scan_s: float = QUICK_SCAN_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quick_scan_s = quick_scan_s
        self._monotonic = monotonic
        self._cursor = ""
        #: What the last full scan found, and from when on the next one may begin.
        self._known: list[str] = []
        self._rests_until = monotonic()
        self._was_full = False
        #: The result of the last full scan if it was complete, when it began, and whether it may be used again.
        self._result: list[ThrottleState] = []
        self._scanned_at = 0.0
        self._is_reusable = False

    def cached(self) -> list[ThrottleState]:
        """Return the result of the last full scan, in the order of a scan, while it may be used again; else nothing."""
        is_fresh = self._is_reusable and self._monotonic() < self._scanned_at + SCAN_REUSED_FOR_S
        return self._in_order(self._result) if is_fresh else []

    def reuse(self) -> None:
        """Let the result of the last full scan be used again."""
        self._is_reusable = True

    def forget(self) -> None:
        """Scan again next time."""
        self._is_reusable = False

    def scan(self, now: datetime) -> Generator[ThrottleState, None, None]:
        """Yield the targets with exports due at `now`, as many as the caller takes."""
        self.forget()
        self._was_full = self._monotonic() >= self._rests_until
        return self._scan_all(now) if self._was_full else self._scan_known(now)

    def start_after(self, target_id: str) -> None:
        """Let the next scan begin after this target."""
        self._cursor = target_id

    def next_scan_at(self, now: datetime) -> datetime | None:
        """Return when to scan again after a scan that left nothing to claim; None where nothing waits for a moment."""
        if self._was_full:
            return throttle_state_sql.next_ready(now)
        return now + timedelta(seconds=max(_AT_ONCE_S, self._rests_until - self._monotonic()))

    def _scan_known(self, now: datetime) -> Generator[ThrottleState, None, None]:
        yield from self._in_order(throttle_state_sql.due_of(self._known, now))

    def _in_order(self, found: list[ThrottleState]) -> list[ThrottleState]:
        return sorted(found, key=lambda state: (state.target_id <= self._cursor, state.target_id))

    def _scan_all(self, now: datetime) -> Generator[ThrottleState, None, None]:
        seen: list[ThrottleState] = []
        began_at, self._known, self._result = self._monotonic(), [], []
        try:
            for state in _all_due(self._cursor, now):
                if len(seen) < MAX_KNOWN:
                    seen.append(state)
                    self._known.append(state.target_id)
                yield state
            if len(seen) < MAX_KNOWN:
                self._result, self._scanned_at = seen, began_at
        finally:
            # A caller that has enough ends the scan; the time until then counts.
            ended_at = self._monotonic()
            took_s = ended_at - began_at
            rest_s = min(MAX_REST_S, REST_FACTOR * took_s)
            self._rests_until = ended_at + (rest_s if took_s > self._quick_scan_s else 0)


class ClaimPlanner:
    """Plans the claims of a worker with `threads` threads; `share` is its place among the workers."""

    def __init__(self, threads: int, scanner: DueTargetScanner | None = None) -> None:
        self._threads = threads
        self._scanner = scanner or DueTargetScanner()
        #: One target takes half the threads at most, so that one that hangs leaves room for the others.
        self._slots_per_target = max(1, threads // 2)
        self._ahead = _AHEAD
        self.share = WorkerShare()
        #: When the next attempt of any target may start, as far as the last plan knows; None where nothing waits.
        self.ready_at: datetime | None = None
        #: Whether the last plan met a due target that only another worker has a slot for.
        self.leaves_to_others = False

    def slots(self, state: ThrottleState, now: datetime) -> int:
        """Return how many requests to a target this worker may have open at once."""
        return min(self._slots_per_target, throttle.slots(state, self.share, now))

    def plan(self, held: Counter[str], returned: Counter[str], now: datetime, queued: int = 0) -> ClaimPlan:
        """Plan claims for the free room.

        `held` counts the claims of this worker by target without those `returned` in this tick. `queued` claims wait for a
        slot of their target and take no room: a target that hangs suddenly must not keep the free threads from others.
        """
        room = _room(self._threads, round(self._ahead * returned.total()), held.total() - queued)
        if not room:
            self.ready_at, self.leaves_to_others = None, False
            return ClaimPlan()
        if cached := self._scanner.cached():
            plan = self._allot_all(cached, held, returned, now, room)
            self._note(now + timedelta(seconds=SCAN_REUSED_FOR_S), now)
        else:
            with closing(self._scanner.scan(now)) as states:
                plan = self._allot_all(states, held, returned, now, room)
            if not plan.quotas:
                self._note(self._scanner.next_scan_at(now), now)
        quotas = throttle.distribute(plan.quotas, room)
        if len(plan.quotas) >= room:
            self._scanner.start_after(next(reversed(quotas)))
        return ClaimPlan(quotas, [target_id for target_id in plan.rate_limited if target_id in quotas], plan.off)

    def record_claims(self, plan: ClaimPlan, claimed: Counter[str]) -> None:
        """Record what was claimed for a plan: where all it asked for was due, the scan serves the next plan too."""
        if all(claimed[target_id] == quota for target_id, quota in plan.quotas.items()):
            self._scanner.reuse()
        else:
            self._scanner.forget()

    def scan_again(self) -> None:
        """Base the next plan on a new scan: a wake-up came."""
        self._scanner.forget()

    def record_tick(self, tick_s: float) -> None:
        """Record how long a tick takes, from claim to claim: what waits for a slot for longer must be checked once more."""
        self._ahead = max(1.0, min(_AHEAD, _WAITS_S / max(tick_s, _WAITS_S / _AHEAD)))

    def _allot_all(
        self, states: Iterable[ThrottleState], held: Counter[str], returned: Counter[str], now: datetime, room: int
    ) -> ClaimPlan:
        self.ready_at, self.leaves_to_others = None, False
        plan = ClaimPlan()
        for state in states:
            if state.status in _TURNED_OFF:
                plan.off.append(state.target_id)
                continue
            if quota := self._quota(state, held[state.target_id], returned[state.target_id], now):
                plan.quotas[state.target_id] = quota
                if state.max_per_minute is not None:
                    plan.rate_limited.append(state.target_id)
            if len(plan.quotas) >= room:
                break
        return plan

    def _quota(self, state: ThrottleState, held: int, returned: int, now: datetime) -> int:
        slots = self.slots(state, now)
        self.leaves_to_others = self.leaves_to_others or not slots
        if state.max_per_minute is None:
            return _room(slots, round(self._ahead * returned), held) if slots else 0
        self._note(throttle.rate_allows_from(state), now)
        # Claimed for free slots alone: claims that wait for a slot would be sent closer together than the rate limit allows.
        return min(_room(slots, 0, held), throttle.rate_allowance(state, now))

    def _note(self, ready_at: datetime | None, now: datetime) -> None:
        if ready_at is not None and ready_at > now and (self.ready_at is None or ready_at < self.ready_at):
            self.ready_at = ready_at


def _room(at_once: int, ahead: int, held: int) -> int:
    """Return how many more to hold: what is sent at once, and what is to wait for a slot."""
    return min(max(0, at_once + ahead - held), MAX_BATCH)


def _all_due(cursor: str, now: datetime) -> Iterator[ThrottleState]:
    """Yield the due targets after the cursor, then those up to it."""
    yield from _due_after(cursor, now)
    for state in _due_after("", now) if cursor else ():
        if state.target_id > cursor:
            return
        yield state


def _due_after(after_id: str, now: datetime) -> Iterator[ThrottleState]:
    while True:
        found = throttle_state_sql.due(after_id, TARGETS_PER_QUERY, now)
        yield from found
        if len(found) < TARGETS_PER_QUERY:
            return
        after_id = found[-1].target_id
