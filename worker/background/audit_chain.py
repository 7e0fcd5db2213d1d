"""Chains new entries of the audit log, and writes an anchor of the chain to the log once a day.

One process at a time chains; while another worker or a command does, this task skips its run. Chained entries cannot be
changed unnoticed, so the pause between two runs is how long a change stays possible.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from storage.accounts import audit_chain
from storage.db import locks
from storage.db.engine import connection
from storage.db.locks import Lock

#: How long an entry waits; more entries in one transaction cost fewer syncs of the disk.
POLL_S: Final = 5.0
#: Wake-ups, which come with every approval, begin no run sooner.
_RUN_EVERY: Final = timedelta(seconds=POLL_S - 1)
_ANCHOR_EVERY: Final = timedelta(days=1)
#: Between two batches of many: nine tenths of SQLite's one writer are left for deliveries.
_PAUSE_S: Final = 0.1

_log: Final = logging.getLogger(__name__)


class AuditChainTask:
    """Chains a batch per call until nothing is left, and begins again some seconds later."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._ended_at: datetime | None = None
        self._anchored_at: datetime | None = None

    def run_once(self) -> bool:
        """Chain the next batch if a run is due; return whether there may be more."""
        if not self._is_over(self._ended_at, _RUN_EVERY):
            return False
        with connection():
            # Reading takes no lock; of several workers, most calls of all but one end here.
            if audit_chain.has_unchained() and self._extend() == audit_chain.BATCH:
                time.sleep(_PAUSE_S)
                return True
            if self._is_over(self._anchored_at, _ANCHOR_EVERY):
                self._anchor()
        self._ended_at = self._now()
        return False

    def _is_over(self, since: datetime | None, pause: timedelta) -> bool:
        """Return whether a pause is over; a clock that was set back does not make it longer."""
        return since is None or not timedelta(0) <= self._now() - since < pause

    def _anchor(self) -> None:
        head = audit_chain.head()
        if head.position:
            self._anchored_at = self._now()
            _log.info("audit log anchor %d:%s", *head)

    @staticmethod
    def _extend() -> int:
        try:
            with locks.exclusive(Lock.AUDIT):
                return audit_chain.extend()
        except locks.LockBusy:
            return 0
