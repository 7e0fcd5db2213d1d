"""Copies of SQLite databases: taken while other processes write, checked, and restored.

A copy is made within one read transaction. SQLite's write-ahead log keeps that state, so writers continue and the copy never
restarts, however long it takes; but the log cannot be emptied meanwhile. The copy is one file without a log. It replaces a
database in one transaction of SQLite: processes that have the database open see the old data or the new data, never a new
file with an old log. A database that cannot be read is renamed instead.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from runtime.files import sync
from storage.db.drivers.sqlite import open_file

#: 4 MiB at usual page sizes: a fraction of a second between two updates of the progress bar.
PAGES_A_STEP: Final = 1024
_RETRY_INTERVAL_S: Final = 0.05
#: How long a copy waits for a lock on the database that it replaces: a process that still has it open is idle, or was
#: overlooked.
_LOCK_WAIT_S: Final = 10.0

#: The suffixes of the files beside a database.
LOGS: Final = ("-wal", "-shm", "-journal")

#: Called with the number of remaining pages and of all pages.
Progress = Callable[[int, int], None]


class DamagedCopy(Exception):
    """A file is not a complete SQLite database; the message gives the damage."""


def take(database: Path, copy: Path, progress: Progress) -> None:
    """Copy a database in its present state to the empty file `copy`; check the copy. Raises DamagedCopy, sqlite3.Error."""
    with closing(open_file(database, "mode=rw")) as source, closing(sqlite3.connect(copy, isolation_level=None)) as target:
        # An incomplete copy is deleted, so it needs no rollback journal; a complete one is synced below.
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("PRAGMA synchronous = OFF")
        # The read transaction stays open, so that a writer's commit does not restart the copy.
        source.execute("BEGIN")
        source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        _copy(source, target, progress)
        # Without a log, the copy is one file and can be opened on a read-only disk.
        target.execute("PRAGMA journal_mode = DELETE")
    require_intact(copy)
    sync(copy)


def require_intact(path: Path) -> None:
    """Read a database from end to end. Raises DamagedCopy."""
    with opened(path) as connection:
        try:
            [(verdict,), *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        except sqlite3.DatabaseError as damaged:
            raise DamagedCopy(str(damaged)) from damaged
    if verdict != "ok":
        raise DamagedCopy(verdict.partition("\n")[0])


def opened(path: Path) -> closing[sqlite3.Connection]:
    """Open a copy for reading, in a mode that writes neither to it nor beside it."""
    return closing(open_file(path, "mode=ro&immutable=1"))


def rows_of(copy: Path, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Read columns of a table of a copy; a missing table has no rows."""
    with opened(copy) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
            for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):  # noqa: S608 - our own names
                yield dict(zip(columns, row, strict=True))


def copy_of_copy(copy: Path, beside: Path) -> None:
    """Copy a backup to the file `beside`, which may be changed before it replaces the database."""
    with opened(copy) as source, closing(sqlite3.connect(beside, isolation_level=None)) as target:
        _copy(source, target)


def put_in_place(prepared: Path, database: Path) -> None:
    """Replace the database by a prepared copy in one transaction. Raises sqlite3.OperationalError."""
    with closing(open_file(prepared, "mode=rw")) as source:
        # The copy's log may contain a part of its data.
        source.execute("PRAGMA journal_mode = DELETE")
    if not database.exists():
        _move_into_place(prepared, database)
        return
    with opened(prepared) as source, closing(open_file(database, "mode=rw")) as target:
        _copy(source, target)
        # The log may now be as large as the database. If another process still reads it, or the disk is full, a later writer
        # empties it: the database is replaced.
        with suppress(sqlite3.OperationalError):
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    prepared.unlink()


def set_aside(database: Path, aside: Path) -> None:
    """Rename a database that cannot be read, and its log."""
    for end in LOGS:
        log = Path(f"{database}{end}")
        if log.exists():
            log.rename(f"{aside}{end}")
    database.rename(aside)
    aside.chmod(0o600)
    sync(aside.parent)


def _move_into_place(prepared: Path, database: Path) -> None:
    for end in LOGS:
        # If the database is missing but its old log exists, SQLite would apply that log to the copy.
        Path(f"{database}{end}").unlink(missing_ok=True)
    sync(prepared)
    prepared.rename(database)
    sync(database.parent)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, progress: Progress = lambda _left, _of: None) -> None:
    """Copy page by page. Raises sqlite3.OperationalError if the target stays locked."""
    gives_up_at = time.monotonic() + _LOCK_WAIT_S

    def step(status: int, left: int, of: int) -> None:
        nonlocal gives_up_at
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            if time.monotonic() > gives_up_at:
                raise sqlite3.OperationalError("database is locked")
            return
        gives_up_at = time.monotonic() + _LOCK_WAIT_S
        progress(left, of)

    source.backup(target, pages=PAGES_A_STEP, progress=step, sleep=_RETRY_INTERVAL_S)
