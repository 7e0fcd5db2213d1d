"""The threads that send: each makes one attempt after another and puts the results into the dispatcher's inbox."""

import itertools
import logging
import threading
from typing import Final

from runtime import logs
from schemas.exports.delivery import Claim
from worker.delivery.attempt import AttemptRunner
from worker.delivery.inbox import Inbox, SendResult
from worker.delivery.target_queues import TargetQueues

_log: Final = logging.getLogger(__name__)


class SenderPool:
    """Sends the claims that `queues` hands out, on as many threads as `queues` needs."""

    def __init__(self, runner: AttemptRunner, queues: TargetQueues, inbox: Inbox) -> None:
        self._runner = runner
        self._queues = queues
        self._inbox = inbox
        self._numbers = itertools.count()

    def grow(self) -> None:
        """Start the threads that are missing; those beyond the shared ones end when they have nothing to send."""
        while self._queues.add_thread():
            try:
                threading.Thread(target=self._run, name=f"delivery-{next(self._numbers)}", daemon=True).start()
            except RuntimeError:
                # The system has no thread left: the claim waits for a thread of the pool, and its lease is renewed.
                self._queues.remove_thread()
                _log.warning("cannot start a sender thread; the delivery waits")
                return

    def stop(self) -> None:
        """End each thread once nothing is ready for it."""
        self._queues.end_threads()

    def _run(self) -> None:
        claim = self._queues.take()
        while claim is not None:
            result = self._send(claim)
            following = self._queues.finish(claim, pauses_queue=result.pauses_queue)
            self._inbox.put(result)
            claim = following or self._queues.take()

    def _send(self, claim: Claim) -> SendResult:
        try:
            attempt = self._runner.run(claim)
        except Exception:  # noqa: BLE001 - the thread must go on; the claim's lease expires
            _log.exception("attempt crashed", extra={"export_id": claim.export_id, "target_id": claim.target_id})
            logs.set_context()
            return SendResult(claim, pauses_queue=True)
        if attempt is None:
            return SendResult(claim, is_unsent=True, pauses_queue=True)
        return SendResult(claim, attempt, pauses_queue=attempt.verdict.effect.pauses_queue)
