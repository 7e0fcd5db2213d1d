"""How many exports of each target this worker may claim now: what the targets' turns allow, shared out fairly.

A look goes from target to target that something is due for (`worker.delivery.due_targets`), and ends when there is no room
for more; so a target with a hundred thousand exports waiting costs as much as one with a single one, and comes no more
often.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import ThrottleState, WorkerShare
from worker.delivery import throttle
from worker.delivery.due_targets import REMEMBERED_S, DueTargets

#: Exports of one claim. An attempt takes 16 parameters, and SQLite's limit of 32,766 would look like an outage for ever.
MAX_BATCH: Final = 500
#: What is claimed to wait its turn: so many times what came back within a tick, and no more than is sent in so many seconds.
#: A claim that has waited for longer than `worker.delivery.attempt.FRESH` costs a look in the database of its own, which was
#: 9 % of the sending threads' time where ticks took 70 ms.
_AHEAD: Final = 2.0
_WAITS_S: Final = 0.12
#: Statuses that end what waits for a target; a pause only keeps it waiting.
_TURNED_OFF: Final = frozenset({TargetStatus.BLOCKED, TargetStatus.DISABLED})


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What to claim: `quotas` by target; the targets among them that keep a pace; those that are turned off."""

    quotas: dict[str, int] = field(default_factory=dict)
    paced: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.quotas or self.off)


class ClaimPlanner:
    """Plans the claims of a worker with `threads` threads; `share` is its place among the workers."""

    def __init__(self, threads: int, due_targets: DueTargets | None = None) -> None:
        self._threads = threads
        self._due_targets = due_targets or DueTargets()
        #: One target takes half the threads at most, so that one that hangs leaves room for the others.
        self._slots_a_target = max(1, threads // 2)
        self._ahead = _AHEAD
        self.share = WorkerShare()
        #: When the next attempt of any target may start, as far as the last look saw; None where nothing waits.
        self.ready_at: datetime | None = None
        #: Whether the last look saw something due that only another worker has a slot for.
        self.leaves_to_others = False

    def slots(self, state: ThrottleState, now: datetime) -> int:
        """Return how many requests to a target this worker may have open at once."""
        return min(self._slots_a_target, throttle.slots(state, self.share, now))

    def plan(self, held: Counter[str], returned: Counter[str], now: datetime, behind: int = 0) -> ClaimPlan:
        """Look, and share out what there is room for.

        `held` counts what this worker has of each target, but for what came `returned` in this tick. What waits `behind` the
        slots of its target takes no room: a target that hangs all at once must not keep the free threads from the others.
        """
        room = _room(self._threads, round(self._ahead * returned.total()), held.total() - behind)
        if not room:
            self.ready_at, self.leaves_to_others = None, False
            return ClaimPlan()
        if remembered := self._due_targets.remembered():
            plan = self._shared_out(remembered, held, returned, now, room)
            self._note(now + timedelta(seconds=REMEMBERED_S), now)
        else:
            with closing(self._due_targets.look(now)) as looked:
                plan = self._shared_out(looked, held, returned, now, room)
            if not plan.quotas:
                self._note(self._due_targets.next_look_at(now), now)
        dealt = throttle.deal(plan.quotas, room)
        if len(plan.quotas) >= room:
            self._due_targets.begin_behind(next(reversed(dealt)))
        return ClaimPlan(dealt, [target_id for target_id in plan.paced if target_id in dealt], plan.off)

    def took(self, plan: ClaimPlan, taken: Counter[str]) -> None:
        """Take note of what came of a plan: where all was due that it asked for, what was seen serves the next one too."""
        if all(taken[target_id] == quota for target_id, quota in plan.quotas.items()):
            self._due_targets.keep()
        else:
            self._due_targets.forget()

    def look_anew(self) -> None:
        """Go by nothing that was seen before: a wake-up came."""
        self._due_targets.forget()

    def tick_took(self, tick_s: float) -> None:
        """Learn how long a tick is now, from claim to claim: what waits longer for its turn must be looked at once more."""
        self._ahead = max(1.0, min(_AHEAD, _WAITS_S / max(tick_s, _WAITS_S / _AHEAD)))

    def _shared_out(
        self, looked: Iterable[ThrottleState], held: Counter[str], returned: Counter[str], now: datetime, room: int
    ) -> ClaimPlan:
        self.ready_at, self.leaves_to_others = None, False
        plan = ClaimPlan()
        for state in looked:
            self._allot(state, held, returned, now, plan)
            if len(plan.quotas) >= room:
                break
        return plan

    def _allot(
        self, state: ThrottleState, held: Counter[str], returned: Counter[str], now: datetime, plan: ClaimPlan
    ) -> None:
        if state.status in _TURNED_OFF:
            plan.off.append(state.target_id)
            return
        slots = self.slots(state, now)
        self.leaves_to_others = self.leaves_to_others or not slots
        if state.max_per_minute is None:
            quota = _room(slots, round(self._ahead * returned[state.target_id]), held[state.target_id]) if slots else 0
        else:
            # What has a slot is sent at once: claims that wait here would be sent closer together than they were paced.
            quota = min(_room(slots, 0, held[state.target_id]), throttle.pace(state, now))
            self._note(throttle.paced_at(state), now)
        if quota:
            plan.quotas[state.target_id] = quota
            plan.paced.extend([state.target_id] if state.max_per_minute is not None else ())

    def _note(self, ready_at: datetime | None, now: datetime) -> None:
        if ready_at is not None and ready_at > now and (self.ready_at is None or ready_at < self.ready_at):
            self.ready_at = ready_at


def _room(at_once: int, ahead: int, held: int) -> int:
    """Return how many more to hold: what is sent at once, and what is to wait its turn."""
    return min(max(0, at_once + ahead - held), MAX_BATCH)
