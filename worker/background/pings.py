"""Sends pings: a signed test event, sent once, whose outcome is decided like the first attempt of a delivery.

A client waits for the response, so nothing is retried; the effects on the target (connected, failing, blocked) are those of
a delivery. No database connection is held during the request.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Final

from runtime.account_shares import AccountId
from schemas.exports.delivery import DELIVERED, Outcome, Verdict
from schemas.targets.pings import PingOrder, PingResult, ping_body
from storage.db.engine import connection, transaction
from storage.targets import pings
from worker.delivery.outcomes import Schedule, decide_outcome
from worker.delivery.throttle_writer import log_events, sent_to, write_effects
from worker.http.signed_request import Message, SignedPost, new_nonce

#: Concurrent pings of one account alone, in one worker; beside it, other accounts have threads of their own. A receiver that
#: hangs must not make other clients wait for its deadline.
PINGS_AT_ONCE: Final = 4
#: A client waits: a lost wake-up, or one during a run of the dispatcher, costs it a second at most.
POLL_S: Final = 1.0

#: With a retry left, the outcome describes this attempt alone, not the end of a schedule.
_ONE_RETRY_LEFT: Final = Schedule((0.0,), timedelta.max)


class PingTask:
    """Claims and sends pings."""

    def __init__(self, signed_post: SignedPost, worker: str, now: Callable[[], datetime]) -> None:
        self._signed_post = signed_post
        self._worker = worker
        self._now = now

    def run_once(self) -> bool:
        """Send the ping that has waited longest; return whether there was one."""
        order = self.claim()
        if order is not None:
            self.send(order)
        return order is not None

    def claim(self, excluded: Collection[AccountId] = ()) -> PingOrder | None:
        """Claim the ping that has waited longest, of any account but those `excluded`."""
        with connection():
            return pings.claim_next(self._now(), excluded)

    def send(self, order: PingOrder) -> None:
        """Send a ping that was claimed, and store its result."""
        at = self._now()
        outcome = self._signed_post.send(_message(order, at))
        self._record(order, outcome, at)

    def send_unrecorded(self, order: PingOrder) -> PingResult:
        """Send a ping that is not stored, and return its result; it has no effect on the target."""
        at = self._now()
        return _result(self._signed_post.send(_message(order, at)), at, self._now())[1]

    def _record(self, order: PingOrder, outcome: Outcome, began_at: datetime) -> None:
        now = self._now()
        verdict, result = _result(outcome, began_at, now)
        with connection(), transaction():
            is_recorded = pings.finish(order.id, result, now)
            effects = {order.target_id: [sent_to(order.base_url, verdict.effect)]} if is_recorded else {}
            written = write_effects(effects, now, self._worker)
        log_events(written.events)


def _result(outcome: Outcome, began_at: datetime, now: datetime) -> tuple[Verdict, PingResult]:
    verdict = decide_outcome(outcome, 1, began_at, now, 0.0, _ONE_RETRY_LEFT)
    delivered = verdict.outcome == DELIVERED
    return verdict, PingResult(delivered, outcome.status, verdict.error_code, outcome.timings.total_ms)


def _message(order: PingOrder, at: datetime) -> Message:
    body = ping_body(order)
    sealed, nonce = order.secret_sealed, new_nonce()
    return Message(
        order.id, order.id, order.target_id, order.base_url, sealed, body, at, nonce, order.account_id, order.options
    )
