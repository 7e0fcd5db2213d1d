"""Throttling per target: pauses, rate limit, concurrency, circuit breaker.

Pure: functions take a `ThrottleState` and return the next one; `storage.targets.throttle_state` stores it, so that every
worker sees it and a restart loses nothing. Throttling uses up no attempt: a target that must wait is not claimed for.

Concurrency follows the rule of congestion control: halved when a receiver is overloaded, grown by one after each round of
successes. After a hold a ramp starts at one and grows by one with each success, so a receiver that comes back is not met by
everything that waited. A breaker opens after a row of failures and lets single probes through, each later than the last.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from schemas.exports.delivery import TargetEffect, TargetHealth
from schemas.targets.target import BREAKER_OPEN
from schemas.targets.throttle_state import ThrottleState, WorkerShare

#: The contract's bounds of what a target may have open at once.
MIN_CONCURRENCY: Final = 1.0
MAX_CONCURRENCY: Final = 16.0
#: A row of failures that opens the breaker; then one probe at a time, after 1, 2, 4 … seconds, a minute at most.
BREAKER_FAILURES: Final = 5
MAX_PROBE_WAIT_S: Final = 60
#: A receiver that has done nothing but fail for so long is not there any more.
GIVE_UP_AFTER: Final = timedelta(days=5)
GIVEN_UP: Final = "failing_for_days"
#: `connected` shows a success this much late at most; a busy target's row is not written with every tick.
SUCCESS_SHOWN_WITHIN: Final = timedelta(seconds=1)
#: Whole intervals are counted in floating point.
_ROUNDING: Final = 1e-9
#: A pace allows this much of itself at once: a worker looks every 20 ms, and what it missed it may catch up with.
BURST_S: Final = 1.0


def after(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    """Return what becomes of a target's turn by attempts that came back together, in their order.

    Who comes back together was sent together: an overload among them halves once.
    """
    was_probing, was_held = state.failures_in_row >= BREAKER_FAILURES, state.is_held(now)
    for is_well, run in groupby(effects, key=_is_healthy):
        fared = _succeeded if is_well else _fared_otherwise
        state = fared(state, list(run), now)
    if any(effect.is_overloaded for effect in effects):
        state = replace(state, concurrency=max(MIN_CONCURRENCY, state.concurrency / 2))
    failures = _failures_at_the_end(effects)
    if failures and not (was_probing and was_held):
        # What was open when the breaker opened comes back late and says nothing new.
        state = _failed(state, failures, now, was_probing=was_probing)
    return state


def is_worth_writing(before: ThrottleState, then: ThrottleState) -> bool:
    """Tell whether a row must be written: not for a success alone, if the last one shown is fresh."""
    if replace(then, last_success_at=before.last_success_at) != before:
        return True
    if then.last_success_at == before.last_success_at:
        return False
    return (
        then.last_success_at is None
        or before.last_success_at is None
        or then.last_success_at - before.last_success_at >= SUCCESS_SHOWN_WITHIN
    )


def is_at_rest(state: ThrottleState, effects: Iterable[TargetEffect], now: datetime) -> bool:
    """Tell of a target that does as well as one can, and is told just that again, that nothing is worth writing.

    It is what most ticks say of most targets, and working out its next turn takes ten times as long (12 µs).
    """
    return (
        state.concurrency == MAX_CONCURRENCY
        and state.ramp == MAX_CONCURRENCY
        and state.failures_in_row == 0
        and state.failing_since is None
        and state.held_until is None
        and state.last_success_at is not None
        and now - state.last_success_at < SUCCESS_SHOWN_WITHIN
        and all(_is_plain_success(effect, state) for effect in effects)
    )


def has_failed_for_days(state: ThrottleState, now: datetime) -> bool:
    """Tell whether a target has done nothing but fail for so long that it is turned off."""
    return state.failing_since is not None and now - state.failing_since >= GIVE_UP_AFTER


def slots(state: ThrottleState, share: WorkerShare, now: datetime) -> int:
    """Return how many requests to a target this worker may have open at once.

    All workers' slots together are the target's concurrency. What does not divide falls to each in another target's turn, so
    that of many single probes every worker makes some.
    """
    if not state.takes_attempts(now):
        return 0
    whole, rest = divmod(_in_all(state), share.workers)
    place = (share.rank + zlib.crc32(state.target_id.encode())) % share.workers
    return whole + (place < rest)


def pace(state: ThrottleState, now: datetime) -> int:
    """Return how many attempts `max_per_minute` allows at `now`; more than anybody asks for where there is no limit."""
    if state.max_per_minute is None:
        return 2**31
    ahead_s = 0.0 if state.paced_until is None else max(0.0, (state.paced_until - now).total_seconds())
    return max(0, int((_burst_s(state.max_per_minute) - ahead_s) / _interval_s(state.max_per_minute) + _ROUNDING))


def paced(state: ThrottleState, count: int, now: datetime) -> ThrottleState:
    """Use up the pace of `count` attempts."""
    if state.max_per_minute is None or not count:
        return state
    begins_at = max(now, state.paced_until or now)
    # Rounded up: what is lost at each of a hundred looks a second would soon be more than the limit leaves over.
    spent_us = math.ceil(count * _interval_s(state.max_per_minute) * 1e6)
    return replace(state, paced_until=begins_at + timedelta(microseconds=spent_us))


def paced_at(state: ThrottleState) -> datetime | None:
    """Return from when on `max_per_minute` allows the next attempt; None where it does not stand in the way."""
    if state.max_per_minute is None or state.paced_until is None:
        return None
    spare_s = _burst_s(state.max_per_minute) - _interval_s(state.max_per_minute)
    return state.paced_until - timedelta(microseconds=math.floor(spare_s * 1e6))


def deal(quotas: Mapping[str, int], room: int) -> dict[str, int]:
    """Share out `room` claims, one a target and round, none getting more than its quota."""
    dealt: dict[str, int] = {}
    wanting = [target_id for target_id, quota in quotas.items() if quota > 0]
    while room > 0 and wanting:
        for target_id in wanting[:room]:
            dealt[target_id] = dealt.get(target_id, 0) + 1
        room -= len(wanting)
        wanting = [target_id for target_id in wanting if dealt[target_id] < quotas[target_id]] if room > 0 else []
    return dealt


def _in_all(state: ThrottleState) -> int:
    if state.failures_in_row >= BREAKER_FAILURES:
        return 1
    return max(1, min(int(state.concurrency), state.ramp))


def _is_healthy(effect: TargetEffect) -> bool:
    return effect.health is TargetHealth.HEALTHY


def _is_plain_success(effect: TargetEffect, state: ThrottleState) -> bool:
    is_more = effect.is_overloaded or effect.hold_s is not None or effect.connected not in {None, state.connected}
    return _is_healthy(effect) and not is_more


def _succeeded(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    """Take successes in a row at once: a busy target has dozens a tick."""
    concurrency, ramp = state.concurrency, state.ramp
    for _ in effects:
        concurrency = min(MAX_CONCURRENCY, concurrency + 1 / concurrency)
    is_closing = state.held_reason == BREAKER_OPEN
    if is_closing or not state.is_held(now):
        ramp = min(int(MAX_CONCURRENCY), ramp + len(effects))
    return replace(
        state,
        connected=effects[-1].connected or state.connected,
        last_success_at=now,
        held_until=None if is_closing else state.held_until,
        held_reason=None if is_closing else state.held_reason,
        concurrency=concurrency,
        ramp=ramp,
        failures_in_row=0,
        failing_since=None,
    )


def _fared_otherwise(state: ThrottleState, effects: Sequence[TargetEffect], now: datetime) -> ThrottleState:
    for effect in effects:
        if effect.connected is not None:
            state = replace(state, connected=effect.connected)
        if effect.health is TargetHealth.UNHEALTHY and state.failing_since is None:
            state = replace(state, failing_since=now)
        state = _hold(state, effect, now)
    return state


def _hold(state: ThrottleState, effect: TargetEffect, now: datetime) -> ThrottleState:
    """Wait as long as the receiver asks; an answer that asks for less, to a request sent before, shortens nothing."""
    if effect.hold_s is None:
        return state
    until = now + timedelta(seconds=effect.hold_s)
    if state.held_until is not None and state.held_until >= until and state.held_reason != BREAKER_OPEN:
        return state
    return replace(state, held_until=until, held_reason=effect.hold_reason, ramp=1)


def _failures_at_the_end(effects: Sequence[TargetEffect]) -> int:
    """Count the failures that no success of the same tick has ended; who says when to come back is not broken."""
    failures = 0
    for effect in effects:
        if effect.health is TargetHealth.HEALTHY:
            failures = 0
        elif effect.health is TargetHealth.UNHEALTHY and effect.hold_s is None:
            failures += 1
    return failures


def _failed(state: ThrottleState, failures: int, now: datetime, *, was_probing: bool) -> ThrottleState:
    # A probe is one however many come back with it; and a row that opens the breaker opens it at its first step.
    in_row = state.failures_in_row + 1 if was_probing else min(BREAKER_FAILURES, state.failures_in_row + failures)
    state = replace(state, failures_in_row=in_row)
    return _open_breaker(state, now) if in_row >= BREAKER_FAILURES else state


def _open_breaker(state: ThrottleState, now: datetime) -> ThrottleState:
    if state.is_held(now):
        # The receiver has named a moment itself, and no success of what was sent before may bring it forward.
        return state
    steps = min(state.failures_in_row - BREAKER_FAILURES, MAX_PROBE_WAIT_S.bit_length())
    until = now + timedelta(seconds=min(MAX_PROBE_WAIT_S, 2**steps))
    return replace(state, held_until=until, held_reason=BREAKER_OPEN, ramp=1)


def _interval_s(max_per_minute: int) -> float:
    """Return how far apart attempts are: a little further than the limit says, so that a burst never breaks it."""
    return (60 + BURST_S) / max_per_minute


def _burst_s(max_per_minute: int) -> float:
    return max(BURST_S, _interval_s(max_per_minute))
