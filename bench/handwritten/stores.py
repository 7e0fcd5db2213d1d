"""Databases of the hand-written counterpart: plain sqlite3 and psycopg, and statements with `?`.

The same pragmas and the same kind of transactions as in the product, so that the durability is equal.
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

#: How long a writer of SQLite waits for another one, and after which pauses it asks again: as the product does.
_LOCK_WAIT_S: Final = 5
_BEGIN_AGAIN_S: Final = (0.0005, 0.001, 0.002)


class SqlStore(Protocol):
    """A database of either kind; statements are written with `?`."""

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """Return the first row of a query."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return all rows of a query, with the names of their columns."""

    def transaction(self) -> AbstractContextManager[Execute]:
        """Yield what runs statements within one transaction."""

    def settle(self) -> None:
        """Finish what writing much has left to be done, so that nobody else pays for it."""

    def close(self) -> None:
        """Close every connection."""


class SqliteStore:
    """One connection a process: it waits in `_begin` alone, so no greenlet meets another one's transaction."""

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

    def settle(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        gives_up_at, pauses = time.monotonic() + _LOCK_WAIT_S, iter(_BEGIN_AGAIN_S)
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                if time.monotonic() > gives_up_at:
                    raise
                time.sleep(next(pauses, _BEGIN_AGAIN_S[-1]))
            else:
                return


class PostgresStore:
    """As many connections as there are requests at once, kept between them."""

    def __init__(self, url: str) -> None:
        import psycopg  # noqa: PLC0415 - a service on SQLite leaves it out

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

    def settle(self) -> None:
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
    """Open the database at `url`, written as DATABASE_URL is."""
    return SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else PostgresStore(url)


def _named(found: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _numbered(sql: str) -> str:
    return sql.replace("?", "%s")
