"""The clock that the workers of several hosts share: PostgreSQL's.

One worker writes the time at which a lease expires, and all others compare it with their clock. A worker whose own clock is
a minute ahead would treat every lease as expired and send everything a second time. So each worker compares its clock with
the database's and uses the latter. A SQLite file has one host, and the host has one clock.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from peewee import Select, fn

from storage.db.engine import database, is_sqlite

#: A difference that changes by less is not logged: a host with NTP never exceeds it.
CLOSE: Final = timedelta(milliseconds=250)
#: From this difference on, the log and `doctor` warn.
FAR: Final = timedelta(seconds=2)

_log: Final = logging.getLogger(__name__)


def ahead_of(own: Callable[[], datetime]) -> tuple[timedelta, timedelta]:
    """Return by how much PostgreSQL's clock is ahead of the clock `own`, and the uncertainty of that value."""
    started_at = own()
    database_time: datetime = Select(columns=[fn.clock_timestamp()]).bind(database).scalar()
    # PostgreSQL reads its clock at an unknown time during the query.
    half_way = (own() - started_at) / 2
    return database_time - (started_at + half_way), abs(half_way)


class SharedClock:
    """The time of this process's clock `own`, corrected by the last comparison with the database's."""

    def __init__(self, own: Callable[[], datetime]) -> None:
        self._own = own
        self._ahead = self._logged = timedelta()

    def now(self) -> datetime:
        """Return approximately the time of the database's clock."""
        return self._own() + self._ahead

    def compare(self) -> None:
        """Compare with the database's clock; the caller holds a connection."""
        if is_sqlite():
            return
        ahead, uncertainty = ahead_of(self._own)
        # Also by milliseconds: by a clock that is ahead, the pause that a receiver asked for would end too early.
        if abs(ahead - self._ahead) > uncertainty:
            self._ahead = ahead if abs(ahead) > uncertainty else timedelta()
        if abs(ahead - self._logged) > CLOSE + uncertainty:
            self._logged = ahead if abs(ahead) > CLOSE else timedelta()
            self._log_difference(ahead)

    def _log_difference(self, ahead: timedelta) -> None:
        if abs(ahead) > FAR:
            _log.warning(
                "this host's clock is off by %d s, using the database's time; check this host's NTP", -ahead.total_seconds()
            )
        else:
            _log.info("this host's clock agrees with the database's, %d ms apart", ahead / timedelta(milliseconds=1))
