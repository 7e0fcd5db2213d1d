"""Continues bulk jobs that a request or a command began, a batch at a time.

The command calls `decide_batch` too, so a job needs no worker, and it outlives a command that was killed.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from runtime.wake_up_queue import WakeUpQueue
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.db.engine import connection
from storage.db.leases import JobLease
from storage.triage import bulk_jobs
from storage.triage.bulk_jobs import BulkBatch, BulkProgress

#: How late at most the job of a killed worker or command is continued after its lease has expired.
POLL_S: Final = 2.0
#: Other writers of SQLite retry every 2 ms: long enough for them between two batches.
_PAUSE_S: Final = 0.01

_log: Final = logging.getLogger(__name__)


class BulkJobTask:
    """Decides on the exports of bulk jobs, one job after the other."""

    def __init__(
        self, wake_ups: WakeUpQueue, policy: TargetPolicy, limits: AccountLimits, now: Callable[[], datetime]
    ) -> None:
        self._wake_ups = wake_ups
        self._policy = policy
        self._limits = limits
        self._now = now
        self._lease: JobLease | None = None
        self._is_redis_up = True

    def run_once(self) -> bool:
        """Process the next batch of the current job, or claim one; return whether there was work."""
        self._lease = self._lease or self._claim()
        if self._lease is None:
            return False
        step = self.decide_batch(self._lease)
        if step.progress is not BulkProgress.MOVED:
            _log.info("bulk job %s: %s", self._lease.id, step.progress.name.lower())
            self._lease = None
        return True

    def decide_batch(self, lease: JobLease) -> BulkBatch:
        """Decide on the next batch of a job, notify the workers of what is due, and let other writers write."""
        with connection():
            step = bulk_jobs.advance(lease, self._now(), self._policy, self._limits)
        if step.due and self._is_redis_up:
            # An unavailable Redis is tried once per job: the sweep finds what is due.
            self._is_redis_up = self._wake_ups.notify()
        if step.progress is BulkProgress.MOVED:
            time.sleep(_PAUSE_S)
        return step

    def _claim(self) -> JobLease | None:
        with connection():
            # Reading takes no write lock; nearly all calls end here.
            lease = bulk_jobs.claim_next(self._now()) if bulk_jobs.any_waiting(self._now()) else None
        if lease is not None:
            self._is_redis_up = True
            _log.info("bulk job %s claimed", lease.id)
        return lease
