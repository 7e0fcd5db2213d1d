"""Writes the effects of attempts on their targets: throttle states, and targets that are blocked or disabled by them.

Part of the transaction that writes the attempts. Rows are locked only where something is to be written: a healthy target has
the same row for a second at a time, and two workers that deliver to it do not wait for each other.

The result of an attempt may arrive after its target's URL, token or settings were changed: it says nothing about the new
values.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from schemas.exports.delivery import CompletedAttempt, TargetEffect
from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import ThrottleState
from schemas.trackers.failures import CONFIGURATION_CODES
from storage.targets import targets, throttle_state_sql
from storage.targets.throttle_state_sql import AddressedState
from worker.delivery import throttle

_log: Final = logging.getLogger(__name__)


class SentEffect(NamedTuple):
    """The effect of an attempt on its target, with the URL, the sealed secret and the settings that it used.

    Without `secret_sealed`, it counts whatever the target's secret and settings are now.
    """

    effect: TargetEffect
    base_url: str
    secret_sealed: bytes | None = None
    provider_settings: str = "{}"


#: The effects of attempts, by target, in the order in which their results arrived.
Effects = Mapping[str, Sequence[SentEffect]]


class WrittenStates(NamedTuple):
    """The throttle states after a transaction, by target, and the events to log once it is committed."""

    states: dict[str, ThrottleState]
    events: list[throttle.TargetEvent]


def effects_of(attempts: Iterable[CompletedAttempt], moved: Collection[str]) -> Effects:
    """Return the effects of the attempts that changed the state of their exports."""
    effects: dict[str, list[SentEffect]] = defaultdict(list)
    for attempt in attempts:
        claim = attempt.claim
        if claim.export_id in moved:
            effects[claim.target_id].append(
                SentEffect(attempt.verdict.effect, claim.base_url, claim.secret_sealed, claim.options.provider_settings)
            )
    return effects


def write_effects(effects: Effects, now: datetime, actor: str, others: Collection[str] = ()) -> WrittenStates:
    """Apply effects to their targets and write the changes; also return the states of `others`, unchanged.

    Effects of another URL, token or settings than the target's change nothing. The caller holds the transaction.
    """
    seen = throttle_state_sql.read_addressed({*effects, *others})
    updates = {each: _update(seen[each], found, now) for each, found in effects.items() if each in seen}
    changed = {target_id: seen[target_id] for target_id, update in updates.items() if update.is_changed}
    for target_id, locked in throttle_state_sql.lock(changed).items():
        if locked != seen[target_id]:
            # Another worker or an edit has written it between the read and the lock.
            updates[target_id] = _update(locked, effects[target_id], now)
    written = [updates[target_id] for target_id in changed]
    throttle_state_sql.write(update.state for update in written)
    for update in written:
        target_id = update.state.target_id
        if update.passes_validation:
            targets.pass_validation(target_id, now, actor)
        if update.deactivated is TargetStatus.BLOCKED:
            targets.refuse(target_id, update.reason, now, actor)
        elif update.deactivated is not None:
            targets.deactivate(target_id, update.deactivated, update.reason, now, actor)
    states = {each: addressed.state for each, addressed in seen.items()}
    states |= {target_id: update.state for target_id, update in updates.items()}
    return WrittenStates(states, [event for update in written for event in update.events])


def log_events(events: Iterable[throttle.TargetEvent]) -> None:
    """Log events of targets. Call it after the commit: a transaction that is retried would log them twice."""
    for event in events:
        _log.log(event.level, event.text, extra={"target_id": event.target_id, "reason": event.reason})


def _update(target: AddressedState, sent: Iterable[SentEffect], now: datetime) -> throttle.ThrottleUpdate:
    return throttle.update(target.state, [each.effect for each in sent if _is_about(target, each)], now)


def _is_about(target: AddressedState, sent: SentEffect) -> bool:
    """Return whether an attempt used the target's URL, and its token and settings if a tracker refused the attempt."""
    if sent.base_url != target.base_url:
        return False
    if sent.secret_sealed is None or sent.effect.reason not in CONFIGURATION_CODES:
        return True
    # After a key rotation the same token has other bytes; the effect is dropped, and the next attempt turns the target off.
    return (sent.secret_sealed, sent.provider_settings) == (target.secret_sealed, target.provider_settings)
