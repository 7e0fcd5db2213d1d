"""What an outcome means: one table from what a receiver did to what follows for the export and its target.

Pure: time and chance are arguments. A receiver's own codes are read from `{"code": …}` or `{"error": {"code": …}}`; only
those of the contract are kept, any other text of the answer is the receiver's business.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from schemas.exports.delivery import DELIVERED, Outcome, TargetEffect, TargetHealth, Verdict
from schemas.exports.response_excerpt import MAX_KEPT, REDACTED, has_forbidden
from schemas.exports.state_machine import Move
from schemas.targets.target import RATE_LIMITED, RECEIVER_UNAVAILABLE, TargetStatus

#: Statuses by which a receiver says "later"; every other 5xx but those of PERMANENT says so too.
RETRYABLE: Final = frozenset({408, 425, 429})
#: "I cannot do this" and "I do not speak this version" will not change by waiting.
PERMANENT: Final = frozenset({501, 505})
#: Statuses whose Retry-After is an order.
RETRY_AFTER: Final = frozenset({429, 503})

WEBHOOK_RATE_LIMITED: Final = "WEBHOOK_RATE_LIMITED"
SIGNATURE_INVALID: Final = "WEBHOOK_SIGNATURE_INVALID"
VALIDATION_FAILED: Final = "WEBHOOK_VALIDATION_FAILED"
RECEIVER_CODES: Final = frozenset({WEBHOOK_RATE_LIMITED, SIGNATURE_INVALID, VALIDATION_FAILED})

#: Spreads receivers' load after an outage of theirs.
JITTER: Final = 0.15
#: A receiver named a time: come later by a little, so that not everything comes at once, never earlier.
MAX_LATENESS_S: Final = 10.0
#: A receiver that asks for more than a day is asked again after a day.
MAX_RETRY_AFTER_S: Final = 24 * 3600
#: How long a 429 pauses its target that does not say for how long.
UNSAID_RETRY_AFTER_S: Final = 30
#: No answer in time is a sign of overload, as 429 and 503 are.
TIMEOUTS: Final = frozenset({"deadline_exceeded", "connect_timeout"})
#: What a tracker needs for an id or a link; longer ones are not kept.
MAX_PROVIDER_TEXT: Final = 500

_CONNECTED: Final = TargetEffect(connected="connected", health=TargetHealth.HEALTHY)
_FAILING: Final = TargetEffect(connected="failing", health=TargetHealth.UNHEALTHY)
_GONE: Final = TargetEffect("failing", TargetStatus.DISABLED, "receiver_gone", TargetHealth.UNHEALTHY)
#: What an answer comes to that says nothing; made anew for each, it would cost as much as all the rest of its judgement.
_DELIVERED: Final = Verdict(Move.DELIVER, DELIVERED, effect=_CONNECTED)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often and how long an export is tried: n delays are n retries, n + 1 attempts."""

    delays_s: Sequence[float]
    max_age: timedelta


def decide_outcome(
    outcome: Outcome, try_number: int, began_at: datetime, now: datetime, jitter: float, plan: Schedule
) -> Verdict:
    """Return what follows from `outcome` of try `try_number` (1 is the first) of a schedule that began at `began_at`.

    `jitter` is between -1 and 1.
    """
    if outcome.refused:
        reason = outcome.error or "address_refused"
        effect = TargetEffect("failing", TargetStatus.BLOCKED, reason, TargetHealth.UNHEALTHY)
        return Verdict(Move.BLOCK, "refused", reason, reason, effect=effect)
    if outcome.status is None:
        error = outcome.error or "no_answer"
        effect = replace(_FAILING, is_overloaded=error in TIMEOUTS)
        return _again(outcome, error, effect, try_number, began_at, now, jitter, plan)
    answer = _json_object(outcome.body)
    if 200 <= outcome.status < 300:
        return _delivered(answer, is_clean=_is_clean(outcome))
    code = _receiver_code(answer)
    if _is_retryable(outcome.status, code):
        error = code or ("receiver_rate_limited" if outcome.status == 429 else "receiver_unavailable")
        return _again(outcome, error, _not_now(outcome, error, now), try_number, began_at, now, jitter, plan)
    return _refused_for_good(outcome.status, code)


def _delivered(answer: dict[str, Any], *, is_clean: bool) -> Verdict:
    if not answer:
        return _DELIVERED
    ticket_id, url = _first(answer, "ticket_id", "id"), _first(answer, "ticket_url", "url")
    if not is_clean:
        # Clients are shown both: what must not be stored is no id and no link.
        ticket_id, url = (None if each is None or has_forbidden(each) else each for each in (ticket_id, url))
    if url is not None and not url.startswith(("https://", "http://")):
        url = None
    return Verdict(Move.DELIVER, DELIVERED, effect=_CONNECTED, provider_ticket_id=ticket_id, provider_ticket_url=url)


def _not_now(outcome: Outcome, error: str, now: datetime) -> TargetEffect:
    """Return what a "later" says about the target: a 429 pauses it, and so does a 503 that says for how long."""
    is_rate_limited = outcome.status == 429 or error == WEBHOOK_RATE_LIMITED
    effect = TargetEffect(health=TargetHealth.UNHEALTHY, is_overloaded=outcome.status in RETRY_AFTER or is_rate_limited)
    said_s = _said_s(outcome, error, now)
    if said_s is None and is_rate_limited:
        said_s = UNSAID_RETRY_AFTER_S
    if said_s is None or said_s <= 0:
        return effect
    return replace(effect, hold_s=said_s, hold_reason=RATE_LIMITED if is_rate_limited else RECEIVER_UNAVAILABLE)


def _is_retryable(status: int, code: str | None) -> bool:
    return code == WEBHOOK_RATE_LIMITED or status in RETRYABLE or (500 <= status < 600 and status not in PERMANENT)


def _refused_for_good(status: int, code: str | None) -> Verdict:
    failed = Verdict(Move.FAIL, "rejected")
    if 300 <= status < 400:
        return failed._replace(reason="redirect_refused", error_code="redirect_refused", effect=_FAILING)
    if status in {401, 403}:
        reason = SIGNATURE_INVALID if code == SIGNATURE_INVALID else "receiver_unauthorized"
        return failed._replace(reason=reason, error_code=reason, effect=_FAILING)
    if status == 410:
        return failed._replace(reason="receiver_gone", error_code="receiver_gone", effect=_GONE)
    reason = VALIDATION_FAILED if code == VALIDATION_FAILED else "receiver_rejected"
    return failed._replace(reason=reason, error_code=code or reason)


def _again(
    outcome: Outcome,
    error: str,
    effect: TargetEffect,
    try_number: int,
    began_at: datetime,
    now: datetime,
    jitter: float,
    plan: Schedule,
) -> Verdict:
    """Schedule the next attempt, or give up where the schedule or the age is spent."""
    asked_s = _retry_after_s(outcome, error, now)
    given_up = Verdict(
        Move.FAIL,
        "exhausted",
        "attempts_exhausted",
        error,
        retry_after_s=asked_s,
        effect=replace(effect, connected="failing", health=TargetHealth.UNHEALTHY),
    )
    if try_number > len(plan.delays_s):
        return given_up
    delay_s = max(_delay_s(plan.delays_s[try_number - 1], asked_s, jitter), effect.hold_s or 0)
    next_at = now + timedelta(seconds=delay_s)
    if next_at - began_at > plan.max_age:
        return given_up
    return Verdict(
        Move.RESCHEDULE, "retryable", error_code=error, next_attempt_at=next_at, retry_after_s=asked_s, effect=effect
    )


def _delay_s(scheduled_s: float, asked_s: int | None, jitter: float) -> float:
    if asked_s is None:
        return scheduled_s * (1 + JITTER * jitter)
    return asked_s + min(asked_s * JITTER, MAX_LATENESS_S) * abs(jitter)


def _retry_after_s(outcome: Outcome, error: str, now: datetime) -> int | None:
    """Return the seconds that a 429 or 503 asks for; None where it asks for nothing, or for now."""
    said_s = _said_s(outcome, error, now)
    return said_s if said_s is not None and said_s > 0 else None


def _said_s(outcome: Outcome, error: str, now: datetime) -> int | None:
    """Return the seconds until the moment that a 429 or 503 names, a day at most; None for anything that names none.

    Whole seconds or an HTTP date; one that is past is 0 or less. A body that says WEBHOOK_RATE_LIMITED is a 429 under
    another number.
    """
    text = (outcome.retry_after or "").strip()
    if not text or (outcome.status not in RETRY_AFTER and error != WEBHOOK_RATE_LIMITED):
        return None
    seconds = _number(text) if text.isascii() and text.isdecimal() else _until(text, now)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _number(digits: str) -> int:
    """Read digits; those of a number that is over the cap anyway may be more than int() takes."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= len(str(MAX_RETRY_AFTER_S)) else MAX_RETRY_AFTER_S


def _until(text: str, now: datetime) -> int | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Rounded up: never earlier than asked.
    return -int((now - moment).total_seconds() // 1)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body) if body.lstrip()[:1] == b"{" else {}
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _receiver_code(answer: dict[str, Any]) -> str | None:
    error = answer.get("error")
    told = [answer.get("code"), error.get("code") if isinstance(error, dict) else None]
    return next((code for code in told if isinstance(code, str) and code in RECEIVER_CODES), None)


def _is_clean(outcome: Outcome) -> bool:
    """Tell whether all of an answer was looked at already, and nothing found in it that must not be stored."""
    return outcome.kept is not None and REDACTED not in outcome.kept and len(outcome.body) <= MAX_KEPT


def _first(answer: dict[str, Any], *names: str) -> str | None:
    for name in names:
        value = answer.get(name)
        if type(value) is int:
            value = str(value)
        if isinstance(value, str) and 0 < len(value) <= MAX_PROVIDER_TEXT and value.isprintable():
            return value
    return None
