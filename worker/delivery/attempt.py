"""One delivery attempt: check that the claim is still valid, sign, send, decide the outcome. For a tracker: create an issue.

It runs on a thread of the sender pool; the dispatcher writes the result. Between the claim and the attempt the export may
have been redacted, its target turned off, its secret rotated, or the lease lost. So a claim that has waited is checked again
in the database, and starts no attempt if it is no longer valid.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from runtime import logs, tracing
from schemas.exports.delivery import Claim, CompletedAttempt, Outcome
from schemas.targets.delivery_options import DEFAULT_OPTIONS
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.db import identifiers
from storage.db.engine import OUTAGES, connection
from storage.exports import claims_sql
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from worker import outages
from worker.delivery.outcomes import Schedule, Try, decide_outcome
from worker.delivery.tracker_outcomes import decide_tracker_outcome
from worker.http.signed_request import Post, SignedPost, message_to, new_nonce
from worker.trackers.runner import TrackerRunner
from worker.trackers.session import TrackerResult

#: A claim that is no older than this, a few ticks, is sent without a second check, which costs a third of a delivery. So an
#: attempt starts at most this long after its row was read.
FRESH: Final = timedelta(milliseconds=200)
_WORKER_LOST: Final = Outcome(error="worker_lost")


def recheck(claim: Claim, now: datetime) -> Claim | None:
    """Return the claim as it is now, or None if no attempt may start, which includes a database outage."""
    try:
        with connection():
            return claims_sql.recheck(claim, now)
    except OUTAGES as outage:
        outages.DATABASE.record_failure(outage)
        return None


def random_jitter() -> float:
    """Return a number between -1 and 1 that spreads retries."""
    return random.uniform(-1, 1)  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """How attempts are made; `default_secret` signs for targets that have none of their own."""

    default_secret: DefaultSecret
    schedule: Schedule
    now: Callable[[], datetime]
    jitter: Callable[[], float] = random_jitter
    recheck: Callable[[Claim, datetime], Claim | None] = recheck


class AttemptRunner:
    """Makes attempts for claims; those for trackers are made by `trackers`."""

    def __init__(self, post: Post, vault: Vault, options: AttemptOptions, trackers: TrackerRunner) -> None:
        self._signed_post = SignedPost(post, vault, options.default_secret)
        self._options = options
        self._trackers = trackers

    def run(self, claim: Claim) -> CompletedAttempt | None:
        """Make one attempt and decide its consequences; None if it must not start: nothing was sent."""
        started_at = self._options.now()
        # abs(): after the clock was set back, an old claim seems to be from the future.
        is_fresh = abs(started_at - claim.claimed_at) <= FRESH
        current = claim if is_fresh else self._options.recheck(claim, started_at)
        if current is None:
            return None
        attempt_id = identifiers.new_id(identifiers.ATTEMPT, started_at)
        # Every log line and error report from here on names the attempt.
        logs.set_context(export_id=claim.export_id, attempt_id=attempt_id, target_id=claim.target_id, attempt=claim.attempt)
        span = tracing.attempt_began()
        try:
            attempt = self._attempt(current, attempt_id, started_at)
        except Exception:
            tracing.attempt_crashed(span)
            raise
        outcome, verdict = attempt.outcome, attempt.verdict
        logs.delivery_log(verdict.outcome, outcome.status, verdict.error_code, outcome.timings.total_ms)
        tracing.attempt_ended(span, attempt)
        logs.set_context()
        return attempt

    def _attempt(self, claim: Claim, attempt_id: str, started_at: datetime) -> CompletedAttempt:
        is_lost = self._options.schedule.is_exceeded(claim.try_number)
        outcome, nonce = _WORKER_LOST, None
        if claim.options is DEFAULT_OPTIONS or claim.options.provider_key == GENERIC_WEBHOOK:
            nonce = new_nonce()
            if not is_lost:
                message = message_to(claim, attempt_id, claim.export_id, claim.body, started_at, nonce)
                outcome = self._signed_post.send(message)
            verdict = decide_outcome(outcome, self._ended_try(claim))
        else:
            lost = TrackerResult(outcome, is_outcome_unknown=claim.is_outcome_unknown)
            result = lost if is_lost else self._trackers.deliver(claim)
            verdict = decide_tracker_outcome(result, self._ended_try(claim))
            outcome = result.outcome._replace(body_sha256=hashlib.sha256(claim.body).hexdigest())
        return CompletedAttempt(claim, attempt_id, started_at, nonce, outcome, verdict)

    def _ended_try(self, claim: Claim) -> Try:
        options = self._options
        return Try(claim.try_number, options.schedule, claim.schedule_began_at, options.now(), options.jitter())
