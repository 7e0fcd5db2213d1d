"""The arithmetic of throttle states: how attempts change them, and how much one worker may send."""

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.exports.delivery import TargetEffect, TargetHealth
from schemas.targets.target import BREAKER_OPEN, MAX_PER_MINUTE, RATE_LIMITED, RECEIVER_UNAVAILABLE, TargetStatus
from schemas.targets.throttle_state import ThrottleState, WorkerShare
from tests.support.factories import NOW, in_s
from worker.delivery import throttle
from worker.delivery.throttle import (
    distribute,
    has_failed_for_days,
    is_at_rest,
    is_worth_writing,
    next_state,
    rate_allowance,
    rate_allows_from,
    slots,
    update,
    use_rate_allowance,
)

HEALTHY: Final = TargetEffect("connected", health=TargetHealth.HEALTHY)
UNHEALTHY: Final = TargetEffect("failing", health=TargetHealth.UNHEALTHY)
TIMED_OUT: Final = replace(UNHEALTHY, is_overloaded=True)
#: A 503 without Retry-After.
BUSY: Final = TargetEffect(health=TargetHealth.UNHEALTHY, is_overloaded=True)
REFUSED: Final = TargetEffect()
BLOCKED: Final = TargetEffect("failing", TargetStatus.BLOCKED, "address_private", TargetHealth.UNHEALTHY)
GONE: Final = TargetEffect("failing", TargetStatus.DISABLED, "receiver_gone", TargetHealth.UNHEALTHY)

FRESH: Final = ThrottleState(
    target_id="tgt_1",
    status=TargetStatus.ACTIVE,
    connected="unknown",
    last_success_at=None,
    held_until=None,
    held_reason=None,
    concurrency=16.0,
    ramp=16,
    failures_in_row=0,
    failing_since=None,
    max_per_minute=None,
    paced_until=None,
    account_id=1,
)


def state(**changes: Any) -> ThrottleState:
    return replace(FRESH, **changes)


def limited(hold_s: float) -> TargetEffect:
    """Return the effect of a 429 with Retry-After."""
    return replace(BUSY, hold_s=hold_s, hold_reason=RATE_LIMITED)


def unavailable(hold_s: float) -> TargetEffect:
    """Return the effect of a 503 with Retry-After."""
    return replace(BUSY, hold_s=hold_s, hold_reason=RECEIVER_UNAVAILABLE)


# ---------------------------------------------------------------- concurrency and ramp


# Columns: concurrency before; effects of one tick; concurrency afterwards.
CONCURRENCY: Final = [
    (16.0, [HEALTHY], 16.0),  # the maximum
    (4.0, [HEALTHY], 4.25),
    (1.0, [HEALTHY], 2.0),  # as many successes as slots
    (16.0, [BUSY], 8.0),
    (16.0, [BUSY] * 16, 8.0),  # sent together, so halved once
    (16.0, [TIMED_OUT], 8.0),
    (16.0, [limited(1)], 8.0),
    (3.0, [BUSY], 1.5),
    (1.5, [BUSY], 1.0),  # never below one
    (1.0, [BUSY], 1.0),
    (8.0, [UNHEALTHY], 8.0),  # a refused connection or a 401 shows nothing about the load
    (8.0, [REFUSED], 8.0),
    (8.0, [GONE], 8.0),
    (2.0, [HEALTHY, BUSY], 1.25),  # raised, then halved
    (2.0, [BUSY, HEALTHY], 1.25),  # in either order
]


@pytest.mark.parametrize(("before", "effects", "then"), CONCURRENCY)
def test_overload_halves_the_concurrency_once_a_tick_and_success_lets_it_grow(
    before: float, effects: Sequence[TargetEffect], then: float
) -> None:
    assert next_state(state(concurrency=before), effects, NOW).concurrency == pytest.approx(then)


@pytest.mark.parametrize("whole", range(1, 16))
def test_as_many_successes_as_slots_raise_the_concurrency_by_one_at_most(whole: int) -> None:
    grown = next_state(state(concurrency=float(whole)), [HEALTHY] * whole, NOW).concurrency
    assert whole + 0.7 < grown <= whole + 1


def test_the_concurrency_grows_from_one_to_sixteen_in_some_sixteen_steps() -> None:
    at, steps = state(concurrency=1.0), 0
    while at.concurrency < 16:
        at, steps = next_state(at, [HEALTHY] * int(at.concurrency), NOW), steps + 1
    assert 15 <= steps <= 20


def test_after_a_hold_the_concurrency_grows_from_one_to_two_to_four() -> None:
    held = next_state(state(concurrency=16.0), [limited(30)], NOW)
    assert (held.ramp, slots(held, WorkerShare(), in_s(29.999)), slots(held, WorkerShare(), in_s(30))) == (1, 0, 1)
    at_once = [1]
    while at_once[-1] < 8:
        held = next_state(held, [HEALTHY] * at_once[-1], in_s(31))
        at_once.append(slots(held, WorkerShare(), in_s(31)))
    assert at_once == [1, 2, 4, 8]


def test_a_success_with_a_wait_holds_its_target_and_counts_as_a_success() -> None:
    last = replace(HEALTHY, hold_s=90.0, hold_reason=RATE_LIMITED)
    for effects in ([last], [last, HEALTHY], [HEALTHY, last]):
        after = next_state(state(failures_in_row=2, undelivered_in_row=2), effects, NOW)
        assert (after.held_until, after.held_reason) == (in_s(90), RATE_LIMITED)
        assert (after.connected, after.last_success_at) == ("connected", NOW)
        assert (after.failures_in_row, after.undelivered_in_row) == (0, 0)
    busy = state(last_success_at=NOW, connected="connected")
    assert is_at_rest(busy, [HEALTHY], NOW)
    assert not is_at_rest(busy, [last], NOW)


def test_a_success_during_a_hold_of_a_request_sent_before_it_starts_no_ramp() -> None:
    held = next_state(state(), [HEALTHY, limited(30), HEALTHY, HEALTHY], NOW)
    assert (held.ramp, held.held_until, held.held_reason) == (1, in_s(30), RATE_LIMITED)
    assert next_state(held, [HEALTHY] * 5, in_s(29)).ramp == 1
    assert next_state(held, [HEALTHY], in_s(30)).ramp == 2


def test_the_ramp_ends_at_the_greatest_concurrency() -> None:
    assert next_state(state(ramp=15), [HEALTHY] * 5, NOW).ramp == 16


# ---------------------------------------------------------------- holds

# Columns: end and reason of the hold before; effects of one tick; end and reason afterwards; in seconds from now.
HOLDS: Final = [
    ((None, None), [limited(30)], (30, RATE_LIMITED)),
    ((None, None), [unavailable(7)], (7, RECEIVER_UNAVAILABLE)),
    ((None, None), [BUSY], (None, None)),  # a 503 without Retry-After holds nothing
    ((None, None), [limited(30), unavailable(60)], (60, RECEIVER_UNAVAILABLE)),  # the longest hold of a tick applies
    ((None, None), [unavailable(60), limited(30)], (60, RECEIVER_UNAVAILABLE)),  # in either order
    ((20, RATE_LIMITED), [limited(10)], (20, RATE_LIMITED)),  # a response to an earlier request shortens nothing
    ((20, RATE_LIMITED), [limited(30)], (30, RATE_LIMITED)),
    ((20, RATE_LIMITED), [unavailable(20)], (20, RATE_LIMITED)),  # nor does a hold of the same length
    ((20, BREAKER_OPEN), [limited(20)], (20, RATE_LIMITED)),
    ((20, RATE_LIMITED), [HEALTHY], (20, RATE_LIMITED)),  # nor does a success
    ((20, RATE_LIMITED), [UNHEALTHY] * 5, (20, RATE_LIMITED)),  # nor does an opening breaker, whose hold would be shorter
    ((0.5, RATE_LIMITED), [UNHEALTHY] * 5, (0.5, RATE_LIMITED)),  # or longer: the receiver has named a time
    ((20, BREAKER_OPEN), [limited(10)], (10, RATE_LIMITED)),  # a time that the receiver names replaces the breaker's guess
    ((-5, RATE_LIMITED), [limited(1)], (1, RATE_LIMITED)),
    ((-5, RATE_LIMITED), [UNHEALTHY], (-5, RATE_LIMITED)),
]


@pytest.mark.parametrize(("before", "effects", "then"), HOLDS)
def test_a_target_is_held_as_long_as_its_receiver_requests(
    before: tuple[float | None, str | None], effects: Sequence[TargetEffect], then: tuple[float | None, str | None]
) -> None:
    until_s, reason = before
    held = state(held_until=None if until_s is None else in_s(until_s), held_reason=reason)
    after = next_state(held, effects, NOW)
    assert (after.held_until, after.held_reason) == (None if then[0] is None else in_s(then[0]), then[1])


@pytest.mark.parametrize("effect", [HEALTHY, UNHEALTHY, BUSY, REFUSED, GONE])
def test_nothing_starts_while_a_target_is_held(effect: TargetEffect) -> None:
    held = next_state(next_state(state(), [limited(10)], NOW), [effect], in_s(1))
    assert slots(held, WorkerShare(), in_s(9.999)) == 0
    assert slots(held, WorkerShare(), in_s(10)) == 1


# ---------------------------------------------------------------- the breaker


def test_the_fifth_failure_in_a_row_opens_the_breaker() -> None:
    at = state()
    for failures in range(1, 5):
        at = next_state(at, [UNHEALTHY], NOW)
        assert (at.failures_in_row, at.held_until) == (failures, None)
    at = next_state(at, [UNHEALTHY], NOW)
    assert (at.failures_in_row, at.held_until, at.held_reason, at.ramp) == (5, in_s(1), BREAKER_OPEN, 1)


# Columns: failures in a row before; effects of one tick; failures in a row afterwards.
ROWS: Final = [
    (3, [UNHEALTHY, HEALTHY], 0),
    (3, [HEALTHY, UNHEALTHY], 1),
    (4, [UNHEALTHY, HEALTHY, UNHEALTHY], 1),
    (4, [REFUSED], 4),  # a ticket that is refused for its content: the target's health is unknown
    (4, [REFUSED, UNHEALTHY], 5),
    (4, [BUSY], 5),
    (4, [TIMED_OUT], 5),
    (4, [limited(10)], 4),  # a receiver that names a time to wait is not broken
    (4, [unavailable(10), limited(10)], 4),
    (0, [UNHEALTHY] * 16, 5),  # failures that open the breaker do not count beyond its first step
    (2, [GONE], 3),
]


@pytest.mark.parametrize(("before", "effects", "then"), ROWS)
def test_only_failures_after_the_last_success_of_a_tick_count(
    before: int, effects: Sequence[TargetEffect], then: int
) -> None:
    assert next_state(state(failures_in_row=before), effects, NOW).failures_in_row == then


def test_probes_are_single_and_each_waits_longer_than_the_last() -> None:
    at, now = next_state(state(), [UNHEALTHY] * 5, NOW), NOW
    waits = []
    for _ in range(9):
        assert at.held_until is not None
        waits.append((at.held_until - now).total_seconds())
        assert slots(at, WorkerShare(), at.held_until - timedelta(milliseconds=1)) == 0
        now = at.held_until
        assert slots(at, WorkerShare(), now) == 1
        at = next_state(at, [UNHEALTHY], now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_after_any_number_of_failures_the_next_probe_is_within_a_minute() -> None:
    at = next_state(state(failures_in_row=10**6), [UNHEALTHY], NOW)
    assert at.held_until == in_s(60)


def test_failures_of_requests_from_before_the_breaker_opened_do_not_count() -> None:
    opened = next_state(state(), [UNHEALTHY] * 5, NOW)
    late = next_state(opened, [UNHEALTHY, TIMED_OUT], in_s(0.5))
    assert (late.failures_in_row, late.held_until) == (5, in_s(1))


def test_results_of_probes_in_one_tick_are_one_step() -> None:
    probing = state(failures_in_row=6, held_until=in_s(-1), held_reason=BREAKER_OPEN)
    at = next_state(probing, [UNHEALTHY] * 3, NOW)
    assert (at.failures_in_row, at.held_until) == (7, in_s(4))


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_any_success_closes_the_breaker(seconds: float) -> None:
    at = next_state(next_state(state(), [UNHEALTHY] * 5, NOW), [HEALTHY], in_s(seconds))
    assert (at.failures_in_row, at.held_until, at.held_reason, at.failing_since) == (0, None, None, None)
    assert slots(at, WorkerShare(), in_s(seconds)) == 2


def test_a_probe_with_retry_after_waits_and_is_followed_by_a_probe() -> None:
    probing = state(failures_in_row=6, held_until=in_s(-1), held_reason=BREAKER_OPEN)
    at = next_state(probing, [limited(30)], NOW)
    assert (at.failures_in_row, at.held_until, at.held_reason) == (6, in_s(30), RATE_LIMITED)
    assert slots(next_state(at, [HEALTHY], in_s(30)), WorkerShare(), in_s(30)) == 2
    # A success of an earlier request resets the failures, but does not end a hold that the receiver asked for.
    assert next_state(at, [HEALTHY], in_s(1)).held_until == in_s(30)


def test_a_rejected_ticket_does_not_change_the_breaker() -> None:
    opened = next_state(state(), [UNHEALTHY] * 5, NOW)
    assert next_state(opened, [REFUSED], in_s(2)) == opened


# ---------------------------------------------------------------- what is shown, and what is written


def test_the_last_result_determines_the_connection_status() -> None:
    assert next_state(state(), [UNHEALTHY, HEALTHY], NOW).connected == "connected"
    failing = next_state(state(connected="connected", last_success_at=in_s(-60)), [HEALTHY, UNHEALTHY], NOW)
    assert (failing.connected, failing.last_success_at) == ("failing", NOW)
    assert next_state(state(connected="connected"), [limited(5), REFUSED], NOW).connected == "connected"


def test_failing_begins_with_the_first_failure_and_ends_with_a_success() -> None:
    first = next_state(state(), [UNHEALTHY], NOW)
    later = next_state(first, [limited(5), BUSY], in_s(60))
    assert (first.failing_since, later.failing_since) == (NOW, NOW)
    assert next_state(later, [HEALTHY], in_s(61)).failing_since is None
    assert next_state(later, [HEALTHY, UNHEALTHY], in_s(61)).failing_since == in_s(61)
    assert next_state(state(), [REFUSED], NOW).failing_since is None


# Columns: days since a target began to fail; whether it is disabled.
DAYS: Final = [(None, False), (0, False), (4.999, False), (5, True), (50, True)]


@pytest.mark.parametrize(("days", "is_given_up"), DAYS)
def test_a_target_has_failed_for_days_after_five_days_of_failures_alone(days: float | None, is_given_up: bool) -> None:
    since = None if days is None else NOW - timedelta(days=days)
    assert has_failed_for_days(state(failing_since=since), NOW) is is_given_up


# Columns: last recorded success, in seconds from now; whether another success is written.
SHOWN: Final = [(None, True), (-60, True), (-1, True), (-0.999, False), (-0.02, False), (0, False)]


@pytest.mark.parametrize(("last_s", "is_written"), SHOWN)
def test_a_further_success_is_written_at_most_once_a_second(last_s: float | None, is_written: bool) -> None:
    before = state(connected="connected", last_success_at=None if last_s is None else in_s(last_s))
    assert is_worth_writing(before, next_state(before, [HEALTHY], NOW)) is is_written


@pytest.mark.parametrize("effect", [UNHEALTHY, BUSY, limited(1), GONE])
def test_other_changes_are_written_at_once(effect: TargetEffect) -> None:
    before = state(connected="connected", last_success_at=NOW)
    assert is_worth_writing(before, next_state(before, [effect], NOW))
    assert is_worth_writing(replace(before, ramp=3), next_state(replace(before, ramp=3), [HEALTHY], NOW))
    assert not is_worth_writing(before, next_state(before, [REFUSED, HEALTHY], NOW))


# ---------------------------------------------------------------- shares

TARGET_IDS: Final = [f"tgt_{number}" for number in range(40)]


def shares(at: ThrottleState, workers: int, now: datetime = NOW) -> list[int]:
    return [slots(at, WorkerShare(rank, workers), now) for rank in range(workers)]


@pytest.mark.parametrize("workers", range(1, 21))
def test_all_workers_slots_together_are_the_concurrency(workers: int) -> None:
    for concurrency, target_id in itertools.product(range(1, 17), TARGET_IDS[:5]):
        dealt = shares(state(target_id=target_id, concurrency=concurrency + 0.9), workers)
        assert sum(dealt) == min(concurrency, 16)
        assert max(dealt) - min(dealt) <= 1


@pytest.mark.parametrize("workers", range(1, 21))
def test_single_probes_are_distributed_among_all_workers(workers: int) -> None:
    probing = [state(target_id=f"tgt_{number}", failures_in_row=5) for number in range(20 * workers)]
    made = [shares(at, workers) for at in probing]
    assert {sum(each) for each in made} == {1}
    assert all(any(each[rank] for each in made) for rank in range(workers))


# Columns: changes to a state; requests that may be open at once.
AT_ONCE: Final = [
    ({}, 16),
    ({"concurrency": 15.99}, 15),
    ({"ramp": 3}, 3),
    ({"ramp": 3, "concurrency": 2.5}, 2),
    ({"concurrency": 0.5}, 1),  # never below one
    ({"ramp": 0}, 1),
    ({"failures_in_row": 4}, 16),
    ({"failures_in_row": 5}, 1),
    ({"held_until": in_s(0.001), "held_reason": RATE_LIMITED}, 0),
    ({"held_until": NOW, "held_reason": RATE_LIMITED}, 16),
    *(({"status": status}, 0) for status in TargetStatus if status is not TargetStatus.ACTIVE),
]


@pytest.mark.parametrize(("changes", "at_once"), AT_ONCE)
def test_a_throttle_state_limits_how_much_may_be_open_at_once(changes: dict[str, Any], at_once: int) -> None:
    assert slots(state(**changes), WorkerShare(), NOW) == at_once


# ---------------------------------------------------------------- pace


def simulate(limit: int, workers: int, minutes: float, busy: Sequence[bool] = (True,)) -> list[tuple[float, int]]:
    """Let workers send all they may every 20 ms, one after the other; return the times in seconds and the counts.

    `busy` says for each minute whether anything waits.
    """
    at, sent = state(max_per_minute=limit), []
    for look in range(int(minutes * 60 / 0.02) * workers):
        seconds = look * 0.02 / workers
        now = in_s(seconds)
        count = rate_allowance(at, now) if busy[int(seconds // 60) % len(busy)] else 0
        if count:
            at = use_rate_allowance(at, count, now)
            sent.append((seconds, count))
    return sent


def most_in_a_minute(sent: Sequence[tuple[float, int]]) -> int:
    """Return the most requests within any 60 seconds, both ends included."""
    within: deque[tuple[float, int]] = deque()
    most = total = 0
    for seconds, count in sent:
        within.append((seconds, count))
        total += count
        while seconds - within[0][0] > 60:
            total -= within.popleft()[1]
        most = max(most, total)
    return most


# Columns: limit per minute; minutes to simulate.
PACES: Final = [(1, 20), (7, 10), (59, 5), (60, 5), (61, 5), (62, 5), (600, 3), (6_000, 3), (MAX_PER_MINUTE, 3)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("limit", "minutes"), PACES)
def test_a_rate_limit_is_never_exceeded_and_nearly_reached(limit: int, minutes: int, workers: int) -> None:
    sent = simulate(limit, workers, minutes)
    assert most_in_a_minute(sent) <= limit
    assert sum(count for _, count in sent) >= 0.95 * limit * minutes


@pytest.mark.parametrize("limit", [1, 7, 60, 61, 600, 6_000])
def test_unused_requests_of_a_rate_limit_accumulate_for_at_most_a_second(limit: int) -> None:
    sent = simulate(limit, 2, 6, busy=(True, False, False))
    assert most_in_a_minute(sent) <= limit
    assert sent


@given(limit=st.integers(1, MAX_PER_MINUTE), waits_s=st.lists(st.floats(0, 90), max_size=60))
def test_no_sequence_of_claims_exceeds_a_rate_limit(limit: int, waits_s: list[float]) -> None:
    at, sent, seconds = state(max_per_minute=limit), [], 0.0
    for wait_s in waits_s:
        # Whole microseconds, the resolution of a clock.
        seconds = round(seconds + wait_s, 6)
        count = rate_allowance(at, in_s(seconds))
        at = use_rate_allowance(at, count, in_s(seconds))
        sent.append((seconds, count))
    assert most_in_a_minute(sent) <= limit


@given(limit=st.integers(1, MAX_PER_MINUTE), share=st.floats(0.01, 1))
def test_the_next_attempt_starts_when_the_rate_limit_allows_it_and_not_before(limit: int, share: float) -> None:
    at = state(max_per_minute=limit)
    at = use_rate_allowance(at, max(1, int(share * rate_allowance(at, NOW))), NOW)
    used_up = use_rate_allowance(at, rate_allowance(at, NOW), NOW)
    moment = rate_allows_from(used_up)
    assert moment is not None
    assert rate_allowance(used_up, moment) >= 1
    assert rate_allowance(used_up, max(NOW, moment - timedelta(microseconds=3))) == 0


def test_without_a_rate_limit_the_allowance_is_unbounded() -> None:
    assert rate_allowance(state(), NOW) > 10**6
    assert use_rate_allowance(state(), 1000, NOW) == state()


def test_zero_requests_use_no_allowance() -> None:
    limited_state = state(max_per_minute=60)
    assert use_rate_allowance(limited_state, 0, NOW) == limited_state


def test_a_target_without_a_rate_limit_or_without_earlier_requests_may_send_at_once() -> None:
    assert rate_allows_from(state()) is None
    assert rate_allows_from(state(paced_until=in_s(30))) is None
    assert rate_allows_from(state(max_per_minute=60)) is None


# ---------------------------------------------------------------- distribution

# Columns: how many claims each target may get; how many there are; how many each gets.
DEALS: Final = [
    ({"a": 5, "b": 5}, 4, {"a": 2, "b": 2}),
    ({"a": 100, "b": 1, "c": 2}, 10, {"a": 7, "b": 1, "c": 2}),
    ({"a": 3, "b": 3, "c": 3}, 2, {"a": 1, "b": 1}),  # in the given order
    ({"a": 3, "b": 3}, 3, {"a": 2, "b": 1}),
    ({"a": 0, "b": 2}, 5, {"b": 2}),
    ({}, 5, {}),
    ({"a": 5}, 0, {}),
]


@pytest.mark.parametrize(("quotas", "room", "dealt"), DEALS)
def test_claims_are_distributed_one_by_one(quotas: dict[str, int], room: int, dealt: dict[str, int]) -> None:
    assert distribute(quotas, room) == dealt


@given(quotas=st.dictionaries(st.text(max_size=3), st.integers(0, 40), max_size=20), room=st.integers(0, 200))
def test_distribution_uses_all_capacity_and_favors_no_target(quotas: dict[str, int], room: int) -> None:
    dealt = distribute(quotas, room)
    assert sum(dealt.values()) == min(room, sum(quotas.values()))
    assert all(0 < count <= quotas[target_id] for target_id, count in dealt.items())
    least = min((dealt.get(each, 0) for each, quota in quotas.items() if dealt.get(each, 0) < quota), default=10**9)
    # A target that could have got more got at most one less than any other target.
    assert all(count <= least + 1 for count in dealt.values())


def test_concurrency_limits_and_the_time_until_a_target_is_disabled_match_the_contract() -> None:
    assert (throttle.MIN_CONCURRENCY, throttle.MAX_CONCURRENCY) == (1, 16)
    assert timedelta(days=5) == throttle.GIVE_UP_AFTER


AT_REST: Final = state(connected="connected", last_success_at=NOW)


@pytest.mark.parametrize(
    ("before", "effects"),
    [
        (state(connected="connected"), [HEALTHY]),  # no success so far
        (replace(AT_REST, last_success_at=in_s(-1)), [HEALTHY]),  # the last success was written too long ago
        (replace(AT_REST, connected="failing"), [HEALTHY]),  # the connection changes to "connected"
        (replace(AT_REST, concurrency=15.9), [HEALTHY]),
        (replace(AT_REST, ramp=15), [HEALTHY]),
        (replace(AT_REST, failures_in_row=1), [HEALTHY]),
        (replace(AT_REST, failing_since=NOW), [HEALTHY]),
        (replace(AT_REST, undelivered_in_row=1), [HEALTHY]),
        (replace(AT_REST, validation_status="failed"), [HEALTHY]),
        (replace(AT_REST, held_until=in_s(5), held_reason=BREAKER_OPEN), [HEALTHY]),
        (AT_REST, [HEALTHY, UNHEALTHY]),
        (AT_REST, [HEALTHY, TIMED_OUT]),
        (AT_REST, [limited(5), HEALTHY]),
        (AT_REST, [replace(HEALTHY, is_overloaded=True)]),
        (AT_REST, [replace(HEALTHY, hold_s=1.0, hold_reason=RATE_LIMITED)]),
    ],
)
def test_a_throttle_state_is_not_at_rest_if_effects_may_change_its_row(
    before: ThrottleState, effects: list[TargetEffect]
) -> None:
    assert not is_at_rest(before, effects, NOW)


@given(
    st.builds(
        state,
        connected=st.sampled_from(["connected", "failing"]),
        last_success_at=st.sampled_from([None, NOW, in_s(-0.999), in_s(-1), in_s(5)]),
        concurrency=st.sampled_from([16.0, 15.5]),
        ramp=st.sampled_from([16, 15]),
        failures_in_row=st.sampled_from([0, 1]),
    ),
    st.lists(st.sampled_from([HEALTHY, HEALTHY, HEALTHY, UNHEALTHY, REFUSED]), min_size=1, max_size=3),
)
def test_a_throttle_state_at_rest_is_never_worth_writing(before: ThrottleState, effects: list[TargetEffect]) -> None:
    if is_at_rest(before, effects, NOW):
        assert not is_worth_writing(before, next_state(before, effects, NOW))


def test_a_healthy_busy_target_is_at_rest_within_a_second_of_its_last_write() -> None:
    assert is_at_rest(AT_REST, [HEALTHY] * 40, in_s(0.9))


# ---------------------------------------------------------------- failing


# Columns: undelivered attempts before; effects of one tick; undelivered attempts and connection afterwards.
UNDELIVERED: Final = [
    (0, [REFUSED], 1, "connected"),
    (0, [REFUSED] * 5, 5, "failing"),  # rejected tickets hold nothing, and nothing else shows them
    (4, [BUSY], 5, "failing"),
    (5, [REFUSED] * 9, 5, "failing"),  # further failures are not written
    (5, [HEALTHY], 0, "connected"),
    (5, [HEALTHY, REFUSED], 1, "connected"),
    (4, [limited(5), unavailable(5)], 4, "connected"),  # the receiver asks to wait
]


@pytest.mark.parametrize(("before", "effects", "after", "shown"), UNDELIVERED)
def test_a_target_whose_last_attempts_delivered_nothing_is_shown_as_failing(
    before: int, effects: list[TargetEffect], after: int, shown: str
) -> None:
    found = next_state(state(connected="connected", undelivered_in_row=before), effects, NOW)
    assert (found.undelivered_in_row, found.connected) == (after, shown)


def test_further_rejected_tickets_after_many_change_nothing() -> None:
    failing = next_state(state(), [REFUSED] * 5, NOW)
    assert not throttle.update(failing, [REFUSED] * 3, NOW).is_changed


# ---------------------------------------------------------------- what a tick changes, and what it logs

OPENED: Final = "circuit breaker opened, target gets single attempts"
CLOSED: Final = "circuit breaker closed, target responds"
PAUSED: Final = "target paused, its receiver asked for it"
DISABLED: Final = "target disabled, nothing more is sent to it"
OPEN: Final = state(failures_in_row=5, held_until=in_s(-1), held_reason=BREAKER_OPEN, failing_since=in_s(-60))
HELD: Final = state(held_until=in_s(30), held_reason=RATE_LIMITED)
FAILED_FOR_DAYS: Final = state(failing_since=NOW - throttle.GIVE_UP_AFTER)

# Columns: the state before; effects of one tick; logged events with text, reason and level.
EVENTS: Final = [
    (FRESH, [HEALTHY], []),
    (FRESH, [UNHEALTHY] * 4, []),
    (FRESH, [UNHEALTHY] * 5, [(OPENED, None, logging.WARNING)]),
    (OPEN, [UNHEALTHY], []),  # a probe
    (OPEN, [HEALTHY], [(CLOSED, None, logging.INFO)]),
    (FRESH, [limited(30)], [(PAUSED, RATE_LIMITED, logging.INFO)]),
    (FRESH, [unavailable(30)], [(PAUSED, RECEIVER_UNAVAILABLE, logging.INFO)]),
    (HELD, [limited(20)], []),  # not longer than the hold before
    (HELD, [limited(31)], [(PAUSED, RATE_LIMITED, logging.INFO)]),
    (HELD, [unavailable(31)], [(PAUSED, RECEIVER_UNAVAILABLE, logging.INFO)]),
    (HELD, [BUSY], []),
    (FRESH, [limited(0)], []),  # the hold ends at once
    (OPEN, [limited(30)], [(PAUSED, RATE_LIMITED, logging.INFO)]),
    (FRESH, [UNHEALTHY, *[GONE] * 4], [(OPENED, None, logging.WARNING), (DISABLED, "receiver_gone", logging.WARNING)]),
    (HELD, [HEALTHY], []),
    (FRESH, [GONE], [(DISABLED, "receiver_gone", logging.WARNING)]),
    (FAILED_FOR_DAYS, [UNHEALTHY], [(DISABLED, throttle.GIVEN_UP, logging.WARNING)]),
]


@pytest.mark.parametrize(("before", "effects", "logged"), EVENTS)
def test_holds_breaker_changes_and_targets_turned_off_are_logged(
    before: ThrottleState, effects: list[TargetEffect], logged: list[tuple[str, str | None, int]]
) -> None:
    tick = update(before, effects, NOW)
    assert [(event.text, event.reason, event.level) for event in tick.events] == logged
    assert {event.target_id for event in tick.events} <= {before.target_id}


# Columns: the state before; effects of one tick; status and reason that turn the target off.
TURNED_OFF: Final = [
    (FRESH, [HEALTHY], (None, None)),
    (FRESH, [UNHEALTHY], (None, None)),
    (FRESH, [GONE], (TargetStatus.DISABLED, "receiver_gone")),
    (FRESH, [GONE, UNHEALTHY], (TargetStatus.DISABLED, "receiver_gone")),
    (FRESH, [GONE, BLOCKED, HEALTHY], (TargetStatus.BLOCKED, "address_private")),  # the last effect applies
    (replace(OPEN, held_until=in_s(1)), [GONE], (TargetStatus.DISABLED, "receiver_gone")),  # a late response
    (state(status=TargetStatus.DISABLED), [GONE], (None, None)),
    (state(status=TargetStatus.BLOCKED), [GONE], (None, None)),
    (FAILED_FOR_DAYS, [UNHEALTHY], (TargetStatus.DISABLED, throttle.GIVEN_UP)),
    (FAILED_FOR_DAYS, [GONE], (TargetStatus.DISABLED, "receiver_gone")),
    (FAILED_FOR_DAYS, [HEALTHY], (None, None)),
    (FAILED_FOR_DAYS, [], (None, None)),
    # A ping of a paused target.
    (replace(FAILED_FOR_DAYS, status=TargetStatus.PAUSED), [UNHEALTHY], (None, None)),
]


@pytest.mark.parametrize(("before", "effects", "off"), TURNED_OFF)
def test_a_target_is_turned_off_once_with_the_last_reason(
    before: ThrottleState, effects: list[TargetEffect], off: tuple[TargetStatus | None, str | None]
) -> None:
    tick = update(before, effects, NOW)
    assert (tick.deactivated, tick.reason) == off
    assert tick.state.status is (off[0] or before.status)
    assert tick.is_changed or off[0] is None


@pytest.mark.parametrize(("validation", "passes"), [("failed", True), ("passed", False), (None, False)])
def test_a_success_passes_only_a_failed_validation(validation: str | None, passes: bool) -> None:
    assert update(state(validation_status=validation), [HEALTHY], NOW).passes_validation is passes
    assert not update(state(validation_status=validation), [UNHEALTHY], NOW).passes_validation
