"""Writes what attempts show about their targets: throttle states, and targets that are blocked or disabled by them.

Part of the transaction that writes the attempts. Rows are locked only where something is to be written: a healthy target has
the same row for a second at a time, and two workers that deliver to it do not wait for each other.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from schemas.exports.delivery import CompletedAttempt, TargetEffect
from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import ThrottleState
from storage.targets import targets, throttle_state_sql
from worker.delivery import throttle

#: What attempts show about their targets, by target, in the order in which they came back.
Effects = Mapping[str, Sequence[TargetEffect]]

_log: Final = logging.getLogger(__name__)


class WrittenStates(NamedTuple):
    """The throttle states after a transaction, by target, and the events to log once it is committed."""

    states: dict[str, ThrottleState]
    events: list[throttle.TargetEvent]


def effects_of(attempts: Iterable[CompletedAttempt], moved: Collection[str]) -> Effects:
    """Return the effects of the attempts that moved their exports."""
    effects: dict[str, list[TargetEffect]] = defaultdict(list)
    for attempt in attempts:
        if attempt.claim.export_id in moved:
            effects[attempt.claim.target_id].append(sent_to(attempt.claim.base_url, attempt.verdict.effect))
    return effects


def sent_to(base_url: str, effect: TargetEffect) -> TargetEffect:
    """Return the effect with the URL that the attempt was sent to, where it turns the target off."""
    return effect if effect.status is None else replace(effect, base_url=base_url)


def write_effects(effects: Effects, now: datetime, actor: str, others: Collection[str] = ()) -> WrittenStates:
    """Apply effects to their targets and write what changed; also return the states of `others`, unchanged.

    The caller holds the transaction.
    """
    seen = throttle_state_sql.read({*effects, *others})
    updates = {each: throttle.update(seen[each], found, now) for each, found in effects.items() if each in seen}
    changed = {target_id: seen[target_id] for target_id, update in updates.items() if update.is_changed}
    for target_id, locked in throttle_state_sql.lock(changed).items():
        if locked != seen[target_id]:
            # Another worker has written it between the read and the lock.
            updates[target_id] = throttle.update(locked, effects[target_id], now)
    written = [updates[target_id] for target_id in changed]
    throttle_state_sql.write(update.state for update in written)
    for update in written:
        target_id = update.state.target_id
        if update.passes_validation:
            targets.pass_validation(target_id, now, actor)
        if update.deactivated is TargetStatus.BLOCKED:
            targets.refuse(target_id, update.reason, now, actor, update.base_url)
        elif update.deactivated is not None:
            targets.deactivate(target_id, update.deactivated, update.reason, now, actor, update.base_url)
    states = seen | {target_id: update.state for target_id, update in updates.items()}
    return WrittenStates(states, [event for update in written for event in update.events])


def log_events(events: Iterable[throttle.TargetEvent]) -> None:
    """Log events of targets. Call it after the commit: a transaction that is retried would log them twice."""
    for event in events:
        _log.log(event.level, event.text, extra={"target_id": event.target_id, "reason": event.reason})
