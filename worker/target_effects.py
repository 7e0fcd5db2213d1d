"""What attempts do to their targets' rows: read the turns, let `worker.rate_limits` change them, write what has changed.

Part of the transaction that writes the attempts. Rows are locked only where something is to be written: a target that does
well has the same row for a second at a time, and two workers that deliver to it do not wait for each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from schemas.delivery import Attempted, TargetEffect
from schemas.targets import TargetStatus
from schemas.turn import Turn
from storage import targets, turns
from worker import rate_limits

Effects = Mapping[str, Sequence[TargetEffect]]


def effects_of(attempts: Iterable[Attempted], moved: set[str]) -> Effects:
    """Return the effects of the attempts that moved their exports, by target, in their order."""
    effects: dict[str, list[TargetEffect]] = defaultdict(list)
    for attempt in attempts:
        if attempt.claim.export_id in moved:
            effects[attempt.claim.target_id].append(attempt.verdict.effect)
    return effects


def record(effects: Effects, now: datetime, worker: str) -> None:
    """Write what attempts say about their targets; the caller holds the transaction."""
    changed = {turn.target_id for turn in _changes(turns.read(sorted(effects)), effects, now)}
    # What turns a target off does so also where it says nothing new of its turn, as a late answer to an open breaker does.
    changed |= {target_id for target_id, told in effects.items() if any(effect.status is not None for effect in told)}
    if not changed:
        return
    locked = turns.read(sorted(changed), locked=True)
    turns.write(_changes(locked, effects, now))
    for target_id in locked:
        _turn_off(locked[target_id], effects[target_id], now, worker)


def _changes(before: Mapping[str, Turn], effects: Effects, now: datetime) -> list[Turn]:
    then = {target_id: rate_limits.after(turn, effects[target_id], now) for target_id, turn in before.items()}
    return [then[target_id] for target_id, turn in before.items() if rate_limits.is_worth_writing(turn, then[target_id])]


def _turn_off(before: Turn, effects: Sequence[TargetEffect], now: datetime, worker: str) -> None:
    turned = [effect for effect in effects if effect.status is not None]
    if turned and turned[-1].status is not None:
        targets.turn_off(before.target_id, turned[-1].status, turned[-1].reason, now, worker)
    elif rate_limits.has_failed_for_days(rate_limits.after(before, effects, now), now):
        targets.turn_off(before.target_id, TargetStatus.DISABLED, rate_limits.GIVEN_UP, now, worker)
