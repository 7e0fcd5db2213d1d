"""A target's turn: pauses, pace, concurrency, breaker. How much a target is sent now, and what an attempt changes in that.

Pure: what is known of a target comes in as a `Turn` and goes out as the next one; `storage.targets.throttle_state` keeps it,
so that every worker sees it and a restart forgets nothing. Nothing here spends an attempt: what has to wait is not claimed.

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

from schemas.exports.delivery import Health, TargetEffect
from schemas.targets.target import BREAKER_OPEN
from schemas.targets.throttle_state import Share, Turn

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


def after(turn: Turn, effects: Sequence[TargetEffect], now: datetime) -> Turn:
    """Return what becomes of a target's turn by attempts that came back together, in their order.

    Who comes back together was sent together: an overload among them halves once.
    """
    was_probing, was_held = turn.failures_in_row >= BREAKER_FAILURES, turn.is_held(now)
    for is_well, run in groupby(effects, key=_is_well):
        fared = _succeeded if is_well else _fared_otherwise
        turn = fared(turn, list(run), now)
    if any(effect.is_overloaded for effect in effects):
        turn = replace(turn, concurrency=max(MIN_CONCURRENCY, turn.concurrency / 2))
    failures = _failures_at_the_end(effects)
    if failures and not (was_probing and was_held):
        # What was open when the breaker opened comes back late and says nothing new.
        turn = _failed(turn, failures, now, was_probing=was_probing)
    return turn


def is_worth_writing(before: Turn, then: Turn) -> bool:
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


def is_at_rest(turn: Turn, effects: Iterable[TargetEffect], now: datetime) -> bool:
    """Tell of a target that does as well as one can, and is told just that again, that nothing is worth writing.

    It is what most ticks say of most targets, and working out its next turn takes ten times as long (12 µs).
    """
    return (
        turn.concurrency == MAX_CONCURRENCY
        and turn.ramp == MAX_CONCURRENCY
        and turn.failures_in_row == 0
        and turn.failing_since is None
        and turn.held_until is None
        and turn.last_success_at is not None
        and now - turn.last_success_at < SUCCESS_SHOWN_WITHIN
        and all(_is_plain_success(effect, turn) for effect in effects)
    )


def has_failed_for_days(turn: Turn, now: datetime) -> bool:
    """Tell whether a target has done nothing but fail for so long that it is turned off."""
    return turn.failing_since is not None and now - turn.failing_since >= GIVE_UP_AFTER


def slots(turn: Turn, share: Share, now: datetime) -> int:
    """Return how many requests to a target this worker may have open at once.

    All workers' slots together are the target's concurrency. What does not divide falls to each in another target's turn, so
    that of many single probes every worker makes some.
    """
    if not turn.takes_attempts(now):
        return 0
    whole, rest = divmod(_in_all(turn), share.workers)
    place = (share.rank + zlib.crc32(turn.target_id.encode())) % share.workers
    return whole + (place < rest)


def pace(turn: Turn, now: datetime) -> int:
    """Return how many attempts `max_per_minute` allows at `now`; more than anybody asks for where there is no limit."""
    if turn.max_per_minute is None:
        return 2**31
    ahead_s = 0.0 if turn.paced_until is None else max(0.0, (turn.paced_until - now).total_seconds())
    return max(0, int((_burst_s(turn.max_per_minute) - ahead_s) / _interval_s(turn.max_per_minute) + _ROUNDING))


def paced(turn: Turn, count: int, now: datetime) -> Turn:
    """Use up the pace of `count` attempts."""
    if turn.max_per_minute is None or not count:
        return turn
    begins_at = max(now, turn.paced_until or now)
    # Rounded up: what is lost at each of a hundred looks a second would soon be more than the limit leaves over.
    spent_us = math.ceil(count * _interval_s(turn.max_per_minute) * 1e6)
    return replace(turn, paced_until=begins_at + timedelta(microseconds=spent_us))


def paced_at(turn: Turn) -> datetime | None:
    """Return from when on `max_per_minute` allows the next attempt; None where it does not stand in the way."""
    if turn.max_per_minute is None or turn.paced_until is None:
        return None
    spare_s = _burst_s(turn.max_per_minute) - _interval_s(turn.max_per_minute)
    return turn.paced_until - timedelta(microseconds=math.floor(spare_s * 1e6))


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


def _in_all(turn: Turn) -> int:
    if turn.failures_in_row >= BREAKER_FAILURES:
        return 1
    return max(1, min(int(turn.concurrency), turn.ramp))


def _is_well(effect: TargetEffect) -> bool:
    return effect.health is Health.WELL


def _is_plain_success(effect: TargetEffect, turn: Turn) -> bool:
    is_more = effect.is_overloaded or effect.hold_s is not None or effect.connected not in {None, turn.connected}
    return _is_well(effect) and not is_more


def _succeeded(turn: Turn, effects: Sequence[TargetEffect], now: datetime) -> Turn:
    """Take successes in a row at once: a busy target has dozens a tick."""
    concurrency, ramp = turn.concurrency, turn.ramp
    for _ in effects:
        concurrency = min(MAX_CONCURRENCY, concurrency + 1 / concurrency)
    is_closing = turn.held_reason == BREAKER_OPEN
    if is_closing or not turn.is_held(now):
        ramp = min(int(MAX_CONCURRENCY), ramp + len(effects))
    return replace(
        turn,
        connected=effects[-1].connected or turn.connected,
        last_success_at=now,
        held_until=None if is_closing else turn.held_until,
        held_reason=None if is_closing else turn.held_reason,
        concurrency=concurrency,
        ramp=ramp,
        failures_in_row=0,
        failing_since=None,
    )


def _fared_otherwise(turn: Turn, effects: Sequence[TargetEffect], now: datetime) -> Turn:
    for effect in effects:
        if effect.connected is not None:
            turn = replace(turn, connected=effect.connected)
        if effect.health is Health.ILL and turn.failing_since is None:
            turn = replace(turn, failing_since=now)
        turn = _hold(turn, effect, now)
    return turn


def _hold(turn: Turn, effect: TargetEffect, now: datetime) -> Turn:
    """Wait as long as the receiver asks; an answer that asks for less, to a request sent before, shortens nothing."""
    if effect.hold_s is None:
        return turn
    until = now + timedelta(seconds=effect.hold_s)
    if turn.held_until is not None and turn.held_until >= until and turn.held_reason != BREAKER_OPEN:
        return turn
    return replace(turn, held_until=until, held_reason=effect.hold_reason, ramp=1)


def _failures_at_the_end(effects: Sequence[TargetEffect]) -> int:
    """Count the failures that no success of the same tick has ended; who says when to come back is not broken."""
    failures = 0
    for effect in effects:
        if effect.health is Health.WELL:
            failures = 0
        elif effect.health is Health.ILL and effect.hold_s is None:
            failures += 1
    return failures


def _failed(turn: Turn, failures: int, now: datetime, *, was_probing: bool) -> Turn:
    # A probe is one however many come back with it; and a row that opens the breaker opens it at its first step.
    in_row = turn.failures_in_row + 1 if was_probing else min(BREAKER_FAILURES, turn.failures_in_row + failures)
    turn = replace(turn, failures_in_row=in_row)
    return _open_breaker(turn, now) if in_row >= BREAKER_FAILURES else turn


def _open_breaker(turn: Turn, now: datetime) -> Turn:
    if turn.is_held(now):
        # The receiver has named a moment itself, and no success of what was sent before may bring it forward.
        return turn
    steps = min(turn.failures_in_row - BREAKER_FAILURES, MAX_PROBE_WAIT_S.bit_length())
    until = now + timedelta(seconds=min(MAX_PROBE_WAIT_S, 2**steps))
    return replace(turn, held_until=until, held_reason=BREAKER_OPEN, ramp=1)


def _interval_s(max_per_minute: int) -> float:
    """Return how far apart attempts are: a little further than the limit says, so that a burst never breaks it."""
    return (60 + BURST_S) / max_per_minute


def _burst_s(max_per_minute: int) -> float:
    return max(BURST_S, _interval_s(max_per_minute))
