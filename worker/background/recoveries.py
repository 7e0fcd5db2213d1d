"""Carries recoveries on: what an operator's command began and did not end goes on here, a batch at a time.

The command itself works in the same way (`put_back`), so that a recovery needs no worker, and outlives the command that was
killed. After each batch the workers are notified; how fast a target gets what was put back is for its own limits to say.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from runtime.wake_up_queue import WakeUpQueue
from storage.db.engine import connection
from storage.exports import recoveries
from storage.exports.recoveries import RecoveryBatch, RecoveryLease, RecoveryProgress

#: What a killed command left behind is taken up this late at most after its lease has lapsed.
LOOK_EVERY_S: Final = 2.0
#: Other writers of SQLite ask every 2 ms whether it is their turn: long enough for them between two batches.
_BREATH_S: Final = 0.01

_log: Final = logging.getLogger(__name__)


class RecoveryTask:
    """Puts exports back on their way, one recovery after the other."""

    def __init__(self, wake_ups: WakeUpQueue, now: Callable[[], datetime]) -> None:
        self._wake_ups = wake_ups
        self._now = now
        self._held: RecoveryLease | None = None
        self._is_redis_up = True

    def run_once(self) -> bool:
        """Put back the next batch of what this worker has in hand or can take up; tell whether there was something to do."""
        self._held = self._held or self._take_up()
        if self._held is None:
            return False
        step = self.put_back(self._held)
        if step.progress is not RecoveryProgress.MOVED:
            _log.info("recovery %s: %s", self._held.id, step.progress.name.lower())
            self._held = None
        return True

    def put_back(self, held: RecoveryLease) -> RecoveryBatch:
        """Put back the next batch of a recovery, notify the workers, and let other writers have their turn."""
        with connection():
            step = recoveries.advance(held, self._now())
        if step.moved and self._is_redis_up:
            # A Redis that is away is asked once: the sweep finds what is due.
            self._is_redis_up = self._wake_ups.notify()
        if step.progress is RecoveryProgress.MOVED:
            time.sleep(_BREATH_S)
        return step

    def _take_up(self) -> RecoveryLease | None:
        with connection():
            # A look costs no write lock; nearly all of them end here.
            held = recoveries.claim_next(self._now()) if recoveries.any_waiting(self._now()) else None
        if held is not None:
            self._is_redis_up = True
            _log.info("recovery %s is taken up", held.id)
        return held
