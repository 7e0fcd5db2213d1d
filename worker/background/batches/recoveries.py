"""Continues recoveries that a command or a request began."""

from datetime import datetime

from storage.db.leases import JobBatch, JobLease
from storage.exports import recoveries
from worker.background.batches.batch_task import BatchTask


class RecoveryTask(BatchTask):
    """Makes failed exports due again."""

    noun = "recovery"

    def claim(self, now: datetime) -> JobLease | None:
        return recoveries.claim_next(now)

    def advance(self, lease: JobLease, now: datetime) -> JobBatch:
        return recoveries.advance(lease, now)
