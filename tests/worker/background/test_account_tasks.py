"""Jobs of one account that hang leave threads for the jobs of other accounts, and every job ends in order."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import peewee
import pytest

from runtime.outages import Outage
from tests.support.processes.workers import wait_until
from worker.background.account_tasks import AccountTask
from worker.background.tasks import TaskThread

NO_SWEEP_S = 600.0


@dataclass(frozen=True)
class FakeJob:
    account_id: int
    number: int = 0


class JobList:
    """Jobs that wait to be claimed, the oldest first, and the jobs that have begun and ended."""

    def __init__(self, *jobs: FakeJob) -> None:
        self.waiting = deque(jobs)
        self.begun: list[FakeJob] = []
        self.ended: list[FakeJob] = []
        self.gate = threading.Event()

    def claim(self, excluded: Collection[int | None]) -> FakeJob | None:
        for job in self.waiting:
            if job.account_id not in excluded:
                self.waiting.remove(job)
                return job
        return None

    def run(self, job: FakeJob) -> None:
        self.begun.append(job)
        if job.account_id == 1:
            self.gate.wait(30)
        self.ended.append(job)


@contextmanager
def running(jobs: JobList, run: Callable[[FakeJob], None] | None = None, **options: Outage) -> Iterator[TaskThread]:
    """Run a task that claims jobs at its start and then only when a thread is free again."""
    task = TaskThread(AccountTask("jobs", jobs.claim, run or jobs.run, NO_SWEEP_S, **options))
    task.start()
    try:
        yield task
    finally:
        jobs.gate.set()
        task.stop()
        task.join(10)


def test_an_account_runs_a_limited_number_of_jobs_and_others_run_at_the_same_time() -> None:
    jobs = JobList(*(FakeJob(1, number) for number in range(20)), FakeJob(2), FakeJob(3))
    with running(jobs):
        wait_until(lambda: len(jobs.ended) == 2)
        assert {job.account_id for job in jobs.ended} == {2, 3}
        assert len(jobs.begun) == 6
        jobs.gate.set()
        # Each job that ends makes room for the next one, without a sweep.
        wait_until(lambda: len(jobs.ended) == 22)


def test_stopping_begins_no_further_jobs_and_waits_for_running_ones() -> None:
    jobs = JobList(*(FakeJob(1, number) for number in range(20)))
    with running(jobs) as task:
        wait_until(lambda: len(jobs.begun) == 4)
        task.stop()
        threading.Timer(0.2, jobs.gate.set).start()
        began = time.monotonic()
        task.join(10)
        assert time.monotonic() - began >= 0.1
        assert (len(jobs.begun), len(jobs.ended)) == (4, 4)


def test_a_claimed_job_runs_even_if_no_thread_can_be_started() -> None:
    jobs, before = JobList(FakeJob(2, 1), FakeJob(2, 2)), threading.stack_size()

    def claim(excluded: Collection[int | None]) -> FakeJob | None:
        # No machine has enough memory for a stack of this size, so no thread can start.
        threading.stack_size(1 << 50)
        return jobs.claim(excluded)

    task = TaskThread(AccountTask("jobs", claim, jobs.run, NO_SWEEP_S))
    task.start()
    try:
        wait_until(lambda: len(jobs.ended) == 2)
    finally:
        threading.stack_size(before)
        task.stop()
        task.join(10)


def test_a_job_that_fails_is_logged_and_releases_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    jobs = JobList(*(FakeJob(2, number) for number in range(10)))

    def fail(job: FakeJob) -> None:
        jobs.run(job)
        raise LookupError("hunter2")

    with running(jobs, fail):
        wait_until(lambda: len(jobs.ended) == 10)
    assert [record.message for record in caplog.records] == ["background task jobs failed"] * 10


def test_an_outage_within_a_job_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    jobs = JobList(FakeJob(2), FakeJob(3))

    def fail(job: FakeJob) -> None:
        jobs.run(job)
        raise peewee.OperationalError("hunter2")

    with running(jobs, fail, outage=Outage(logging.getLogger("riskrelay.test"), "it is away", "it is back")):
        wait_until(lambda: len(jobs.ended) == 2)
    assert "it is away" in caplog.messages
    assert not any(record.exc_info for record in caplog.records)
