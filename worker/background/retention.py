"""Deletes records past their retention, in small batches, once an hour.

One worker at a time deletes; while `prune` or another worker does, this one waits for the next hour. It pauses between two
batches, so that other writers can write and a stop takes effect.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from storage.db import locks, write_ahead_log_sql
from storage.db.engine import connection
from storage.db.locks import Lock
from storage.maintenance import retention
from storage.maintenance.retention import Cutoffs
from worker.delivery.clock_guard import ClockGuard

#: Deleting an hour or a day late does no harm; a run that finds nothing costs one index step per table.
RUN_EVERY: Final = timedelta(hours=1)
#: How often to check whether an hour has passed.
POLL_S: Final = 60.0
#: A machine that was just started, or whose clock was just set, needs time to correct it: a clock that is years ahead would
#: empty the database.
FIRST_RUN_AFTER: Final = timedelta(minutes=10)
#: The pause after a batch of about 10 ms: it leaves nine tenths of SQLite's one writer to deliveries.
_PAUSE_S: Final = 0.1

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class RetentionTask:
    """Deletes a batch per call until nothing is left, and begins again an hour later."""

    cutoffs: Callable[[datetime], Cutoffs]
    worker: str
    now: Callable[[], datetime]
    guard: ClockGuard
    monotonic: Callable[[], float] = time.monotonic
    _batches: Iterator[Counter[str]] | None = field(default=None, init=False)
    _removed: int = field(default=0, init=False)
    _due_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin_pause(FIRST_RUN_AFTER)

    def run_once(self) -> bool:
        """Delete the next batch if a run is due; return whether there may be more."""
        if self._clock_was_set():
            self._batches = None
            self._begin_pause(FIRST_RUN_AFTER)
        if self._batches is None and self.monotonic() < self._due_at:
            return False
        # If this batch fails, the next call begins a new run.
        batches, self._batches = self._batches or retention.purge(self.cutoffs(self.now())), None
        gone = self._next(batches)
        if gone is None:
            self._pause_for_an_hour()
            return False
        self._removed += gone.total()
        self._batches = batches
        time.sleep(_PAUSE_S)
        return True

    def _clock_was_set(self) -> bool:
        with connection():
            return bool(self.guard.check(compare=False))

    def _next(self, batches: Iterator[Counter[str]]) -> Counter[str] | None:
        """Return the counts of the next batch; None if nothing is left or another process deletes."""
        try:
            with connection(), locks.exclusive(Lock.PRUNE):
                return next(batches, None)
        except locks.LockBusy:
            return None

    def _pause_for_an_hour(self) -> None:
        if self._removed:
            _log.info("expired records deleted", extra={"worker": self.worker, "count": self._removed})
        self._removed = 0
        self._begin_pause(RUN_EVERY)
        # Also if nothing was deleted: an erasure may have found the log in use.
        with connection():
            write_ahead_log_sql.empty()

    def _begin_pause(self, pause: timedelta) -> None:
        self._due_at = self.monotonic() + pause.total_seconds()
