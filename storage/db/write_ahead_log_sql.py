"""SQLite's write-ahead log, `riskrelay.db-wal`: deleted data stays in it until it is emptied or overwritten."""

from typing import Final

from storage.db.drivers.shared import LOCK_WAIT_S
from storage.db.engine import is_sqlite, rows

#: Writers wait while the log is being emptied.
_WAIT_MS: Final = 250


def empty() -> None:
    """Empty the log, so that no deleted data stays in it; PostgreSQL's server rotates its own log.

    If a reader or a writer keeps the log busy, it is not emptied. Needs a connection without a transaction.
    """
    if not is_sqlite():
        return
    rows(f"PRAGMA busy_timeout = {_WAIT_MS}")
    try:
        rows("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        rows(f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}")
