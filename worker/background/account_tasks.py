"""A background task whose jobs wait for receivers: each job runs on a thread of its own, and accounts share the threads.

`runtime.account_shares` says how many jobs of an account may run, so receivers of one account that hang leave the others
their threads.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Generic, Protocol, TypeVar

from runtime.account_shares import AccountId, AccountShares
from runtime.outages import Outage
from storage.db.engine import OUTAGES
from worker import outages
from worker.background.tasks import BackgroundTask

#: How many jobs of one account may run at once in a worker; other accounts have threads of their own besides. A receiver
#: that hangs must not make other clients wait for its deadline.
AT_ONCE: Final = 4
#: How much longer than its deadline a job is leased: time to wait for another writer and to write the result.
LEASE_MARGIN_S: Final = 15.0

_log: Final = logging.getLogger(__name__)


class Job(Protocol):
    """A claimed job of an account."""

    @property
    def account_id(self) -> int: ...


JobT = TypeVar("JobT", bound=Job)


class AccountTask(BackgroundTask, Generic[JobT]):
    """Runs claimed jobs, at most AT_ONCE of one account.

    `claim` takes the accounts that may start no job now, and returns None if no other account has a job.
    """

    def __init__(
        self,
        name: str,
        claim: Callable[[Collection[AccountId]], JobT | None],
        run: Callable[[JobT], None],
        sweep_s: float,
        outage: Outage = outages.DATABASE,
    ) -> None:
        super().__init__(name, self._start_next, sweep_s, outage)
        self._claim = claim
        self._run_job = run
        self._shares = AccountShares(AT_ONCE)
        self._lock = threading.Lock()
        self._jobs: set[threading.Thread] = set()

    def join(self, timeout_s: float) -> None:
        """Wait until every job has ended, at most `timeout_s` seconds."""
        ends_at = time.monotonic() + timeout_s
        for job in self._jobs.copy():
            job.join(max(0.0, ends_at - time.monotonic()))

    def _start_next(self) -> bool:
        with self._lock:
            if self._shares.total >= self._shares.limit:
                return False
            excluded = self._shares.holders_of_all()
        # Only this thread starts jobs: during the claim, other jobs may end, but none begins.
        job = self._claim(excluded)
        if job is None:
            return False
        thread = threading.Thread(target=self._run_and_release, args=(job,), name=self.name, daemon=True)
        with self._lock:
            self._shares.take(job.account_id)
            self._jobs.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The system has no thread left. Run the job here: otherwise it would lose an attempt.
            self._jobs.discard(thread)
            self._run_and_release(job)
        return True

    def _run_and_release(self, job: JobT) -> None:
        try:
            self._run_job(job)
        except OUTAGES as gone:
            self._outage.record_failure(gone)
        except Exception:  # noqa: BLE001 - its lease expires
            _log.exception("background task %s failed", self.name)
        finally:
            with self._lock:
                self._shares.release(job.account_id)
                self._jobs.discard(threading.current_thread())
            # The account may have more jobs.
            self.wake()
