"""SQLite's write-ahead log, `riskrelay.db-wal`: what was deleted stays in it until it is emptied or overwritten."""

from typing import Final

from storage.db.drivers.shared import LOCK_WAIT_S
from storage.db.engine import is_sqlite, rows

#: Writers wait as long as the log is being emptied.
_WAIT_MS: Final = 250


def empty() -> None:
    """Empty the log, so that nothing of deleted data stays in it; PostgreSQL's server rotates its own.

    While a reader or a writer keeps it busy, it stays as it is. Needs a connection without a transaction.
    """
    if not is_sqlite():
        return
    rows(f"PRAGMA busy_timeout = {_WAIT_MS}")
    try:
        rows("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        rows(f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}")
