"""Copies of SQLite databases: taken while others write, checked, and put back.

A copy is made within one read transaction. SQLite's write-ahead log keeps that moment for it, so writers go on and the copy
never begins anew, however long it takes; only the log cannot be emptied meanwhile. The copy is one file that needs no log
beside it. It is put back by the same means, as one transaction of SQLite's on the database that stands there: processes that
have it open see the old database or the new one, never a new file with an old log. A database that cannot be read is moved
aside instead.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from runtime.fsync import sync
from storage.db.engine import LOCK_WAIT_S

#: 4 MiB at usual page sizes: a fraction of a second between two looks at the progress bar, and no time lost between them.
PAGES_A_STEP: Final = 1024
#: Between two tries to get a lock on what is written to.
_TRY_AGAIN_S: Final = 0.05
#: For the lock on a database that is replaced: whoever still has it open is idle, or was overlooked.
_IN_PLACE_WITHIN_S: Final = 10.0

#: What a log is called beside its database.
LOGS: Final = ("-wal", "-shm", "-journal")

#: Told how many pages are left, and of how many.
Progress = Callable[[int, int], None]


class DamagedCopy(Exception):
    """A file is no SQLite database, or not a whole one; the message says what is wrong with it."""


def take(database: Path, copy: Path, told: Progress) -> None:
    """Copy a database as it is at this moment to the empty file `copy`, and check it. Raises DamagedCopy, sqlite3.Error."""
    with closing(_connected(database, "rw")) as source, closing(sqlite3.connect(copy, isolation_level=None)) as target:
        # What is not whole is thrown away, so nothing has to lead back; it is synced when it is whole.
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("PRAGMA synchronous = OFF")
        # The snapshot: held open, so that a writer's commit does not make the copy begin anew.
        source.execute("BEGIN")
        source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        _copy(source, target, told)
        # Not a log of its own beside it: a copy is one file, and opens where nothing can be written.
        target.execute("PRAGMA journal_mode = DELETE")
    require_whole(copy)
    sync(copy)


def require_whole(path: Path) -> None:
    """Read a database from end to end. Raises DamagedCopy."""
    with opened(path) as connection:
        try:
            [(verdict,), *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        except sqlite3.DatabaseError as damaged:
            raise DamagedCopy(str(damaged)) from damaged
    if verdict != "ok":
        raise DamagedCopy(verdict.partition("\n")[0])


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy to read from; nothing is written, neither to it nor beside it."""
    with closing(_connected(path, "ro", "&immutable=1")) as connection:
        yield connection


def copy_of_copy(copy: Path, beside: Path) -> None:
    """Copy a copy, to be changed there before it is put in place."""
    with opened(copy) as source, closing(sqlite3.connect(beside, isolation_level=None)) as target:
        _copy(source, target)


def put_in_place(prepared: Path, database: Path) -> None:
    """Let a prepared copy be the database: all of it in one transaction, or nothing. Raises sqlite3.OperationalError."""
    with closing(_connected(prepared, "rw")) as source:
        # What its log holds is part of it.
        source.execute("PRAGMA journal_mode = DELETE")
    if not database.exists():
        _move(prepared, database)
        return
    with opened(prepared) as source, closing(_connected(database, "rw")) as target:
        _copy(source, target)
        # It may be as long as the database itself; somebody who still reads keeps it, and its next writer empties it.
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    prepared.unlink()


def set_aside(database: Path, aside: Path) -> None:
    """Move a database that cannot be read out of the way, its log with it."""
    for end in LOGS:
        log = Path(f"{database}{end}")
        if log.exists():
            log.rename(f"{aside}{end}")
    database.rename(aside)
    aside.chmod(0o600)
    sync(aside.parent)


def _move(prepared: Path, database: Path) -> None:
    for end in LOGS:
        # The log of a database that is gone would be read into this one.
        Path(f"{database}{end}").unlink(missing_ok=True)
    sync(prepared)
    prepared.rename(database)
    sync(database.parent)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, told: Progress = lambda _left, _of: None) -> None:
    """Copy page by page. Raises sqlite3.OperationalError where the target stays locked."""
    gives_up_at = time.monotonic() + _IN_PLACE_WITHIN_S

    def look(status: int, left: int, of: int) -> None:
        nonlocal gives_up_at
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            if time.monotonic() > gives_up_at:
                raise sqlite3.OperationalError("database is locked")
            return
        gives_up_at = time.monotonic() + _IN_PLACE_WITHIN_S
        told(left, of)

    source.backup(target, pages=PAGES_A_STEP, progress=look, sleep=_TRY_AGAIN_S)


def _connected(path: Path, mode: str, more: str = "") -> sqlite3.Connection:
    # Without Python's own transactions: they would begin where none is wanted.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{more}", uri=True, timeout=LOCK_WAIT_S, isolation_level=None
    )
