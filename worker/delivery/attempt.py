"""The story of one delivery, top to bottom: look whether it is still ours, sign and send, judge.

It runs on a thread of the pool; what it returns is written by the drain. Between a claim and its turn the export may have
been redacted, the target turned off, the lease lost: what has waited is looked at once more, and no attempt starts that must
not. Its target may have got another secret: it signs then.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from runtime import logs, tracing
from schemas.exports.delivery import Claim, CompletedAttempt, Outcome
from storage.db import identifiers
from storage.db.engine import OUTAGES, connection
from storage.exports import claims_sql
from storage.secrets.vault import Vault
from worker import outages
from worker.delivery.outcomes import Schedule, decide_outcome
from worker.http.signed_request import Message, Post, SignedPost, new_nonce

#: A claim that waited no longer than a few ticks is sent without another look, which costs as much as a third of a delivery;
#: so an attempt starts at most this long after its row was seen.
FRESH: Final = timedelta(milliseconds=200)


def look_again(claim: Claim, now: datetime) -> Claim | None:
    """Return the claim as it stands now, None where no attempt may start by it; while the database is away none does."""
    try:
        with connection():
            return claims_sql.recheck(claim, now)
    except OUTAGES as gone:
        outages.DATABASE.note(gone)
        return None


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """How deliveries are made: the default secret, the schedule, what time and chance are, and who knows of claims."""

    default_secret: str | None
    schedule: Schedule
    now: Callable[[], datetime]
    jitter: Callable[[], float] = lambda: random.uniform(-1, 1)  # noqa: S311 - spreads load, guards nothing
    look_again: Callable[[Claim, datetime], Claim | None] = look_again


class AttemptRunner:
    """Makes deliveries for the claims it is given."""

    def __init__(self, post: Post, vault: Vault, terms: AttemptOptions) -> None:
        self._signed_post = SignedPost(post, vault, terms.default_secret)
        self._terms = terms

    def deliver(self, claim: Claim) -> CompletedAttempt | None:
        """Make one attempt and judge it; None where it was not to be made any more, and nothing was sent."""
        started_at = self._terms.now()
        # A clock that was set back makes old claims look new: any distance counts.
        seen = claim if abs(started_at - claim.claimed_at) <= FRESH else self._terms.look_again(claim, started_at)
        if seen is None:
            return None
        claim = seen
        attempt_id = identifiers.new_id(identifiers.ATTEMPT, started_at)
        # Whatever is logged or reported meanwhile, by whoever is called from here, says which delivery it is about.
        logs.set_context(export_id=claim.export_id, attempt_id=attempt_id, target_id=claim.target_id, attempt=claim.attempt)
        span = tracing.attempt_began()
        try:
            attempted = self._attempted(claim, attempt_id, started_at)
        except Exception:
            tracing.attempt_crashed(span)
            raise
        outcome, verdict = attempted.outcome, attempted.verdict
        logs.delivery_log(verdict.outcome, outcome.status, verdict.error_code, outcome.timings.total_ms)
        tracing.attempt_ended(span, attempted)
        logs.set_context()
        return attempted

    def _attempted(self, claim: Claim, attempt_id: str, started_at: datetime) -> CompletedAttempt:
        nonce = new_nonce()
        outcome = self._attempt(claim, attempt_id, started_at, nonce)
        now = self._terms.now()
        verdict = decide_outcome(
            outcome, claim.try_number, claim.schedule_began_at, now, self._terms.jitter(), self._terms.schedule
        )
        return CompletedAttempt(claim, attempt_id, started_at, nonce, outcome, verdict)

    def _attempt(self, claim: Claim, attempt_id: str, started_at: datetime, nonce: str) -> Outcome:
        if claim.try_number > len(self._terms.schedule.delays_s) + 1:
            # Every try was begun and none ended: this export takes its worker down with it.
            return Outcome(error="worker_lost")
        message = Message(
            attempt_id, claim.export_id, claim.target_id, claim.base_url, claim.secret_sealed, claim.body, started_at, nonce
        )
        return self._signed_post.send(message)
