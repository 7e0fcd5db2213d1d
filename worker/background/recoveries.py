"""Continues recoveries that a command or a request began, a batch at a time.

The command uses the same `put_back`, so a recovery needs no worker, and it outlives a command that was killed. After each
batch the workers are notified; the target's own limits decide how fast its exports are delivered.
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

#: How late at most the recovery of a killed command is continued after its lease has expired.
POLL_S: Final = 2.0
#: Other writers of SQLite retry every 2 ms: long enough for them between two batches.
_PAUSE_S: Final = 0.01

_log: Final = logging.getLogger(__name__)


class RecoveryTask:
    """Redelivers exports, one recovery after the other."""

    def __init__(self, wake_ups: WakeUpQueue, now: Callable[[], datetime]) -> None:
        self._wake_ups = wake_ups
        self._now = now
        self._held: RecoveryLease | None = None
        self._is_redis_up = True

    def run_once(self) -> bool:
        """Process the next batch of the current recovery, or claim one; return whether there was work."""
        self._held = self._held or self._claim()
        if self._held is None:
            return False
        step = self.put_back(self._held)
        if step.progress is not RecoveryProgress.MOVED:
            _log.info("recovery %s: %s", self._held.id, step.progress.name.lower())
            self._held = None
        return True

    def put_back(self, held: RecoveryLease) -> RecoveryBatch:
        """Make the next batch of a recovery due, notify the workers, and let other writers write."""
        with connection():
            step = recoveries.advance(held, self._now())
        if step.moved and self._is_redis_up:
            # An unavailable Redis is tried once per recovery: the sweep finds what is due.
            self._is_redis_up = self._wake_ups.notify()
        if step.progress is RecoveryProgress.MOVED:
            time.sleep(_PAUSE_S)
        return step

    def _claim(self) -> RecoveryLease | None:
        with connection():
            # Reading takes no write lock; nearly all calls end here.
            held = recoveries.claim_next(self._now()) if recoveries.any_waiting(self._now()) else None
        if held is not None:
            self._is_redis_up = True
            _log.info("recovery %s claimed", held.id)
        return held
