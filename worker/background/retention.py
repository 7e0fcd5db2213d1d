"""Removes what has been over for long enough: a small batch at a time, hour by hour, so that nobody has to think of it.

One worker at a time does it; where `prune` or another worker is at it, this one leaves it to them until the next hour.
Between two batches it lets others have their turn, and a worker that is told to stop ends after the batch in hand.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from storage.db import locks
from storage.db.engine import connection
from storage.db.locks import Lock
from storage.maintenance import retention
from storage.maintenance.retention import Cutoffs

#: What is a day or an hour over its time does no harm; a look that finds nothing is a step of an index a table.
LOOK_EVERY: Final = timedelta(hours=1)
#: How soon it notices that an hour is over.
ASK_EVERY_S: Final = 60.0
#: Nothing goes before a machine that was just started had the time to set its clock: one that is years ahead would empty
#: the database.
FIRST_LOOK_AFTER: Final = timedelta(minutes=10)
#: Some 10 ms of work and then this: deliveries have nine tenths of SQLite's one writer.
_BREATH_S: Final = 0.1

_log: Final = logging.getLogger(__name__)


class RetentionTask:
    """Removes the next batch each time it is asked, until nothing is left, and begins again an hour later."""

    def __init__(self, cutoffs: Callable[[datetime], Cutoffs], worker: str, now: Callable[[], datetime]) -> None:
        self._cutoffs = cutoffs
        self._worker = worker
        self._now = now
        self._rest_began_at = now()
        self._rest = FIRST_LOOK_AFTER
        self._batches: Iterator[Counter[str]] | None = None
        self._removed = 0

    def run_once(self) -> bool:
        """Remove the next batch where it is time to; tell whether there may be more."""
        if self._batches is None and not self._is_rested():
            return False
        # Whatever breaks this batch off, the next look begins anew.
        batches, self._batches = self._batches or retention.removed(self._cutoffs(self._now())), None
        gone = self._next(batches)
        if gone is None:
            self._rest_for_an_hour()
            return False
        self._removed += gone.total()
        self._batches = batches
        time.sleep(_BREATH_S)
        return True

    def _is_rested(self) -> bool:
        """Tell whether the rest is over; a clock that was set back does not make it longer."""
        return not timedelta(0) <= self._now() - self._rest_began_at < self._rest

    def _next(self, batches: Iterator[Counter[str]]) -> Counter[str] | None:
        """Return what went with the next batch; None where nothing is left or somebody else is at it."""
        try:
            with connection(), locks.exclusive(Lock.PRUNE):
                return next(batches, None)
        except locks.LockBusy:
            return None

    def _rest_for_an_hour(self) -> None:
        if self._removed:
            _log.info("removed what was over", extra={"worker": self._worker, "count": self._removed})
        self._rest_began_at, self._rest, self._removed = self._now(), LOOK_EVERY, 0
