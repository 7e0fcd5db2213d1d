"""How many exports of each target this worker may claim now: what the targets' turns allow, shared out fairly.

A look goes from target to target that something is due for (`worker.rounds`), and ends when there is no room for more; so a
target with a hundred thousand exports waiting costs as much as one with a single one, and comes no more often.
"""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from schemas.targets import TargetStatus
from schemas.turn import Share, Turn
from worker import rate_limits
from worker.rounds import Rounds

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

    def __init__(self, threads: int, rounds: Rounds | None = None) -> None:
        self._threads = threads
        self._rounds = rounds or Rounds()
        #: One target takes half the threads at most, so that one that hangs leaves room for the others.
        self._slots_a_target = max(1, threads // 2)
        self.share = Share()
        #: When the next attempt of any target may start, as far as the last look saw; None where nothing waits.
        self.ready_at: datetime | None = None
        #: Whether the last look saw something due that only another worker has a slot for.
        self.leaves_to_others = False

    def slots(self, turn: Turn, now: datetime) -> int:
        """Return how many requests to a target this worker may have open at once."""
        return min(self._slots_a_target, rate_limits.slots(turn, self.share, now))

    def plan(self, held: Counter[str], returned: Counter[str], now: datetime, behind: int = 0) -> Plan:
        """Look, and share out what there is room for.

        `held` counts what this worker has of each target, but for what came `returned` in this tick. What waits `behind` the
        slots of its target takes no room: a target that hangs all at once must not keep the free threads from the others.
        """
        room, plan = _room(self._threads, returned.total(), held.total() - behind), Plan()
        self.ready_at, self.leaves_to_others = None, False
        if not room:
            return plan
        with closing(self._rounds.look(now)) as looked:
            for turn in looked:
                self._allot(turn, held, returned, now, plan)
                if len(plan.quotas) >= room:
                    break
        if not plan.quotas:
            self._note(self._rounds.next_look_at(now), now)
        dealt = rate_limits.deal(plan.quotas, room)
        if len(plan.quotas) >= room:
            self._rounds.begin_behind(next(reversed(dealt)))
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

    def _note(self, ready_at: datetime | None, now: datetime) -> None:
        if ready_at is not None and ready_at > now and (self.ready_at is None or ready_at < self.ready_at):
            self.ready_at = ready_at


def _room(at_once: int, returned: int, held: int) -> int:
    """Return how many more to hold: what is sent at once, and twice what came back within a tick."""
    return min(max(0, at_once + 2 * returned - held), MAX_BATCH)
