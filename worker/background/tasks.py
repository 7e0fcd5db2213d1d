"""Runs background tasks beside deliveries: one thread each, so that a long one delays no other.

A task runs every `sweep_s` seconds, and on a wake-up unless its work is due by time alone. Its table holds the work, and a
claim in the table keeps two workers from doing the same.
"""

import logging
import threading
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
        self._run_once = run_once
        self._outage = outage
        self._sweep_s = sweep_s
        self._takes_wake_ups = takes_wake_ups
        self._woken = threading.Event()
        self._is_stopping = False
        # A daemon thread: if the process ends, its lease expires, and another worker continues.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which runs at once."""
        self._thread.start()

    def wake(self) -> None:
        """Run now, unless the task takes no wake-ups."""
        if self._takes_wake_ups:
            self._woken.set()

    def stop(self) -> None:
        """Begin nothing more. Takes no lock, so that a signal handler may call it."""
        self._is_stopping = True

    def join(self, timeout_s: float) -> None:
        """Wait after `stop` until the current run has ended, at most `timeout_s` seconds."""
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping:
            self._run_until_done()
            self._woken.wait(self._sweep_s)
            # Before the next run and the check for a stop: a request after this wakes the thread again.
            self._woken.clear()

    def _run_until_done(self) -> None:
        try:
            while not self._is_stopping and self._run_once():
                pass
        except OUTAGES as gone:
            self._outage.record_failure(gone)
        except Exception:  # noqa: BLE001 - the thread must go on; the lease expires
            _log.exception("background task %s failed", self._thread.name)
        else:
            self._outage.record_success()
