"""Sends pings: a signed test event, sent once, whose outcome is decided like the first attempt of a delivery.

A client waits for the response, so nothing is retried; the effects on the target (connected, failing, blocked) are those of
a delivery. A ping of a tracker validates its target there; it creates nothing and blocks nothing. No database connection is
held during the request.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runtime.account_shares import AccountId
from schemas.exports.delivery import DELIVERED, Verdict
from schemas.targets.pings import PingJob, PingResult, ping_body
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.db.engine import connection, transaction
from storage.targets import pings
from worker.delivery.outcomes import ONE_RETRY_LEFT, Try, decide_outcome
from worker.delivery.throttle_writer import SentEffect, log_events, write_effects
from worker.delivery.tracker_outcomes import decide_validation
from worker.http.signed_request import SignedPost, message_to, new_nonce
from worker.trackers.runner import TrackerRunner

#: A client waits for the result: a lost wake-up, or one during a run of the dispatcher, costs it a second at most.
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PingTask:
    """Claims and sends pings; those of trackers are validations by `trackers`."""

    signed_post: SignedPost
    worker: str
    now: Callable[[], datetime]
    trackers: TrackerRunner

    def claim(self, excluded: Collection[AccountId] = ()) -> PingJob | None:
        """Claim the ping that has waited longest, of any account but those `excluded`."""
        with connection():
            return pings.claim_next(self.now(), excluded)

    def send(self, order: PingJob) -> None:
        """Send a ping that was claimed, and store its result."""
        verdict, result = self._send(order)
        now = self.now()
        with connection(), transaction():
            is_recorded = pings.finish(order.id, result, now)
            effects = {order.target_id: [SentEffect(verdict.effect, order.base_url)]} if is_recorded else {}
            written = write_effects(effects, now, self.worker)
        log_events(written.events)

    def send_unrecorded(self, order: PingJob) -> PingResult:
        """Send a ping that is not stored, and return its result; it has no effect on the target."""
        return self._send(order)[1]

    def _send(self, order: PingJob) -> tuple[Verdict, PingResult]:
        at = self.now()
        if order.options.provider_key != GENERIC_WEBHOOK:
            result = self.trackers.validate(order)
            outcome, verdict = result.outcome, decide_validation(result, self.now())
        else:
            message = message_to(order, order.id, order.id, ping_body(order), at, new_nonce())
            outcome = self.signed_post.send(message)
            verdict = decide_outcome(outcome, Try(1, ONE_RETRY_LEFT, at, self.now(), 0.0))
        is_delivered = verdict.outcome == DELIVERED
        return verdict, PingResult(is_delivered, outcome.status, verdict.error_code, outcome.timings.total_ms)
