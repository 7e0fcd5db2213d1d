"""The database: how it is opened, how a transaction is taken, what counts as an outage.

SQLite: WAL, so that readers never wait for the writer; `synchronous=FULL`, because an acknowledged request must survive a
power cut; IMMEDIATE transactions, because a deferred one that reads before it writes fails under load instead of waiting.
PostgreSQL: pooled connections. Neither is touched at import: `open_database` binds the models to a URL.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import peewee
from peewee import Database, DatabaseProxy, SqliteDatabase
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase, PooledSqliteDatabase

#: The models' database; `open_database` decides which one it is.
database: Final = DatabaseProxy()

#: What a caller sees when the database is away, locked or full.
OUTAGES: Final = (peewee.OperationalError, peewee.InterfaceError, MaxConnectionsExceeded)

#: How long a statement waits for another writer before it gives up; clients are told 503 then.
LOCK_WAIT_S: Final = 5

#: Connections one process may hold; a request waits for one up to POOL_WAIT_S.
POOL_SIZE: Final = 32
POOL_WAIT_S: Final = 5

_SQLITE_PRAGMAS: Final[Mapping[str, object]] = {
    "journal_mode": "wal",
    "synchronous": "full",
    "foreign_keys": 1,
    "busy_timeout": LOCK_WAIT_S * 1000,
}

# SQLite has one writer at a time. Threads of one process that queue here wake in order, at once; in SQLite's own busy
# handler they would sleep and poll. It guards nothing that SQLite does not guard itself.
_sqlite_turn: Final = threading.Lock()

#: A commit to disk takes a few milliseconds: who asks again this often loses little of a turn.
_BEGIN_AGAIN_S: Final = 0.002
#: The low byte of an extended result code of SQLite.
_PRIMARY_CODE: Final = 0xFF


def open_database(url: str) -> Database:
    """Bind the models to the database at `url` and return it; nothing is connected yet.

    `url` is `sqlite:///PATH` or anything psycopg takes after `postgresql://`. Raises ValueError for another scheme.
    """
    if url.startswith("sqlite:///"):
        chosen = _sqlite(Path(url.removeprefix("sqlite:///")))
    elif url.startswith(("postgresql://", "postgres://")):
        chosen = _postgresql("postgresql://" + url.partition("://")[2])
    else:
        raise ValueError("A database URL begins with sqlite:/// or postgresql://")
    # At DEBUG peewee writes every statement with its values, whatever they are.
    logging.getLogger("peewee").setLevel(logging.WARNING)
    if database.obj is not None:
        close_database()
    database.initialize(chosen)
    return chosen


def close_database() -> None:
    """Close every connection of this process."""
    if isinstance(database.obj, PooledSqliteDatabase | PooledPostgresqlDatabase):
        database.obj.close_all()


def is_sqlite() -> bool:
    """Tell whether the open database is SQLite."""
    return isinstance(database.obj, SqliteDatabase)


@contextmanager
def connection() -> Iterator[None]:
    """Hold one pooled connection for the work inside, and give it back whatever happens; inside another one it joins it.

    The pool drops a broken connection when it comes back, so that the next user gets a fresh one.
    """
    if not database.is_closed():
        yield
        return
    database.connect()
    try:
        yield
    finally:
        release()


def release() -> None:
    """Give this thread's connection back to the pool, if it holds one."""
    if not database.is_closed():
        database.close()


@contextmanager
def transaction() -> Iterator[None]:
    """Run the work inside as one transaction; inside another one it simply joins it.

    Never call the network from inside: on SQLite every other writer is waiting.
    """
    if database.in_transaction():
        yield
        return
    with _sqlite_write() if is_sqlite() else database.atomic():
        yield


def rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one hot statement, written with `?` for parameters, and return its rows.

    The few statements that run thousands of times a second are SQL: building them in the ORM costs more than running them.
    """
    return list(database.execute_sql(_native(sql), parameters).fetchall())


def execute(sql: str, parameters: Sequence[Any] = ()) -> int:
    """Run one hot statement, written with `?` for parameters, and return how many rows it touched."""
    return int(database.execute_sql(_native(sql), parameters).rowcount)


def values_list(columns: int, count: int) -> str:
    """Return `(?, ?), (?, ?)`: the place of `count` rows of `columns` values in a statement."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * count)


def for_update_skip_locked() -> str:
    """Return the clause by which two PostgreSQL claimers never wait for each other; SQLite has one writer and needs none."""
    return "" if is_sqlite() else " FOR UPDATE OF e SKIP LOCKED"


def is_reachable() -> bool:
    """Tell whether a query is answered now."""
    try:
        with connection():
            database.execute_sql("SELECT 1")
    except (*OUTAGES, peewee.DatabaseError):
        # A file that is damaged or no database at all answers nothing either.
        return False
    return True


def _native(sql: str) -> str:
    return sql if is_sqlite() else sql.replace("?", "%s")


@contextmanager
def _sqlite_write() -> Iterator[None]:
    """Take this process's turn, then SQLite's write lock; both together come within LOCK_WAIT_S or not at all."""
    gives_up_at = time.monotonic() + LOCK_WAIT_S
    if not _sqlite_turn.acquire(timeout=LOCK_WAIT_S):
        raise peewee.OperationalError("database is locked")
    try:
        with ExitStack() as transaction_begun:
            while not _has_begun(transaction_begun, is_last=time.monotonic() > gives_up_at):
                time.sleep(_BEGIN_AGAIN_S)
            yield
    finally:
        _sqlite_turn.release()


def _has_begun(stack: ExitStack, *, is_last: bool) -> bool:
    """Try to begin without waiting: SQLite's own wait would stop every greenlet of this process, not this one alone."""
    database.execute_sql("PRAGMA busy_timeout = 0")
    try:
        stack.enter_context(database.atomic())
    except peewee.OperationalError as failed:
        if is_last or not _is_busy(failed):
            raise
        return False
    finally:
        database.execute_sql(f"PRAGMA busy_timeout = {_SQLITE_PRAGMAS['busy_timeout']}")
    return True


def _is_busy(failed: peewee.OperationalError) -> bool:
    code: int = getattr(failed.__cause__ or failed.__context__, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & _PRIMARY_CODE == sqlite3.SQLITE_BUSY


def _sqlite(path: Path) -> Database:
    opened: Callable[..., Database] = PooledSqliteDatabase
    return opened(
        str(path),
        pragmas=dict(_SQLITE_PRAGMAS),
        lock_type="IMMEDIATE",
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        # The pool hands a connection to one thread at a time, but not always to the one that opened it.
        check_same_thread=False,
    )


def _postgresql(url: str) -> Database:
    opened: Callable[..., Database] = PooledPostgresqlDatabase
    return opened(
        url,
        prefer_psycopg3=True,
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        connect_timeout=LOCK_WAIT_S,
        options=f"-c lock_timeout={LOCK_WAIT_S * 1000}",
    )
