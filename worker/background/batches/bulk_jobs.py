"""Continues bulk jobs that a request or a command began."""

from collections.abc import Callable
from datetime import datetime

from runtime.wake_up_queue import WakeUpQueue
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.db.leases import JobBatch, JobLease
from storage.triage import bulk_jobs
from worker.background.batches.batch_task import BatchTask


class BulkJobTask(BatchTask):
    """Decides on the exports of bulk jobs."""

    noun = "bulk job"

    def __init__(
        self, wake_ups: WakeUpQueue, policy: TargetPolicy, limits: AccountLimits, now: Callable[[], datetime]
    ) -> None:
        super().__init__(wake_ups, now)
        self._policy = policy
        self._limits = limits

    def claim(self, now: datetime) -> JobLease | None:
        return bulk_jobs.claim_next(now)

    def advance(self, lease: JobLease, now: datetime) -> JobBatch:
        return bulk_jobs.advance(lease, now, self._policy, self._limits)
