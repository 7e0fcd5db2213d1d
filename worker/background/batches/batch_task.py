"""Continues jobs that a request or a command began, a batch at a time, one job after the other.

The command calls `process_batch` too, so a job needs no worker, and it outlives a command that was killed. After each batch
the workers are notified of what is due; the targets' own limits decide how fast exports are delivered.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from runtime.wake_up_queue import WakeUpQueue
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.db.engine import OUTAGES, connection
from storage.db.leases import BatchProgress, JobBatch, JobLease
from storage.exports import recoveries
from storage.triage import bulk_jobs

#: How late at most the job of a killed worker or command is continued after its lease has expired.
POLL_S: Final = 2.0
#: The pause between two batches: other writers of SQLite retry every 2 ms, so it is long enough for them.
_PAUSE_S: Final = 0.01

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchTask:
    """Processes the jobs of one table; `noun` names them in the log.

    `claim` returns the job that has waited longest; `advance` processes the next batch of a job in a transaction.
    """

    noun: str
    claim: Callable[[datetime], JobLease | None]
    advance: Callable[[JobLease, datetime], JobBatch]
    wake_ups: WakeUpQueue
    now: Callable[[], datetime]
    _lease: JobLease | None = field(default=None, init=False)
    _is_redis_up: bool = field(default=True, init=False)

    def run_once(self) -> bool:
        """Process the next batch of the current job, or claim one; return whether there was work."""
        if self._lease is None:
            with connection():
                self._lease = self.claim(self.now())
            if self._lease is None:
                return False
            self._is_redis_up = True
            _log.info("%s %s claimed", self.noun, self._lease.id)
        try:
            step = self.process_batch(self._lease)
        except Exception as failed:
            if not isinstance(failed, OUTAGES):
                # Leave this job: until its lease expires, the other jobs come first.
                self._lease = None
            raise
        if step.progress is not BatchProgress.MORE:
            _log.info("%s %s: %s", self.noun, self._lease.id, step.progress.name.lower())
            self._lease = None
        return True

    def process_batch(self, lease: JobLease) -> JobBatch:
        """Process the next batch of a job, notify the workers of what is due, and let other writers write."""
        with connection():
            step = self.advance(lease, self.now())
        if step.due and self._is_redis_up:
            # If Redis is unavailable, it is tried once per job: the sweep finds the exports that are due.
            self._is_redis_up = self.wake_ups.notify()
        if step.progress is BatchProgress.MORE:
            time.sleep(_PAUSE_S)
        return step


def recovery_task(wake_ups: WakeUpQueue, now: Callable[[], datetime]) -> BatchTask:
    """Return the task that makes failed exports due again."""
    return BatchTask("recovery", recoveries.claim_next, recoveries.advance, wake_ups, now)


def bulk_job_task(
    wake_ups: WakeUpQueue, policy: TargetPolicy, limits: AccountLimits, now: Callable[[], datetime]
) -> BatchTask:
    """Return the task that decides on the exports of bulk jobs."""
    advance = partial(bulk_jobs.advance, policy=policy, limits=limits)
    return BatchTask("bulk job", bulk_jobs.claim_next, advance, wake_ups, now)
