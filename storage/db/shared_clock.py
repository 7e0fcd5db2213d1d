"""The clock that the workers of several hosts go by: PostgreSQL's.

A lease is a moment that one worker writes and all the others compare. One whose own clock is a minute ahead would take every
lease for lapsed and send everything a second time, so each compares its clock with the database's and goes by the latter. A
SQLite file has one host, and that host one clock.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from storage.db.engine import is_sqlite, rows

#: Leases last seconds: clocks that are as close as this are one clock, and a host whose time is kept never notices.
CLOSE: Final = timedelta(milliseconds=250)
#: What the doctor warns of as well.
FAR: Final = timedelta(seconds=2)

_log: Final = logging.getLogger(__name__)


class SharedClock:
    """Tells the time as this process reads it by `own`, put right by what the database showed last."""

    def __init__(self, own: Callable[[], datetime]) -> None:
        self._own = own
        self._ahead = timedelta()

    def now(self) -> datetime:
        """Return the instant that the database's clock shows, nearly."""
        return self._own() + self._ahead

    def compare(self) -> None:
        """Look at the database's clock; the caller holds a connection."""
        if is_sqlite():
            return
        asked_at = self._own()
        [(shown,)] = rows("SELECT clock_timestamp()")
        half_way = (self._own() - asked_at) / 2
        ahead = shown - (asked_at + half_way)
        # When within the question the clock was read, nobody knows.
        if abs(ahead - self._ahead) > CLOSE + abs(half_way):
            self._ahead = ahead if abs(ahead) > CLOSE else timedelta()
            self._tell(ahead)

    def _tell(self, ahead: timedelta) -> None:
        if abs(ahead) > FAR:
            _log.warning("this host's clock is off by %d s, going by the database's; see to its NTP", -ahead.total_seconds())
        else:
            _log.info("this host's clock is that of the database, by %d ms", ahead / timedelta(milliseconds=1))
