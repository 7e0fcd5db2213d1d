"""Runs background tasks beside deliveries, on a few threads: tasks that take long have one of their own.

A task runs every `sweep_s` seconds, and on a wake-up unless its work is due by time alone. Its table holds the work, and a
claim in the table keeps two workers from doing the same. Each thread keeps a database connection: 0.3 MB on SQLite, a server
process on PostgreSQL.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from runtime.outages import Outage
from storage.db.engine import OUTAGES
from worker import outages

_log: Final = logging.getLogger(__name__)


class BackgroundTask:
    """Calls `run_once` until it returns False, that is, until nothing is left to do.

    `run_once` takes a database connection when it needs one, and never holds it during network calls. Wake-ups come with
    every approval: a task with `takes_wake_ups=False` ignores them.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], bool],
        sweep_s: float,
        outage: Outage = outages.DATABASE,
        *,
        takes_wake_ups: bool = True,
    ) -> None:
        self.name = name
        #: Wakes the thread that runs this task.
        self.woken = threading.Event()
        self._run_once = run_once
        self._outage = outage
        self._sweep_s = sweep_s
        self._takes_wake_ups = takes_wake_ups
        #: Monotonic time.
        self._due_at = 0.0

    def wake(self) -> None:
        """Become due now, unless the task takes no wake-ups."""
        if self._takes_wake_ups:
            self._due_at = 0.0
            self.woken.set()

    def due_in_s(self) -> float:
        """Return the seconds until this task is due; 0 if it is."""
        return max(0.0, self._due_at - time.monotonic())

    def run(self) -> None:
        """Call `run_once`; the task is due again at once if more is left, otherwise after `sweep_s`."""
        # Before the call: a wake-up meanwhile makes the task due again.
        self._due_at = time.monotonic() + self._sweep_s
        try:
            if self._run_once():
                self._due_at = 0.0
        except OUTAGES as gone:
            self._outage.record_failure(gone)
        except Exception:  # noqa: BLE001 - the thread must go on; the lease expires
            _log.exception("background task %s failed", self.name)
        else:
            self._outage.record_success()

    def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for jobs on other threads; a plain task has none."""


class TaskThread:
    """One thread that runs several tasks in turn."""

    def __init__(self, *tasks: BackgroundTask) -> None:
        self._tasks = tasks
        self._woken = threading.Event()
        for task in tasks:
            task.woken = self._woken
        self._is_stopping = False
        # A daemon thread: if the process ends, its leases expire, and another worker continues.
        self._thread = threading.Thread(target=self._run, name=tasks[0].name, daemon=True)

    def start(self) -> None:
        """Start the thread, which runs every task at once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the tasks that take wake-ups now."""
        for task in self._tasks:
            task.wake()

    def stop(self) -> None:
        """Begin nothing more. Takes no lock, so that a signal handler may call it."""
        self._is_stopping = True

    def join(self, timeout_s: float) -> None:
        """Wait after `stop` until everything that the tasks have begun has ended, at most `timeout_s` seconds."""
        ends_at = time.monotonic() + timeout_s
        self._woken.set()
        self._thread.join(timeout_s)
        for task in self._tasks:
            task.join(max(0.0, ends_at - time.monotonic()))

    def _run(self) -> None:
        while not self._is_stopping:
            # Before the check of the tasks: a wake-up after this wakes the thread again.
            self._woken.clear()
            due = [task for task in self._tasks if task.due_in_s() == 0]
            for task in due:
                if not self._is_stopping:
                    task.run()
            if not due:
                self._woken.wait(min(task.due_in_s() for task in self._tasks))
