"""Throttling per target: pauses, rate limit, concurrency, circuit breaker.

Pure: functions take a `ThrottleState` and return the next one; `storage.targets.throttle_state_sql` stores it, so that every
worker sees it and a restart loses nothing. Throttling uses up no attempt: a target that must wait is not claimed for.

Concurrency follows the rule of congestion control: halved when a receiver is overloaded, grown by one after as many
successes as it allows at once. After a hold a ramp starts at one and grows by one with each success, so that a recovering
receiver does not get the whole backlog at once. The breaker opens after a row of failures and lets single probes through,
with growing intervals.
"""

import logging
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, NamedTuple

from schemas.exports.delivery import TargetEffect, TargetHealth
from schemas.targets.target import BREAKER_OPEN, ENABLED, FAILING, FAILING_AFTER, TargetStatus
from schemas.targets.throttle_state import ThrottleState, WorkerShare
from schemas.targets.validations import FAILED, PASSED

#: The contract's bounds of how many requests to a target may be open at once.
MIN_CONCURRENCY: Final = 1.0
MAX_CONCURRENCY: Final = 16.0
#: Consecutive failures that open the breaker; then one probe at a time, after 1, 2, 4 … seconds, a minute at most.
BREAKER_FAILURES: Final = 5
MAX_PROBE_WAIT_S: Final = 60
#: If all attempts have failed for this long, the receiver is gone: its target is disabled.
GIVE_UP_AFTER: Final = timedelta(days=5)
GIVEN_UP: Final = "failing_for_days"
#: `last_success_at` is at most this much too old, so that a busy target's row is not written in every tick.
SUCCESS_SHOWN_WITHIN: Final = timedelta(seconds=1)
#: Tolerance, because whole intervals are counted in floating point.
_ROUNDING: Final = 1e-9
#: How many seconds' worth of the rate limit may be used at once: a worker claims every 20 ms, and may make up for a delay.
BURST_S: Final = 1.0
#: The longest wait that a breaker or a rate limit causes; a rate limit of one attempt per minute waits longest.
LONGEST_HOLD_S: Final = max(MAX_PROBE_WAIT_S, 60 + BURST_S)


class TargetEvent(NamedTuple):
    """A change of a target that operators find in the log, logged once it is committed; `level` is the log level."""

    target_id: str
    text: str
    reason: str | None = None
    level: int = logging.INFO


@dataclass(frozen=True, slots=True)
class ThrottleUpdate:
    """The changes of a target by one tick: its next state, whether the row must be written, and what to log.

    `deactivated` is set when the tick blocks or disables the target; `reason` is why. `passes_validation` means that a
    success follows a failed validation.
    """

    state: ThrottleState
    is_changed: bool = False
    deactivated: TargetStatus | None = None
    reason: str | None = None
    events: tuple[TargetEvent, ...] = ()
    passes_validation: bool = False


def update(before: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleUpdate:
    """Return the changes of a target by attempts whose results arrived together."""
    if is_at_rest(before, effects, now):
        return ThrottleUpdate(before)
    after = next_state(before, effects, now)
    is_changed = is_worth_writing(before, after)
    status, reason = _turned_off(before, after, effects, now, is_changed=is_changed)
    events = [_throttle_event(before, after, now)] if is_changed else []
    if status is not None:
        text = f"target {status.value}, nothing more is sent to it"
        events.append(TargetEvent(before.target_id, text, reason, logging.WARNING))
        after = replace(after, status=status)
    logged = tuple(event for event in events if event is not None)
    passes_validation = after.validation_status != before.validation_status
    return ThrottleUpdate(after, is_changed or status is not None, status, reason, logged, passes_validation)


def next_state(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    """Return a target's state after attempts whose results arrived together, in their order; its status stays.

    Attempts whose results arrive together were sent together: overloads among them halve the concurrency once.
    """
    was_probing, was_held = state.failures_in_row >= BREAKER_FAILURES, state.is_held(now)
    for is_healthy, run in groupby(effects, key=_is_healthy):
        apply = _apply_successes if is_healthy else _apply_others
        state = apply(state, list(run), now)
    if any(effect.is_overloaded for effect in effects):
        state = replace(state, concurrency=max(MIN_CONCURRENCY, state.concurrency / 2))
    failures = _failures_at_the_end(effects)
    if failures and not (was_probing and was_held):
        # Not for a late result of a request that was open when the breaker opened: its failure is already counted.
        state = _apply_failures(state, failures, now, was_probing=was_probing)
    return _count_undelivered(state, effects)


def is_worth_writing(before: ThrottleState, after: ThrottleState) -> bool:
    """Return whether the row must be written: a success alone is not, while the stored `last_success_at` is fresh."""
    shown, newest = before.last_success_at, after.last_success_at
    if newest is not None and (shown is None or newest - shown >= SUCCESS_SHOWN_WITHIN):
        return True
    return replace(after, last_success_at=shown) != before


def is_at_rest(state: ThrottleState, effects: Iterable[TargetEffect], now: datetime) -> bool:
    """Return whether a healthy target with no limit in force had only plain successes, so that nothing changes.

    This holds for most targets in most ticks, and computing the next state takes ten times as long (12 µs).
    """
    return (
        state.concurrency == MAX_CONCURRENCY
        and state.ramp == MAX_CONCURRENCY
        and state.failures_in_row == 0
        and state.undelivered_in_row == 0
        and state.failing_since is None
        and state.held_until is None
        and state.validation_status != FAILED
        and state.last_success_at is not None
        and now - state.last_success_at < SUCCESS_SHOWN_WITHIN
        and all(_is_plain_success(effect, state) for effect in effects)
    )


def has_failed_for_days(state: ThrottleState, now: datetime) -> bool:
    """Return whether all attempts of a target have failed for so long that it is disabled."""
    return state.failing_since is not None and now - state.failing_since >= GIVE_UP_AFTER


def slots(state: ThrottleState, share: WorkerShare, now: datetime) -> int:
    """Return how many requests to a target this worker may have open at once.

    The slots of all workers add up to the target's concurrency. Which workers get the remainder of the division depends on
    the target's id, so that single probes of many targets are spread over all workers.
    """
    if not state.takes_attempts(now):
        return 0
    is_probing = state.failures_in_row >= BREAKER_FAILURES
    slots_of_all = 1 if is_probing else max(1, min(int(state.concurrency), state.ramp))
    whole, rest = divmod(slots_of_all, share.workers)
    place = (share.rank + zlib.crc32(state.target_id.encode())) % share.workers
    return whole + (place < rest)


def rate_allowance(state: ThrottleState, now: datetime) -> int:
    """Return how many attempts `max_per_minute` allows at `now`; without a limit, more than any worker asks for."""
    if state.max_per_minute is None:
        return 2**31
    ahead_s = 0.0 if state.paced_until is None else max(0.0, (state.paced_until - now).total_seconds())
    return max(0, int((_burst_s(state.max_per_minute) - ahead_s) / _interval_s(state.max_per_minute) + _ROUNDING))


def use_rate_allowance(state: ThrottleState, count: int, now: datetime) -> ThrottleState:
    """Return the state after `count` attempts were taken from `max_per_minute`."""
    if state.max_per_minute is None or not count:
        return state
    begins_at = max(now, state.paced_until or now)
    # Rounded up: with a hundred claims a second, rounding down each time would soon exceed the limit.
    spent_us = math.ceil(count * _interval_s(state.max_per_minute) * 1e6)
    return replace(state, paced_until=begins_at + timedelta(microseconds=spent_us))


def rate_allows_from(state: ThrottleState) -> datetime | None:
    """Return from when on `max_per_minute` allows the next attempt; None if it delays no attempt."""
    if state.max_per_minute is None or state.paced_until is None:
        return None
    spare_s = _burst_s(state.max_per_minute) - _interval_s(state.max_per_minute)
    return state.paced_until - timedelta(microseconds=math.floor(spare_s * 1e6))


def distribute(quotas: Mapping[str, int], room: int) -> dict[str, int]:
    """Divide `room` claims among targets, one by one in turn; no target gets more than its quota."""
    given: dict[str, int] = {}
    wanting = [target_id for target_id, quota in quotas.items() if quota > 0]
    while room > 0 and wanting:
        for target_id in wanting[:room]:
            given[target_id] = given.get(target_id, 0) + 1
        room -= len(wanting)
        wanting = [target_id for target_id in wanting if given[target_id] < quotas[target_id]] if room > 0 else []
    return given


def _turned_off(
    before: ThrottleState, after: ThrottleState, effects: Sequence[TargetEffect], now: datetime, *, is_changed: bool
) -> tuple[TargetStatus | None, str | None]:
    """Return the status with which attempts turn their target off, and the reason; the last such effect counts."""
    if before.status not in ENABLED:
        return None, None
    for effect in reversed(effects):
        # Also if the state stays the same, as after a late response while the breaker is open.
        if effect.status is not None:
            return effect.status, effect.reason
    # A failed ping does not disable a paused target, which would end the exports that wait for it.
    if is_changed and before.status is TargetStatus.ACTIVE and has_failed_for_days(after, now):
        return TargetStatus.DISABLED, GIVEN_UP
    return None, None


def _throttle_event(before: ThrottleState, after: ThrottleState, now: datetime) -> TargetEvent | None:
    """Return the event of a pause that the receiver asked for, or of the breaker opening or closing; probes have none."""
    was_open, is_open = (state.failures_in_row >= BREAKER_FAILURES for state in (before, after))
    if is_open != was_open:
        if is_open:
            text = "circuit breaker opened, target gets single attempts"
            return TargetEvent(before.target_id, text, level=logging.WARNING)
        return TargetEvent(before.target_id, "circuit breaker closed, target responds")
    is_longer = after.is_held(now) and (after.held_until, after.held_reason) != (before.held_until, before.held_reason)
    if is_longer and after.held_reason != BREAKER_OPEN:
        return TargetEvent(before.target_id, "target paused, its receiver asked for it", after.held_reason)
    return None


def _is_healthy(effect: TargetEffect) -> bool:
    return effect.health is TargetHealth.HEALTHY


def _is_plain_success(effect: TargetEffect, state: ThrottleState) -> bool:
    is_more = effect.is_overloaded or effect.hold_s is not None or effect.connected not in {None, state.connected}
    return _is_healthy(effect) and not is_more


def _apply_successes(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    """Apply successes in a row at once: a busy target has dozens a tick."""
    concurrency, ramp = state.concurrency, state.ramp
    for _ in effects:
        concurrency = min(MAX_CONCURRENCY, concurrency + 1 / concurrency)
    is_closing = state.held_reason == BREAKER_OPEN
    if is_closing or not state.is_held(now):
        ramp = min(int(MAX_CONCURRENCY), ramp + len(effects))
    state = replace(
        state,
        connected=effects[-1].connected or state.connected,
        last_success_at=now,
        held_until=None if is_closing else state.held_until,
        held_reason=None if is_closing else state.held_reason,
        concurrency=concurrency,
        ramp=ramp,
        failures_in_row=0,
        failing_since=None,
        validation_status=PASSED if state.validation_status == FAILED else state.validation_status,
    )
    for effect in effects:
        # A success may be the last request that a limit allowed.
        state = _hold(state, effect, now)
    return state


def _apply_others(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    for effect in effects:
        if effect.connected is not None:
            state = replace(state, connected=effect.connected)
        if effect.health is TargetHealth.UNHEALTHY and state.failing_since is None:
            state = replace(state, failing_since=now)
        state = _hold(state, effect, now)
    return state


def _hold(state: ThrottleState, effect: TargetEffect, now: datetime) -> ThrottleState:
    """Hold for as long as the receiver asks; a response to an earlier request shortens no hold."""
    if effect.hold_s is None:
        return state
    until = now + timedelta(seconds=effect.hold_s)
    if state.held_until is not None and state.held_until >= until and state.held_reason != BREAKER_OPEN:
        return state
    return replace(state, held_until=until, held_reason=effect.hold_reason, ramp=1)


def _failures_at_the_end(effects: Sequence[TargetEffect]) -> int:
    """Count the failures after the tick's last success; a receiver that names a time to retry is not failing."""
    failures = 0
    for effect in effects:
        if effect.health is TargetHealth.HEALTHY:
            failures = 0
        elif effect.health is TargetHealth.UNHEALTHY and effect.hold_s is None:
            failures += 1
    return failures


def _count_undelivered(state: ThrottleState, effects: Iterable[TargetEffect]) -> ThrottleState:
    """Count attempts without a delivery; FAILING_AFTER of them in a row show the target as failing.

    A receiver that asks to wait is not failing. Rejected tickets count: they delay nothing, so nothing else shows them.
    """
    count = state.undelivered_in_row
    for effect in effects:
        if effect.health is TargetHealth.HEALTHY:
            count = 0
        elif effect.hold_s is None:
            count = min(FAILING_AFTER, count + 1)
    connected = FAILING if count == FAILING_AFTER else state.connected
    return replace(state, undelivered_in_row=count, connected=connected)


def _apply_failures(state: ThrottleState, failures: int, now: datetime, *, was_probing: bool) -> ThrottleState:
    # A probe counts once, however many results arrive with it. Otherwise the count stops at BREAKER_FAILURES, so that an
    # opening breaker begins with its shortest interval.
    in_row = state.failures_in_row + 1 if was_probing else min(BREAKER_FAILURES, state.failures_in_row + failures)
    state = replace(state, failures_in_row=in_row)
    return _open_breaker(state, now) if in_row >= BREAKER_FAILURES else state


def _open_breaker(state: ThrottleState, now: datetime) -> ThrottleState:
    if state.is_held(now):
        # The receiver has named a time itself, and a success of an earlier request must not end the hold sooner.
        return state
    steps = min(state.failures_in_row - BREAKER_FAILURES, MAX_PROBE_WAIT_S.bit_length())
    until = now + timedelta(seconds=min(MAX_PROBE_WAIT_S, 2**steps))
    return replace(state, held_until=until, held_reason=BREAKER_OPEN, ramp=1)


def _interval_s(max_per_minute: int) -> float:
    """Return the interval between attempts: a little longer than the limit says, so that a burst never breaks it."""
    return (60 + BURST_S) / max_per_minute


def _burst_s(max_per_minute: int) -> float:
    return max(BURST_S, _interval_s(max_per_minute))
