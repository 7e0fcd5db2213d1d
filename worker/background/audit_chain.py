"""Chains new entries of the audit log, and writes an anchor of the chain to the log once a day.

One process at a time chains; while another worker or a command does, this task skips its run. Chained entries cannot be
changed unnoticed, so an unnoticed change is possible only until the next run.
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
_ANCHOR_EVERY: Final = timedelta(days=1)
#: The pause between two batches: it leaves nine tenths of SQLite's one writer to deliveries.
_PAUSE_S: Final = 0.1

_log: Final = logging.getLogger(__name__)


class AuditChainTask:
    """Chains a batch per call until nothing is left."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._anchored_at: datetime | None = None

    def run_once(self) -> bool:
        """Chain the next batch; return whether there may be more."""
        with connection():
            # Reading takes no lock. With several workers, most calls of all workers but one end here.
            if audit_chain.has_unchained() and self._extend() == audit_chain.BATCH:
                time.sleep(_PAUSE_S)
                return True
            self._anchor_once_a_day()
        return False

    def _anchor_once_a_day(self) -> None:
        """Log an anchor if a day has passed; setting the clock back does not delay it."""
        if self._anchored_at is not None and timedelta(0) <= self._now() - self._anchored_at < _ANCHOR_EVERY:
            return
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
