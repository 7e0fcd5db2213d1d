"""Decides the consequences of an outcome for the export and its target.

Pure: time and jitter are arguments. A receiver's codes are read from `{"code": …}` or `{"error": {"code": …}}`; only those
of the contract are kept, any other text of the response is ignored.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from schemas.base.retry_after import parse_retry_after
from schemas.exports.delivery import DELIVERED, Outcome, TargetEffect, TargetHealth, Verdict
from schemas.exports.response_excerpt import has_forbidden
from schemas.exports.state_machine import Transition
from schemas.targets.target import RATE_LIMITED, RECEIVER_UNAVAILABLE, TargetStatus

#: Statuses that are retried, as is every 5xx except those of PERMANENT.
RETRYABLE: Final = frozenset({408, 425, 429})
#: "Not implemented" and "HTTP version not supported": a retry would get the same response.
PERMANENT: Final = frozenset({501, 505})
#: Statuses whose Retry-After is obeyed.
RETRY_AFTER: Final = frozenset({429, 503})

WEBHOOK_RATE_LIMITED: Final = "WEBHOOK_RATE_LIMITED"
SIGNATURE_INVALID: Final = "WEBHOOK_SIGNATURE_INVALID"
VALIDATION_FAILED: Final = "WEBHOOK_VALIDATION_FAILED"
RECEIVER_CODES: Final = frozenset({WEBHOOK_RATE_LIMITED, SIGNATURE_INVALID, VALIDATION_FAILED})

#: The fraction of its delay by which a retry may come earlier or later, to spread the load of a receiver after an outage.
JITTER: Final = 0.15
#: How much later than the receiver's Retry-After a retry may come, so that retries do not come all at once. It never comes
#: earlier.
MAX_LATENESS_S: Final = 10.0
#: A Retry-After of more than a day counts as a day.
MAX_RETRY_AFTER_S: Final = 24 * 3600
#: How long a 429 without Retry-After pauses its target.
DEFAULT_RETRY_AFTER_S: Final = 30
#: A timeout is a sign of overload, as 429 and 503 are.
TIMEOUTS: Final = frozenset({"deadline_exceeded", "connect_timeout"})
#: Enough for a tracker's id or link; longer ones are not kept.
MAX_PROVIDER_TEXT: Final = 500

CONNECTED: Final = TargetEffect(connected="connected", health=TargetHealth.HEALTHY)
_NO_EFFECT: Final = TargetEffect()
_FAILING: Final = TargetEffect(connected="failing", health=TargetHealth.UNHEALTHY)
_GONE: Final = TargetEffect("failing", TargetStatus.DISABLED, "receiver_gone", TargetHealth.UNHEALTHY)
#: The verdict on a response without a ticket. To create it for each response would cost as much as the rest of the decision.
_DELIVERED: Final = Verdict(Transition.DELIVER, DELIVERED, effect=CONNECTED)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often and how long an export is tried: n delays in seconds are n retries, n + 1 attempts."""

    delays_s: Sequence[float]
    max_age: timedelta

    def is_exceeded(self, try_number: int) -> bool:
        """Return whether every try has begun and none has ended, which means that the export crashes its worker."""
        return try_number > len(self.delays_s) + 1


#: With one retry left, the verdict describes the attempt alone, not the end of a schedule.
ONE_RETRY_LEFT: Final = Schedule((0.0,), timedelta.max)


class Try(NamedTuple):
    """One try of a schedule that began at `began_at`: 1 is the first. It ended at `now`; `jitter` is between -1 and 1."""

    number: int
    schedule: Schedule
    began_at: datetime
    now: datetime
    jitter: float


def decide_outcome(outcome: Outcome, ended: Try) -> Verdict:
    """Return the verdict on the outcome of a try that has ended."""
    if outcome.refused:
        reason = outcome.error or "address_refused"
        effect = TargetEffect("failing", TargetStatus.BLOCKED, reason, TargetHealth.UNHEALTHY)
        return Verdict(Transition.BLOCK, "refused", reason, reason, effect=effect)
    if outcome.status is None:
        error = outcome.error or "no_answer"
        effect = replace(_FAILING, is_overloaded=error in TIMEOUTS)
        return retry(error, None, effect, ended)
    response = _json_object(outcome.body)
    if 200 <= outcome.status < 300:
        return _delivered(response, outcome)
    code = _receiver_code(response)
    if code == SIGNATURE_INVALID and 400 <= outcome.status < 500:
        # With any 4xx, this code means that the secret or the clock is wrong. A retry would change neither.
        return rejected(code, _FAILING)
    if _is_retryable(outcome.status, code):
        error = code or ("receiver_rate_limited" if outcome.status == 429 else "receiver_unavailable")
        return _retry_after_response(outcome, error, ended)
    return _failed(outcome.status, code)


def retry(error: str, retry_after_s: int | None, effect: TargetEffect, ended: Try) -> Verdict:
    """Schedule the next attempt, or give up if the schedule is used up or the export is too old.

    `retry_after_s` are the seconds that the receiver asks to wait.
    """
    failing = replace(effect, connected="failing", health=TargetHealth.UNHEALTHY)
    given_up = Verdict(
        Transition.FAIL, "exhausted", "attempts_exhausted", error, retry_after_s=retry_after_s, effect=failing
    )
    schedule = ended.schedule
    if ended.number > len(schedule.delays_s):
        return given_up
    delay_s = max(_delay_s(schedule.delays_s[ended.number - 1], retry_after_s, ended.jitter), effect.hold_s or 0)
    next_at = ended.now + timedelta(seconds=delay_s)
    if next_at - ended.began_at > schedule.max_age:
        return given_up
    return Verdict(Transition.RESCHEDULE, "retryable", None, error, next_at, retry_after_s, effect=effect)


def rejected(reason: str, effect: TargetEffect = _NO_EFFECT) -> Verdict:
    """Return the verdict on a response that no retry would change."""
    return Verdict(Transition.FAIL, "rejected", reason, reason, effect=effect)


def delivered_as(ticket_id: str | None, url: str | None) -> Verdict:
    """Return the verdict on a delivery whose response named the ticket; `url` is kept if browsers may open it."""
    if url is not None and not url.startswith(("https://", "http://")):
        url = None
    return Verdict(Transition.DELIVER, DELIVERED, effect=CONNECTED, provider_ticket_id=ticket_id, provider_ticket_url=url)


def retryable_effect(status: int | None, wait_s: int | None, default_s: int, *, is_rate_limited: bool) -> TargetEffect:
    """Return the effect of a response that asks for a retry; `wait_s`, if it is positive, pauses the target.

    A rate limit that names no time pauses it for `default_s` seconds.
    """
    hold_s = default_s if wait_s is None and is_rate_limited else wait_s
    effect = TargetEffect(health=TargetHealth.UNHEALTHY, is_overloaded=is_rate_limited or status in RETRY_AFTER)
    if hold_s is None or hold_s <= 0:
        return effect
    return replace(effect, hold_s=hold_s, hold_reason=RATE_LIMITED if is_rate_limited else RECEIVER_UNAVAILABLE)


def _delivered(response: dict[str, Any], outcome: Outcome) -> Verdict:
    if not response:
        return _DELIVERED
    ticket_id, url = _first_text(response, "ticket_id", "id"), _first_text(response, "ticket_url", "url")
    if outcome.kept is None or outcome.kept.encode() != outcome.body.strip():
        # Part of the response was removed. Clients see the id and the link, so neither may contain text that must not be
        # stored.
        ticket_id, url = (None if each is None or has_forbidden(each) else each for each in (ticket_id, url))
    return delivered_as(ticket_id, url)


def _retry_after_response(outcome: Outcome, error: str, ended: Try) -> Verdict:
    """Retry; a 429 pauses the target, and so does a 503 with Retry-After."""
    named_s = _named_retry_after_s(outcome, error, ended.now)
    is_rate_limited = outcome.status == 429 or error == WEBHOOK_RATE_LIMITED
    effect = retryable_effect(outcome.status, named_s, DEFAULT_RETRY_AFTER_S, is_rate_limited=is_rate_limited)
    return retry(error, named_s if named_s is not None and named_s > 0 else None, effect, ended)


def _is_retryable(status: int, code: str | None) -> bool:
    return code == WEBHOOK_RATE_LIMITED or status in RETRYABLE or (500 <= status < 600 and status not in PERMANENT)


def _failed(status: int, code: str | None) -> Verdict:
    if 300 <= status < 400:
        return rejected("redirect_refused", _FAILING)
    if status in {401, 403}:
        return rejected("receiver_unauthorized", _FAILING)
    if status == 410:
        return rejected("receiver_gone", _GONE)
    return rejected(VALIDATION_FAILED if code == VALIDATION_FAILED else "receiver_rejected")


def _delay_s(scheduled_s: float, retry_after_s: int | None, jitter: float) -> float:
    if retry_after_s is None:
        return scheduled_s * (1 + JITTER * jitter)
    return min(retry_after_s + min(retry_after_s * JITTER, MAX_LATENESS_S) * abs(jitter), MAX_RETRY_AFTER_S)


def _named_retry_after_s(outcome: Outcome, error: str, now: datetime) -> int | None:
    """Return the seconds until the time that Retry-After names, a day at most; None if it is absent or not obeyed.

    A time in the past is 0 or less. A body with WEBHOOK_RATE_LIMITED counts as a 429.
    """
    if not outcome.retry_after or (outcome.status not in RETRY_AFTER and error != WEBHOOK_RATE_LIMITED):
        return None
    wait_s = parse_retry_after(outcome.retry_after).wait_s(now)
    # Rounded up, so that no retry comes earlier than the receiver asked.
    return None if wait_s is None else math.ceil(min(wait_s, MAX_RETRY_AFTER_S))


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        response = json.loads(body) if body.lstrip()[:1] == b"{" else {}
    except (ValueError, RecursionError):
        return {}
    return response if isinstance(response, dict) else {}


def _receiver_code(response: dict[str, Any]) -> str | None:
    error = response.get("error")
    codes = [response.get("code"), error.get("code") if isinstance(error, dict) else None]
    return next((code for code in codes if isinstance(code, str) and code in RECEIVER_CODES), None)


def _first_text(response: dict[str, Any], *names: str) -> str | None:
    for name in names:
        value = response.get(name)
        if type(value) is int:
            value = str(value)
        if isinstance(value, str) and 0 < len(value) <= MAX_PROVIDER_TEXT and value.isprintable():
            return value
    return None
