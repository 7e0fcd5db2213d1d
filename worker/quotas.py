"""How many exports of each target this worker may claim now: what the targets' turns allow, shared out fairly.

A look goes from target to target that something is due for, beginning behind the one that was dealt to last, and ends when
there is no room for more; so a target with a hundred thousand exports waiting costs as much as one with a single one, and
comes no more often. Where thousands of targets wait for nothing that a look could bring, rounds are spaced so that they take
a small part of the time, and the looks between them see the targets that the last round found.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.targets import TargetStatus
from schemas.turn import Share, Turn
from storage import turns
from worker import rate_limits

#: Targets of one statement: a few milliseconds on either database.
LOOK_TARGETS: Final = 256
#: After a round that took longer than a tick can spare the next one waits nine times as long: they get a tenth of the time.
QUICK_ROUND_S: Final = 0.005
REST_OF_A_ROUND: Final = 9.0
#: Targets that are looked at between rounds.
MAX_KNOWN: Final = 1000
#: Exports of one claim. An attempt takes 16 parameters, and SQLite's limit of 32,766 would look like an outage for ever.
MAX_BATCH: Final = 500
#: Statuses that end what waits for a target; a pause only keeps it waiting.
_TURNED_OFF: Final = frozenset({TargetStatus.BLOCKED, TargetStatus.DISABLED})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to claim: `quotas` by target; the targets among them that keep a pace; those that are turned off."""

    quotas: dict[str, int] = field(default_factory=dict)
    paced: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.quotas or self.off)


class Quotas:
    """Plans the claims of a worker with `threads` threads; `share` is its place among the workers."""

    def __init__(self, threads: int, quick_round_s: float = QUICK_ROUND_S) -> None:
        self._threads = threads
        self._quick_round_s = quick_round_s
        #: One target takes half the threads at most, so that one that hangs leaves room for the others.
        self._slots_a_target = max(1, threads // 2)
        self._cursor = ""
        #: What the last round found, and from when on (monotonic) the next one may begin.
        self._known: list[str] = []
        self._round_from = 0.0
        self._has_gone_around = False
        self.share = Share()
        #: When the next attempt of any target may start, as far as the last look saw; None where nothing waits.
        self.ready_at: datetime | None = None
        #: Whether the last look saw something due that only another worker has a slot for.
        self.leaves_to_others = False

    def slots(self, turn: Turn, now: datetime) -> int:
        """Return how many requests to a target this worker may have open at once."""
        return min(self._slots_a_target, rate_limits.slots(turn, self.share, now))

    def plan(self, held: Counter[str], returned: Counter[str], now: datetime) -> Plan:
        """Look, and share out what there is room for.

        `held` counts what this worker has of each target, but for what came `returned` in this tick.
        """
        room, plan = _room(self._threads, returned.total(), held.total()), Plan()
        self.ready_at, self.leaves_to_others = None, False
        if not room:
            return plan
        for turn in self._look(now):
            self._allot(turn, held, returned, now, plan)
            if len(plan.quotas) >= room:
                break
        if not plan.quotas:
            self._note_when_to_look_again(now)
        dealt = rate_limits.deal(plan.quotas, room)
        if len(plan.quotas) >= room:
            self._cursor = next(reversed(dealt))
        return Plan(dealt, [target_id for target_id in plan.paced if target_id in dealt], plan.off)

    def _allot(self, turn: Turn, held: Counter[str], returned: Counter[str], now: datetime, plan: Plan) -> None:
        if turn.status in _TURNED_OFF:
            plan.off.append(turn.target_id)
            return
        slots = self.slots(turn, now)
        self.leaves_to_others = self.leaves_to_others or not slots
        if turn.max_per_minute is None:
            quota = _room(slots, returned[turn.target_id], held[turn.target_id]) if slots else 0
        else:
            # What has a slot is sent at once: claims that wait here would be sent closer together than they were paced.
            quota = min(_room(slots, 0, held[turn.target_id]), rate_limits.pace(turn, now))
            self._note(rate_limits.paced_at(turn), now)
        if quota:
            plan.quotas[turn.target_id] = quota
            plan.paced.extend([turn.target_id] if turn.max_per_minute is not None else ())

    def _note_when_to_look_again(self, now: datetime) -> None:
        rest_s = self._round_from - time.monotonic()
        if self._has_gone_around:
            self._note(turns.next_ready(now), now)
        elif rest_s > 0:
            self._note(now + timedelta(seconds=rest_s), now)

    def _note(self, ready_at: datetime | None, now: datetime) -> None:
        if ready_at is not None and ready_at > now and (self.ready_at is None or ready_at < self.ready_at):
            self.ready_at = ready_at

    def _look(self, now: datetime) -> Iterator[Turn]:
        """Yield the targets that something is due for: all of them once around, or those of the last round."""
        began_at = time.monotonic()
        self._has_gone_around = began_at >= self._round_from
        if not self._has_gone_around:
            known = turns.due_of(self._known, now)
            # As a round would come to them.
            yield from sorted(known, key=lambda turn: (turn.target_id <= self._cursor, turn.target_id))
            return
        self._known = []
        try:
            for turn in self._around(now):
                if len(self._known) < MAX_KNOWN:
                    self._known.append(turn.target_id)
                yield turn
        finally:
            ended_at = time.monotonic()
            took_s = ended_at - began_at
            self._round_from = ended_at + (REST_OF_A_ROUND * took_s if took_s > self._quick_round_s else 0)

    def _around(self, now: datetime) -> Iterator[Turn]:
        """Go once around, beginning behind the cursor."""
        yield from _behind(self._cursor, now)
        for turn in _behind("", now) if self._cursor else ():
            if turn.target_id > self._cursor:
                return
            yield turn


def _behind(after_id: str, now: datetime) -> Iterator[Turn]:
    while True:
        found = turns.due(after_id, LOOK_TARGETS, now)
        yield from found
        if len(found) < LOOK_TARGETS:
            return
        after_id = found[-1].target_id


def _room(at_once: int, returned: int, held: int) -> int:
    """Return how many more to hold: what is sent at once, and twice what came back within a tick."""
    return min(max(0, at_once + 2 * returned - held), MAX_BATCH)
