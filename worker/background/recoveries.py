"""Continues recoveries that a command or a request began, a batch at a time.

The command calls `redeliver_batch` too, so a recovery needs no worker, and it outlives a command that was killed. After each
batch the workers are notified; the target's own limits decide how fast its exports are delivered.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from runtime.wake_up_queue import WakeUpQueue
from storage.db.engine import connection
from storage.db.leases import JobLease
from storage.exports import recoveries
from storage.exports.recoveries import RecoveryBatch, RecoveryProgress

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
        self._lease: JobLease | None = None
        self._is_redis_up = True

    def run_once(self) -> bool:
        """Process the next batch of the current recovery, or claim one; return whether there was work."""
        self._lease = self._lease or self._claim()
        if self._lease is None:
            return False
        step = self.redeliver_batch(self._lease)
        if step.progress is not RecoveryProgress.MOVED:
            _log.info("recovery %s: %s", self._lease.id, step.progress.name.lower())
            self._lease = None
        return True

    def redeliver_batch(self, lease: JobLease) -> RecoveryBatch:
        """Make the next batch of a recovery due, notify the workers, and let other writers write."""
        with connection():
            step = recoveries.advance(lease, self._now())
        if step.moved and self._is_redis_up:
            # An unavailable Redis is tried once per recovery: the sweep finds what is due.
            self._is_redis_up = self._wake_ups.notify()
        if step.progress is RecoveryProgress.MOVED:
            time.sleep(_PAUSE_S)
        return step

    def _claim(self) -> JobLease | None:
        with connection():
            # Reading takes no write lock; nearly all calls end here.
            lease = recoveries.claim_next(self._now()) if recoveries.any_waiting(self._now()) else None
        if lease is not None:
            self._is_redis_up = True
            _log.info("recovery %s claimed", lease.id)
        return lease
