"""Decides the consequences of a tracker's response for the export and its target.

Pure: time and jitter are arguments. The table is the same for all trackers; their modules name the kind of each refusal
(`schemas.trackers.failures`).
"""

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from schemas.exports.delivery import DELIVERED, TargetEffect, TargetHealth, Verdict
from schemas.exports.response_excerpt import has_forbidden
from schemas.exports.state_machine import Transition
from schemas.targets.target import RATE_LIMITED, TargetStatus
from schemas.trackers.events import TrackerEventAction
from schemas.trackers.exchange import FailureKind, TrackerFailure, TrackerIssue
from schemas.trackers.failures import UNKNOWN_OUTCOME
from worker.delivery.outcomes import (
    CONNECTED,
    MAX_PROVIDER_TEXT,
    MAX_RETRY_AFTER_S,
    ONE_RETRY_LEFT,
    Try,
    decide_outcome,
    delivered_as,
    rejected,
    retry,
    retryable_effect,
)
from worker.trackers.session import TrackerResult

#: How long a rate limit that names no time holds the target: GitHub asks for a minute at least. The export waits longer
#: after each try, by its schedule.
DEFAULT_HOLD_S: Final = 60


def decide_tracker_outcome(result: TrackerResult, ended: Try) -> Verdict:
    """Return the verdict on a try, which has ended, to deliver an export or an event.

    After an unknown outcome the next attempt begins once the issue or the comment can be found.
    """
    verdict = _decide(result, ended)
    verdict = verdict._replace(effect=_held(verdict.effect, result.held_until_s, ended.now))
    if not result.is_outcome_unknown:
        return verdict
    next_at = verdict.next_attempt_at
    if next_at is not None:
        next_at = max(next_at, ended.now + timedelta(seconds=result.lookup_delay_s))
    return verdict._replace(is_outcome_unknown=True, next_attempt_at=next_at)


def decide_validation(result: TrackerResult, now: datetime) -> Verdict:
    """Return the verdict on a validation, which never blocks its target; DELIVERED means that it passed."""
    if result.value is None and result.outcome.error is None:
        return Verdict(Transition.DELIVER, DELIVERED, effect=_held(CONNECTED, result.held_until_s, now))
    verdict = decide_tracker_outcome(result, Try(1, ONE_RETRY_LEFT, now, now, 0.0))
    if isinstance(result.value, TrackerFailure) and result.value.kind is FailureKind.CONFIGURATION:
        return verdict._replace(effect=replace(verdict.effect, status=None, reason=None))
    return verdict


def _decide(result: TrackerResult, ended: Try) -> Verdict:
    """Return the verdict on the result of a try at a tracker, which ended with an issue, an event's action, or a failure."""
    value = result.value
    if isinstance(value, TrackerIssue):
        return delivered_as(_storable(value.id), _storable(value.url))
    if isinstance(value, TrackerEventAction):
        # Without a request nothing is known about the target.
        effect = TargetEffect() if value is TrackerEventAction.SKIPPED else CONNECTED
        return Verdict(Transition.DELIVER, DELIVERED, effect=effect)
    if value is None and result.outcome.error is not None:
        return decide_outcome(result.outcome, ended)
    if value is not None and value.kind is FailureKind.CONFIGURATION:
        effect = TargetEffect("failing", TargetStatus.BLOCKED, value.code, TargetHealth.UNHEALTHY)
        return Verdict(Transition.BLOCK, "rejected", value.code, value.code, effect=effect)
    if value is not None and value.kind is FailureKind.PAYLOAD:
        return rejected(value.code)
    error = UNKNOWN_OUTCOME if value is None or result.is_outcome_unknown else value.code
    wait_s = None if value is None else _wait_s(value, ended.now)
    is_limit = value is not None and value.is_rate_limit
    effect = retryable_effect(result.outcome.status, wait_s, DEFAULT_HOLD_S, is_rate_limited=is_limit)
    if effect.hold_reason == RATE_LIMITED and ended.number > 1:
        # During a limit of an hour, GitHub names a minute again and again. So the named time is only the minimum wait.
        return retry(error, None, effect, ended)._replace(retry_after_s=wait_s)
    return retry(error, wait_s, effect, ended)


def _wait_s(failure: TrackerFailure, now: datetime) -> int | None:
    """Return the whole seconds that a tracker asks to wait, a day at most; None if it asks for no wait."""
    until_s = 0.0 if failure.retry_at_s is None else failure.retry_at_s - now.timestamp()
    wait_s = max(failure.retry_after_s or 0.0, until_s)
    return math.ceil(min(wait_s, MAX_RETRY_AFTER_S)) if wait_s > 0 else None


def _held(effect: TargetEffect, held_until_s: float | None, now: datetime) -> TargetEffect:
    """Return an effect that also holds the target until a time that a response named, a day at most."""
    hold_s = 0.0 if held_until_s is None else min(held_until_s - now.timestamp(), MAX_RETRY_AFTER_S)
    if effect.status is not None or hold_s <= (effect.hold_s or 0):
        return effect
    return replace(effect, hold_s=hold_s, hold_reason=RATE_LIMITED)


def _storable(text: str) -> str | None:
    """Return an issue's id or URL; None for one that must not be stored or shown."""
    is_fit = 0 < len(text) <= MAX_PROVIDER_TEXT and text.isprintable() and not has_forbidden(text)
    return text if is_fit else None
