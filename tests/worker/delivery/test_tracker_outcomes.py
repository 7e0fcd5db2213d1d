"""Verdicts about a tracker's response: the table of refusals, holds, unknown outcomes, and hostile responses."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from schemas.exports.delivery import Outcome, TargetEffect, TargetHealth, Verdict
from schemas.exports.state_machine import Transition
from schemas.targets.target import RATE_LIMITED, RECEIVER_UNAVAILABLE, TargetStatus
from schemas.trackers.events import TrackerEventAction
from schemas.trackers.exchange import FailureKind, TrackerFailure, TrackerIssue
from schemas.trackers.failures import CONFIGURATION_CODES, REJECTED, UNAVAILABLE
from worker.delivery.outcomes import MAX_RETRY_AFTER_S, Schedule, Try
from worker.delivery.tracker_outcomes import DEFAULT_HOLD_S, decide_tracker_outcome, decide_validation
from worker.trackers.session import TrackerResult

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PLAN: Final = Schedule((5, 30, 120), timedelta(hours=72))
ISSUE: Final = TrackerIssue("7", "https://gitea.example.com/acme/shop/issues/7")
LIMITED: Final = TrackerFailure(FailureKind.RETRY, "tracker_rate_limited", is_rate_limit=True)


def judged(result: TrackerResult, try_number: int = 1) -> Verdict:
    return decide_tracker_outcome(result, Try(try_number, PLAN, NOW, NOW, 0.0))


def refused(failure: TrackerFailure, status: int = 400, *, is_outcome_unknown: bool = False) -> TrackerResult:
    return TrackerResult(Outcome(status), failure, is_outcome_unknown)


def wait_s(verdict: Verdict) -> float:
    assert verdict.next_attempt_at is not None, verdict
    return (verdict.next_attempt_at - NOW).total_seconds()


def test_a_created_issue_counts_as_a_delivery() -> None:
    verdict = judged(TrackerResult(Outcome(201), ISSUE))
    assert (verdict.transition, verdict.outcome, verdict.error_code) == (Transition.DELIVER, "delivered", None)
    assert (verdict.provider_ticket_id, verdict.provider_ticket_url) == (ISSUE.id, ISSUE.url)
    assert (verdict.effect.connected, verdict.effect.health) == ("connected", TargetHealth.HEALTHY)
    assert not verdict.effect.pauses_queue
    assert not verdict.is_outcome_unknown


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "https://tracker.example.com/" + "x" * 500,
        "https://tracker.example.com/\n",
        "https://tracker.example.com/ghp_" + "a1B2" * 9,
        "",
    ],
)
def test_a_url_that_must_not_be_shown_is_omitted(url: str) -> None:
    verdict = judged(TrackerResult(Outcome(201), TrackerIssue("7", url)))
    assert (verdict.transition, verdict.provider_ticket_id) == (Transition.DELIVER, "7")
    assert verdict.provider_ticket_url is None


@pytest.mark.parametrize("action", TrackerEventAction)
def test_an_applied_event_counts_as_a_delivery(action: TrackerEventAction) -> None:
    verdict = judged(TrackerResult(Outcome(200), action))
    assert (verdict.transition, verdict.outcome, verdict.error_code) == (Transition.DELIVER, "delivered", None)
    # A skipped event sends no request, so nothing is known about the target.
    connected = None if action is TrackerEventAction.SKIPPED else "connected"
    assert (verdict.effect.connected, verdict.effect.status, verdict.provider_ticket_id) == (connected, None, None)


@pytest.mark.parametrize("code", ["issue_not_found", "issue_moved", "issue_locked", "tracker_forbidden"])
def test_an_event_refused_by_its_issue_fails_without_an_effect_on_the_target(code: str) -> None:
    verdict = judged(refused(TrackerFailure(FailureKind.PAYLOAD, code), 404))
    assert (verdict.transition, verdict.reason, verdict.error_code) == (Transition.FAIL, code, code)
    assert verdict.effect == TargetEffect()


@pytest.mark.parametrize("code", sorted(CONFIGURATION_CODES))
def test_a_wrong_configuration_blocks_the_export_and_the_target(code: str) -> None:
    verdict = judged(refused(TrackerFailure(FailureKind.CONFIGURATION, code)))
    assert (verdict.transition, verdict.outcome) == (Transition.BLOCK, "rejected")
    assert (verdict.reason, verdict.error_code) == (code, code)
    assert (verdict.effect.status, verdict.effect.reason) == (TargetStatus.BLOCKED, code)
    assert verdict.effect.connected == "failing"


def test_a_refused_ticket_fails_without_an_effect_on_the_target() -> None:
    verdict = judged(refused(TrackerFailure(FailureKind.PAYLOAD, REJECTED)))
    assert (verdict.transition, verdict.reason, verdict.error_code) == (Transition.FAIL, REJECTED, REJECTED)
    assert verdict.outcome == "rejected"
    assert (verdict.effect.status, verdict.effect.health) == (None, TargetHealth.UNKNOWN)


#: A time that is past by our clock is no time to wait for.
PAST: Final = TrackerFailure(FailureKind.RETRY, "x", retry_at_s=NOW.timestamp() - 9, is_rate_limit=True)

# Columns: failure; seconds and reason of the hold; seconds until the next attempt.
WAITS: Final = [
    (TrackerFailure(FailureKind.RETRY, "x", 90, is_rate_limit=True), 90, RATE_LIMITED, 90),
    (TrackerFailure(FailureKind.RETRY, "x", 0.5, is_rate_limit=True), 1, RATE_LIMITED, 1),
    (TrackerFailure(FailureKind.RETRY, "x", retry_at_s=NOW.timestamp() + 90, is_rate_limit=True), 90, RATE_LIMITED, 90),
    (TrackerFailure(FailureKind.RETRY, "x", 1e15, is_rate_limit=True), MAX_RETRY_AFTER_S, RATE_LIMITED, MAX_RETRY_AFTER_S),
    (
        TrackerFailure(FailureKind.RETRY, "x", math.inf, is_rate_limit=True),
        MAX_RETRY_AFTER_S,
        RATE_LIMITED,
        MAX_RETRY_AFTER_S,
    ),
    # Several headers: the later time applies.
    (TrackerFailure(FailureKind.RETRY, UNAVAILABLE, 7, NOW.timestamp() + 90), 90, RECEIVER_UNAVAILABLE, 90),
    (TrackerFailure(FailureKind.RETRY, UNAVAILABLE, 120, NOW.timestamp() + 90), 120, RECEIVER_UNAVAILABLE, 120),
    (TrackerFailure(FailureKind.RETRY, UNAVAILABLE, 90), 90, RECEIVER_UNAVAILABLE, 90),
    (TrackerFailure(FailureKind.RETRY, UNAVAILABLE), None, None, 5),
    (TrackerFailure(FailureKind.RETRY, UNAVAILABLE, retry_at_s=NOW.timestamp() - 9), None, None, 5),
]


@pytest.mark.parametrize(("failure", "hold_s", "reason", "next_s"), WAITS)
def test_a_retry_waits_as_long_as_the_tracker_requests(
    failure: TrackerFailure, hold_s: int | None, reason: str | None, next_s: float
) -> None:
    verdict = judged(refused(failure, 503))
    assert (verdict.transition, verdict.outcome, verdict.error_code) == (Transition.RESCHEDULE, "retryable", failure.code)
    assert (verdict.effect.hold_s, verdict.effect.hold_reason) == (hold_s, reason)
    assert verdict.retry_after_s == hold_s
    assert (verdict.effect.health, verdict.effect.status) == (TargetHealth.UNHEALTHY, None)
    assert wait_s(verdict) == next_s
    assert verdict.effect.is_overloaded


@pytest.mark.parametrize("limited", [LIMITED, PAST, replace(LIMITED, retry_after_s=0.0)], ids=["no time", "past", "now"])
def test_a_rate_limit_without_a_future_time_waits_a_minute_and_grows_with_the_schedule(limited: TrackerFailure) -> None:
    verdicts = [judged(refused(limited, 429), try_number) for try_number in (1, 2, 3)]
    assert [wait_s(verdict) for verdict in verdicts] == [60, 60, 120]
    assert {(each.effect.hold_s, each.effect.hold_reason) for each in verdicts} == {(DEFAULT_HOLD_S, RATE_LIMITED)}
    # The tracker named no time, so the attempt records none.
    assert {each.retry_after_s for each in verdicts} == {None}


@pytest.mark.parametrize(("named_s", "waits"), [(60, [60, 60, 120]), (10, [10, 30, 120])])
def test_a_rate_limit_that_names_the_same_time_again_grows_with_the_schedule(named_s: int, waits: list[float]) -> None:
    limited = replace(LIMITED, retry_after_s=float(named_s))
    verdicts = [judged(refused(limited, 429), try_number) for try_number in (1, 2, 3)]
    assert [wait_s(verdict) for verdict in verdicts] == waits
    assert {(each.effect.hold_s, each.retry_after_s) for each in verdicts} == {(named_s, named_s)}


def test_the_last_attempt_of_the_schedule_ends_the_export() -> None:
    verdict = judged(refused(LIMITED), try_number=4)
    assert (verdict.transition, verdict.outcome, verdict.reason) == (Transition.FAIL, "exhausted", "attempts_exhausted")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (TrackerResult(Outcome(201), None, is_outcome_unknown=True, lookup_delay_s=40), "tracker_outcome_unknown"),
        (
            TrackerResult(
                Outcome(502), TrackerFailure(FailureKind.RETRY, UNAVAILABLE), is_outcome_unknown=True, lookup_delay_s=40
            ),
            "tracker_outcome_unknown",
        ),
        (TrackerResult(Outcome(error="deadline_exceeded"), is_outcome_unknown=True, lookup_delay_s=40), "deadline_exceeded"),
    ],
)
def test_after_an_unknown_outcome_the_next_attempt_waits_until_the_issue_can_be_found(
    result: TrackerResult, code: str
) -> None:
    verdict = judged(result)
    assert (verdict.transition, verdict.error_code, verdict.is_outcome_unknown) == (Transition.RESCHEDULE, code, True)
    assert wait_s(verdict) == 40
    assert wait_s(judged(result, try_number=3)) == 120
    exhausted = judged(result, try_number=4)
    assert (exhausted.transition, exhausted.reason, exhausted.is_outcome_unknown) == (
        Transition.FAIL,
        "attempts_exhausted",
        True,
    )


def test_a_refused_address_blocks_a_tracker_and_its_export() -> None:
    verdict = judged(TrackerResult(Outcome(error="address_private", refused=True), is_outcome_unknown=True))
    assert (verdict.transition, verdict.reason, verdict.is_outcome_unknown) == (Transition.BLOCK, "address_private", True)
    assert verdict.effect.status is TargetStatus.BLOCKED


@pytest.mark.parametrize(("until_s", "hold_s"), [(90.0, 90.0), (-1.0, None), (1e12, float(MAX_RETRY_AFTER_S)), (None, None)])
def test_a_success_that_used_up_the_limit_holds_the_target(until_s: float | None, hold_s: float | None) -> None:
    until = None if until_s is None else NOW.timestamp() + until_s
    for verdict in (
        judged(TrackerResult(Outcome(201), ISSUE, held_until_s=until)),
        decide_validation(TrackerResult(Outcome(200), held_until_s=until), NOW),
    ):
        assert (verdict.transition, verdict.effect.health) == (Transition.DELIVER, TargetHealth.HEALTHY)
        assert verdict.effect.hold_s == hold_s
        assert verdict.effect.hold_reason == (None if hold_s is None else RATE_LIMITED)


def test_the_longer_of_two_holds_applies_and_a_blocked_target_has_none() -> None:
    until = NOW.timestamp() + 90
    assert judged(TrackerResult(Outcome(429), LIMITED, held_until_s=until)).effect.hold_s == 90
    longer = TrackerFailure(FailureKind.RETRY, "x", 300, is_rate_limit=True)
    assert judged(TrackerResult(Outcome(429), longer, held_until_s=until)).effect.hold_s == 300
    blocked = TrackerFailure(FailureKind.CONFIGURATION, "tracker_forbidden")
    assert judged(TrackerResult(Outcome(403), blocked, held_until_s=until)).effect.hold_s is None


@pytest.mark.parametrize(
    ("result", "code", "connected"),
    [
        (refused(TrackerFailure(FailureKind.CONFIGURATION, "tracker_forbidden")), "tracker_forbidden", "failing"),
        (refused(LIMITED), "tracker_rate_limited", None),
        (TrackerResult(Outcome(error="connect_refused")), "connect_refused", "failing"),
    ],
)
def test_a_failed_validation_names_the_reason_and_blocks_nothing(
    result: TrackerResult, code: str, connected: str | None
) -> None:
    verdict = decide_validation(result, NOW)
    assert (verdict.error_code, verdict.effect.status, verdict.effect.connected) == (code, None, connected)
    assert verdict.outcome != "delivered"
