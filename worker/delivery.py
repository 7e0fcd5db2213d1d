"""The story of one delivery, top to bottom: check, sign and send, judge.

It runs on a thread of the pool and touches no database; what it returns is written by the drain.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from schemas.delivery import Attempted, Claim, Outcome
from storage import identifiers
from storage.vault import Vault
from worker.retries import Schedule, judge
from worker.signed_post import Message, Post, SignedPost, new_nonce


@dataclass(frozen=True, slots=True)
class Terms:
    """How deliveries are made: the default secret, the schedule, and what time and chance are."""

    default_secret: str | None
    schedule: Schedule
    now: Callable[[], datetime]
    jitter: Callable[[], float] = lambda: random.uniform(-1, 1)  # noqa: S311 - spreads load, guards nothing


class Courier:
    """Makes deliveries for the claims it is given."""

    def __init__(self, post: Post, vault: Vault, terms: Terms) -> None:
        self._signed_post = SignedPost(post, vault, terms.default_secret)
        self._terms = terms

    def deliver(self, claim: Claim) -> Attempted:
        """Make one attempt and judge it; whatever happens, the claim comes back with a verdict."""
        started_at = self._terms.now()
        attempt_id = identifiers.new_id(identifiers.ATTEMPT, started_at)
        nonce = new_nonce()
        outcome = self._attempt(claim, attempt_id, started_at, nonce)
        now = self._terms.now()
        verdict = judge(outcome, claim.try_number, claim.schedule_began_at, now, self._terms.jitter(), self._terms.schedule)
        return Attempted(claim, attempt_id, started_at, nonce, outcome, verdict)

    def _attempt(self, claim: Claim, attempt_id: str, started_at: datetime, nonce: str) -> Outcome:
        if claim.try_number > len(self._terms.schedule.delays_s) + 1:
            # Every try was begun and none ended: this export takes its worker down with it.
            return Outcome(error="worker_lost")
        message = Message(
            attempt_id, claim.export_id, claim.target_id, claim.base_url, claim.secret_sealed, claim.body, started_at, nonce
        )
        return self._signed_post.send(message)
