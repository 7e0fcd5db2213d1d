"""Runs pings, validations and ticket events one by one, as a thread of a worker does."""

from collections.abc import Callable
from typing import TypeVar

from worker.background.pings import PingTask
from worker.background.ticket_events import EventTask
from worker.background.validations import ValidationTask

Job = TypeVar("Job")


def run_once(task: PingTask | EventTask | ValidationTask) -> bool:
    """Claim the job that has been due longest, and run it. Return False if no job is due."""
    if isinstance(task, ValidationTask):
        return _run(task.claim, task.validate)
    if isinstance(task, PingTask):
        return _run(task.claim, task.send)
    return _run(task.claim, task.send)


def _run(claim: Callable[[], Job | None], work: Callable[[Job], None]) -> bool:
    job = claim()
    if job is not None:
        work(job)
    return job is not None
