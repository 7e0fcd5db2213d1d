"""The threads that send: each makes one attempt after another and puts the results into the dispatcher's inbox."""

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
    """Sends what `queues` has ready, on `threads` threads."""

    def __init__(self, runner: AttemptRunner, queues: TargetQueues, inbox: Inbox, threads: int) -> None:
        self._runner = runner
        self._queues = queues
        self._inbox = inbox
        self._threads = threads

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._threads):
            threading.Thread(target=self._run, name=f"delivery-{number}", daemon=True).start()

    def stop(self) -> None:
        """End each thread once nothing is ready for it."""
        self._queues.end_threads(self._threads)

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
