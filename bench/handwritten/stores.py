"""Databases of the hand-written routes: plain sqlite3 and psycopg; statements use `?`.

Pragmas and transactions are those of the product, so that the durability is equal.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]
Execute = Callable[[str, Sequence[Any]], Any]

#: How long a writer of SQLite waits for the lock, and its pauses between attempts: as in the product.
_LOCK_WAIT_S: Final = 5
_BEGIN_AGAIN_S: Final = (0.0005, 0.001, 0.002)


class SqlStore(Protocol):
    """A database of either kind; statements are written with `?`."""

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """Return the first row of a query."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return all rows of a query, with the names of their columns."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """Yield a function that executes statements in one transaction."""

    def checkpoint(self) -> None:
        """Write the database's write-ahead log to its tables, so that the next measurement does not have to."""

    def close(self) -> None:
        """Close every connection."""


class SqliteStore:
    """One connection per process. Only `_begin` can switch greenlets, so no greenlet runs in another one's transaction."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        for pragma in ("journal_mode = wal", "synchronous = full", "foreign_keys = 1", "secure_delete = 1"):
            self._connection.execute(f"PRAGMA {pragma}")

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        found: Row | None = self._connection.execute(sql, parameters).fetchone()
        return found

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return _named(self._connection.execute(sql))

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        self._begin()
        try:
            yield self._connection.execute
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def checkpoint(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        deadline, pauses = time.monotonic() + _LOCK_WAIT_S, iter(_BEGIN_AGAIN_S)
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(next(pauses, _BEGIN_AGAIN_S[-1]))
            else:
                return


class PostgresStore:
    """Keeps as many connections as there were concurrent requests."""

    def __init__(self, url: str) -> None:
        import psycopg  # noqa: PLC0415 - only services on PostgreSQL need it

        self._connect = partial(psycopg.connect, url, autocommit=True)
        self._idle: list[psycopg.Connection[Row]] = []

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        with self._connection() as connection:
            return connection.execute(_numbered(sql), parameters).fetchone()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with self._connection() as connection:
            return _named(connection.execute(_numbered(sql)))

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._connection() as connection, connection.transaction():
            yield lambda sql, parameters: connection.execute(_numbered(sql), parameters)

    def checkpoint(self) -> None:
        with self._connection() as connection:
            connection.execute("CHECKPOINT")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator["psycopg.Connection[Row]"]:
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)


def open_store(url: str) -> SqlStore:
    """Open the database at `url`, in the format of DATABASE_URL."""
    return SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else PostgresStore(url)


def _named(found: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _numbered(sql: str) -> str:
    return sql.replace("?", "%s")
