"""Leases of jobs: one worker at a time holds a job, until its lease expires or the job ends.

A row of a job has a lease, which identifies the present claim, and the time from which a worker may claim the job: at once,
or when the present lease expires. NULL means never. Each write is a compare-and-swap that names the expected value: the time
that the claiming worker read, later the lease. A stale lease updates no row. Exports have statements of their own.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from peewee import Model

from storage.db import identifiers
from storage.db.engine import transaction
from storage.db.queries import tuples


def compare_and_swap(model: type[Model], row_id: str, *expected: Any, **changes: Any) -> bool:
    """Write `changes` to a row if all of `expected` is true; return whether it was. The caller holds the transaction."""
    return bool(model.update(**changes).where(model._meta.primary_key == row_id, *expected).execute())


@dataclass(frozen=True, slots=True)
class JobLease:
    """A job and the lease of its present holder."""

    id: str
    lease: str


class BatchProgress(Enum):
    """The result of one batch of a job."""

    #: There may be more items.
    MORE = auto()
    #: The job has ended: all items are processed, or it was stopped.
    FINISHED = auto()
    #: The target of a recovery was turned off; the recovery continues once the target is resumed.
    WAITING_FOR_TARGET = auto()
    #: The job was cancelled, or another worker holds it.
    LEASE_LOST = auto()


@dataclass(frozen=True, slots=True)
class JobBatch:
    """One batch: how many exports were processed, and how many of them are due now."""

    progress: BatchProgress
    processed: int = 0
    due: int = 0


class LeasedJobs:
    """The jobs of one table; `lease` and `due_at` name the columns."""

    def __init__(self, model: type[Model], lease: str = "lease", due_at: str = "next_run_at") -> None:
        self._model = model
        self._lease = lease
        self._due_at = due_at

    def any_waiting(self, now: datetime) -> bool:
        """Return whether any job may be claimed at `now`."""
        return bool(self._waiting(now).exists())

    def claim_oldest(self, now: datetime, lease_s: float, **changes: Any) -> JobLease | None:
        """Claim the job that has waited longest, as `claim` does; None if no job is due, or if another write came first."""
        # This read takes no write lock. Nearly all calls end here.
        if not self.any_waiting(now):
            return None
        waiting = self._waiting(now, self._model._meta.primary_key, getattr(self._model, self._due_at))
        with transaction():
            for job_id, seen_due_at in tuples(waiting.order_by(getattr(self._model, self._due_at)).limit(1)):
                # Another worker, a former holder that resumed, or a cancellation may have won.
                lease = self.claim(job_id, seen_due_at, now, lease_s, **changes)
                return JobLease(job_id, lease) if lease else None
        return None

    def claim(
        self, job_id: str, seen_due_at: datetime, now: datetime, lease_s: float, *expected: Any, **changes: Any
    ) -> str | None:
        """Claim a job for `lease_s` seconds from `now` and return the lease.

        Returns None if `seen_due_at` has changed: another worker claimed the job, its former holder renewed it, or it ended.
        """
        lease = identifiers.new_id(identifiers.LEASE, now)
        leased = {self._lease: lease, self._due_at: now + timedelta(seconds=lease_s)}
        is_due = getattr(self._model, self._due_at) == seen_due_at
        return lease if compare_and_swap(self._model, job_id, is_due, *expected, **leased, **changes) else None

    def renew(self, job_id: str, lease: str, now: datetime, lease_s: float, *expected: Any, **changes: Any) -> bool:
        """Extend a lease to `lease_s` seconds after `now`; return whether it was still valid.

        On PostgreSQL this locks the row, so that nobody claims or cancels the job before the transaction ends.
        """
        renewed = {self._due_at: now + timedelta(seconds=lease_s)}
        return compare_and_swap(self._model, job_id, self._holds(lease), *expected, **renewed, **changes)

    def finish(self, job_id: str, lease: str, *expected: Any, due_at: datetime | None = None, **changes: Any) -> bool:
        """End a lease: the job is due again at `due_at`, or never. Return whether the lease was still valid."""
        ended = {self._lease: None, self._due_at: due_at}
        return compare_and_swap(self._model, job_id, self._holds(lease), *expected, **ended, **changes)

    def release(self, held: JobLease, due_at: datetime) -> None:
        """Let another worker claim a job from `due_at` on; a stale lease changes nothing."""
        with transaction():
            self.finish(held.id, held.lease, due_at=due_at)

    def end(self, job_id: str, is_running: Any, status: str, now: datetime, **changes: Any) -> bool:
        """End a running job with its final status, even if it is leased; return whether it was running."""
        ended = {self._lease: None, self._due_at: None, "status": status, "finished_at": now}
        return compare_and_swap(self._model, job_id, is_running, **ended, **changes)

    def count_unfinished(self, *conditions: Any) -> int:
        """Return how many jobs have not ended: the index of jobs with a due time contains exactly these."""
        has_due_time = getattr(self._model, self._due_at).is_null(False)
        return int(self._model.select().where(has_due_time, *conditions).count())

    def _waiting(self, now: datetime, *columns: Any) -> Any:
        return self._model.select(*columns).where(getattr(self._model, self._due_at) <= now)

    def _holds(self, lease: str) -> Any:
        return getattr(self._model, self._lease) == lease
