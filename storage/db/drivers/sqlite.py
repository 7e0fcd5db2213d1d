"""SQLite: WAL, so that readers never wait for the writer; full synchronization; one connection for all writes.

`synchronous=FULL`, because an acknowledged request must survive a power cut. IMMEDIATE transactions, because a deferred one
that reads before it writes fails under load instead of waiting.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from peewee import Database
from playhouse.pool import PooledSqliteDatabase

from storage.db.drivers.group_commit import GroupCommit
from storage.db.drivers.shared import LOCK_WAIT_S, POOL_SIZE, POOL_WAIT_S, Row, log_statement, pooled_row, translated

#: How much of the file the writer caches; the system caches the rest. The writer runs all transactions of a process.
WRITER_CACHE_BYTES: Final = 2_048_000
#: The cache of each other connection. A worker has about twenty, which it seldom uses. Caches of 512 KB grew by 10 MB within
#: an hour.
CACHE_BYTES: Final = 128_000
#: The prepared statements that each of these connections keeps. With Python's 128, a worker grew by 25 MB within an hour.
#: The writer, which runs the long statements of `bulk_sql` again and again, keeps the 128.
CACHED_STATEMENTS: Final = 8
PRAGMAS: Final[Mapping[str, object]] = {
    "journal_mode": "wal",
    "cache_size": -CACHE_BYTES // 1024,
    "synchronous": "full",
    "foreign_keys": 1,
    # Overwrite deleted content: erased personal data must not remain in the file's free pages.
    "secure_delete": 1,
    "busy_timeout": LOCK_WAIT_S * 1000,
}


def open_sqlite(path: Path) -> Database:
    """Return the database in a file; nothing is opened yet."""
    opened: Callable[..., Database] = _Sqlite
    return opened(
        str(path),
        pragmas=dict(PRAGMAS),
        lock_type="IMMEDIATE",
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        # The pool gives a connection to one thread at a time, but not always to the one that opened it.
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )


def open_file(path: Path, options: str) -> sqlite3.Connection:
    """Open a file with a separate connection, without the pool's settings and without Python's own transactions."""
    name = quote(os.fsencode(path.absolute()))
    return sqlite3.connect(f"file:{name}?{options}", uri=True, timeout=LOCK_WAIT_S, isolation_level=None)


class _Sqlite(PooledSqliteDatabase):  # type: ignore[misc]  # playhouse has no annotations
    """Keeps two connections beside the pool's: one for single look-ups, one for writes.

    A call returns without a switch of greenlets, so that two of them never use the first connection at once; threads wait
    for each other. Since Python 3.12, two threads that run the same text over one connection may share a prepared statement,
    and one may get the row of the other.
    """

    _reader: sqlite3.Connection | None = None

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._writes = GroupCommit(self._open_writer, LOCK_WAIT_S)
        self._reading = threading.Lock()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Run the block as one transaction on the writer connection; afterwards the thread's own connection is restored."""
        with self._writes.transaction() as driver, self.manual_commit():
            state = self._state
            held = state.conn, state.closed
            try:
                state.conn, state.closed = driver, False
                yield
            finally:
                state.conn, state.closed = held

    def first_row(self, sql: str, parameters: Sequence[Any]) -> Row | None:
        try:
            with self._reading:
                found: Row | None = (self._reader or self._open_reader()).execute(sql, parameters).fetchone()
        except sqlite3.Error:
            # A connection of the pool waits for locks, and raises peewee's errors.
            return pooled_row(self, sql, parameters)
        log_statement(sql, parameters)
        return found

    def close_all(self) -> None:
        super().close_all()
        self._writes.close()
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()

    def _open_writer(self) -> sqlite3.Connection:
        with translated:
            driver = sqlite3.connect(self.database, timeout=self._timeout, isolation_level=None, check_same_thread=False)
            self._add_conn_hooks(driver)
            # `GroupCommit` does the waiting.
            driver.execute("PRAGMA busy_timeout = 0")
            driver.execute(f"PRAGMA cache_size = {-WRITER_CACHE_BYTES // 1024}")
        return driver

    def _open_reader(self) -> sqlite3.Connection:
        self._reader = sqlite3.connect(self.database, timeout=0, isolation_level=None, check_same_thread=False)
        return self._reader
