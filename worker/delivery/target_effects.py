"""What attempts do to their targets: read throttle states, let `worker.delivery.throttle` change them, write changes.

Part of the transaction that writes the attempts. Rows are locked only where something is to be written: a target that does
well has the same row for a second at a time, and two workers that deliver to it do not wait for each other.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from schemas.exports.delivery import Attempted, TargetEffect
from schemas.targets.target import BREAKER_OPEN, TargetStatus
from schemas.targets.throttle_state import ThrottleState
from storage.targets import targets, throttle_state
from worker.delivery import throttle

Effects = Mapping[str, Sequence[TargetEffect]]

_log: Final = logging.getLogger(__name__)


class News(NamedTuple):
    """What an operator may want to know of a target, to be told once it is committed; `level` is that of the log."""

    target_id: str
    told: str
    reason: str | None = None
    level: int = logging.INFO


def effects_of(attempts: Iterable[Attempted], moved: set[str]) -> Effects:
    """Return the effects of the attempts that moved their exports, by target, in their order."""
    effects: dict[str, list[TargetEffect]] = defaultdict(list)
    for attempt in attempts:
        if attempt.claim.export_id in moved:
            effects[attempt.claim.target_id].append(attempt.verdict.effect)
    return effects


def record(effects: Effects, now: datetime, worker: str) -> list[News]:
    """Write what attempts say about their targets, and return what is new of them; the caller holds the transaction."""
    return write(changed_by(effects, throttle_state.read(sorted(effects)), now), effects, now, worker)


def changed_by(effects: Effects, seen: Mapping[str, ThrottleState], now: datetime) -> set[str]:
    """Return the targets whose rows must be written, going by their turns as they were `seen` just now."""
    told = {target_id: state for target_id, state in seen.items() if target_id in effects}
    restless = {each: state for each, state in told.items() if not throttle.is_at_rest(state, effects[each], now)}
    changed = {state.target_id for state in _changes(restless, effects, now)}
    # What turns a target off does so also where it says nothing new of its turn, as a late answer to an open breaker does.
    return changed | {target_id for target_id, told in effects.items() if any(effect.status is not None for effect in told)}


def write(changed: Collection[str], effects: Effects, now: datetime, worker: str) -> list[News]:
    """Write what attempts say about those of their targets that it changes, and return what is new of them."""
    if not changed:
        return []
    locked = throttle_state.read(sorted(changed), locked=True)
    then = _changes(locked, effects, now)
    throttle_state.write(then)
    off = [_turn_off(locked[target_id], effects[target_id], now, worker) for target_id in locked]
    return [news for news in (*(_news(locked[state.target_id], state, now) for state in then), *off) if news is not None]


def tell(news: Iterable[News]) -> None:
    """Log what is new of targets; after the commit, since a transaction that is tried again would tell it twice."""
    for each in news:
        _log.log(each.level, each.told, extra={"target_id": each.target_id, "reason": each.reason})


def _changes(before: Mapping[str, ThrottleState], effects: Effects, now: datetime) -> list[ThrottleState]:
    then = {target_id: throttle.after(state, effects[target_id], now) for target_id, state in before.items()}
    return [then[target_id] for target_id, state in before.items() if throttle.is_worth_writing(state, then[target_id])]


def _news(before: ThrottleState, then: ThrottleState, now: datetime) -> News | None:
    """Tell a pause that a receiver asks for, and the breaker when it opens and when it closes; not each of its probes."""
    was_open, is_open = (state.failures_in_row >= throttle.BREAKER_FAILURES for state in (before, then))
    if is_open != was_open:
        told = "target keeps failing, only single attempts go to it" if is_open else "target answers again"
        return News(before.target_id, told, level=logging.WARNING if is_open else logging.INFO)
    is_longer = then.is_held(now) and (then.held_until, then.held_reason) != (before.held_until, before.held_reason)
    if is_longer and then.held_reason != BREAKER_OPEN:
        return News(before.target_id, "target is paused, its receiver asks for it", then.held_reason)
    return None


def _turn_off(before: ThrottleState, effects: Sequence[TargetEffect], now: datetime, worker: str) -> News | None:
    turned = [(effect.status, effect.reason) for effect in effects if effect.status is not None]
    if not turned and throttle.has_failed_for_days(throttle.after(before, effects, now), now):
        turned = [(TargetStatus.DISABLED, throttle.GIVEN_UP)]
    if not turned or not targets.turn_off(before.target_id, *turned[-1], now, worker):
        return None
    status, reason = turned[-1]
    return News(before.target_id, f"target is {status.value} now, nothing more goes to it", reason, logging.WARNING)
