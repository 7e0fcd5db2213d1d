"""Carries pings out: a signed test event, sent once and judged like the first attempt of a delivery.

Somebody waits for the answer, so nothing is tried again; what the target is told to be (connected, failing, blocked) is what
a delivery would have told. No database connection is held while the receiver is asked.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from schemas.exports.delivery import DELIVERED, Outcome
from schemas.targets.pings import PingOrder, PingResult, ping_body
from storage.db.engine import connection, transaction
from storage.targets import pings
from worker.delivery.outcomes import Schedule, decide_outcome
from worker.delivery.throttle_writer import log_events, write_effects
from worker.http.signed_request import Message, SignedPost, new_nonce

#: How many pings one worker sends at once: a receiver that hangs must not make others wait for its deadline.
PINGS_AT_ONCE: Final = 4
#: A client waits: a lost wake-up, or one that comes while a drain is at work, costs it a second at most.
LOOK_EVERY_S: Final = 1.0

#: A delivery that could still be tried again tells what met this attempt alone.
_AS_A_FIRST_TRY: Final = Schedule((0.0,), timedelta.max)


class PingTask:
    """Sends pings, each on the thread that takes it."""

    def __init__(self, signed_post: SignedPost, worker: str, now: Callable[[], datetime]) -> None:
        self._signed_post = signed_post
        self._worker = worker
        self._now = now

    def run_once(self) -> bool:
        """Take the ping that has waited longest and send it; tell whether there was one."""
        with connection():
            order = pings.claim_next(self._now())
        if order is None:
            return False
        at = self._now()
        outcome = self._signed_post.send(_message(order, at))
        self._record(order, outcome, at)
        return True

    def _record(self, order: PingOrder, outcome: Outcome, began_at: datetime) -> None:
        now = self._now()
        verdict = decide_outcome(outcome, 1, began_at, now, 0.0, _AS_A_FIRST_TRY)
        delivered = verdict.outcome == DELIVERED
        result = PingResult(delivered, outcome.status, verdict.error_code, outcome.timings.total_ms)
        with connection(), transaction():
            is_recorded = pings.finish(order.id, result, now)
            effects = {order.target_id: [verdict.effect]} if is_recorded else {}
            written = write_effects(effects, now, self._worker)
        log_events(written.events)


def _message(order: PingOrder, at: datetime) -> Message:
    body = ping_body(order)
    return Message(order.id, order.id, order.target_id, order.base_url, order.secret_sealed, body, at, new_nonce())
