"""The database: opening it, connections, transactions, hot statements, and the errors that are outages.

No database is touched at import: `open_database` binds the models to a URL, by a module of `storage.db.drivers`.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import peewee
from peewee import Database, DatabaseProxy, Select, SqliteDatabase, fn
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase, PooledSqliteDatabase

from storage.db import disk_space
from storage.db.drivers.shared import LOCK_WAIT_S, Row, for_psycopg, hide_values, log_statement, translated
from storage.db.drivers.sqlite import open_sqlite

if TYPE_CHECKING:
    from storage.db.drivers.postgresql import Driver

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: The models' database; `open_database` sets it.
database: Final = DatabaseProxy()


class DatabaseFull(peewee.OperationalError):
    """A disk of the database is full: reads work, writes do not."""


#: The errors of a database that is unreachable, locked or full. Peewee translates errors of statements, but not those of
#: SQLite's later rows, which are read from the file when they are fetched.
OUTAGES: Final = (peewee.OperationalError, peewee.InterfaceError, MaxConnectionsExceeded, sqlite3.OperationalError)

#: SQLite raises exactly one of these classes for a file that is damaged or is no database. Their subclasses are outages or
#: our own errors.
DAMAGE: Final = (peewee.DatabaseError, sqlite3.DatabaseError)

#: PostgreSQL's error code for a deadlock: it rolls back one of two transactions that wait for each other.
_DEADLOCK: Final = "40P01"


def open_database(url: str, lock_wait_s: float = LOCK_WAIT_S, driver: "Driver | None" = None) -> Database:
    """Bind the models to the database at `url` and return it; nothing is connected yet.

    `url` is `sqlite:///PATH` or any URL that psycopg accepts after `postgresql://`. On PostgreSQL, a statement waits for a
    lock for `lock_wait_s` seconds at most, and `driver` is the class of the connections, by default psycopg's.
    Raises ValueError for another scheme.
    """
    if url.startswith("sqlite:///"):
        chosen = open_sqlite(Path(url.removeprefix("sqlite:///")))
    elif url.startswith(("postgresql://", "postgres://")):
        from storage.db.drivers.postgresql import open_postgresql  # noqa: PLC0415 - 7 MB that SQLite does not need

        chosen = open_postgresql("postgresql://" + url.partition("://")[2], lock_wait_s, driver)
    else:
        raise ValueError("DATABASE_URL must begin with sqlite:/// or postgresql://")
    hide_values()
    if database.obj is not None:
        close_database()
    database.initialize(chosen)
    disk_space.LAST_FULL_WRITE.clear()
    return chosen


def close_database() -> None:
    """Close every connection of this process."""
    if isinstance(database.obj, PooledSqliteDatabase | PooledPostgresqlDatabase):
        database.obj.close_all()


def is_sqlite() -> bool:
    """Return whether the open database is SQLite."""
    return isinstance(database.obj, SqliteDatabase)


@contextmanager
def connection() -> Iterator[None]:
    """Hold a pooled connection for the block and return it even after an error; use the thread's connection if it holds one.

    The pool drops a broken connection when it is returned, so that the next caller gets a new one.
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
    # Without the proxy, as in `_run`: every request calls this.
    opened = database.obj
    if not opened.is_closed():
        opened.close()


@contextmanager
def transaction() -> Iterator[None]:
    """Run the block as one transaction, or as a part of the transaction around it.

    Never call the network in the block: on SQLite, every other writer waits for it.
    """
    if database.in_transaction():
        yield
        return
    actions = _after_commit.actions = list[Callable[[], object]]()
    try:
        with database.obj.write() if is_sqlite() else database.atomic():
            yield
    except OUTAGES as outage:
        if not disk_space.is_full_error(outage):
            raise
        disk_space.LAST_FULL_WRITE.record()
        raise DatabaseFull(*outage.args) from outage
    for action in actions:
        action()


def transact(work: Callable[[], _Result]) -> _Result:
    """Return the result of `work`, run in a transaction; run it once more if PostgreSQL rolls back because of a deadlock.

    Each statement locks its rows in the order of their ids. Two statements of one transaction cannot always keep that order:
    the first statement of a postback finds out which exports the second one changes.
    """
    try:
        with transaction():
            return work()
    except peewee.OperationalError as failed:
        if not is_deadlock(failed):
            raise
    with transaction():
        return work()


def transacted(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Run each call of a function as `transact` does."""

    @wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return transact(lambda: function(*args, **kwargs))

    return run


def after_commit(action: Callable[[], object]) -> None:
    """Call `action` after the caller's transaction has committed; never if it rolls back.

    For actions that no rollback can undo, such as a wake-up. An action that is added twice is called once.
    """
    if action not in _after_commit.actions:
        _after_commit.actions.append(action)


@contextmanager
def savepoint() -> Iterator[None]:
    """Run the block as a part of the caller's transaction that is rolled back alone if it raises."""
    with database.savepoint():
        yield


@contextmanager
def planned_for_values() -> Iterator[None]:
    """Make PostgreSQL plan each statement of the block for its values: the best index for a list depends on its filters.

    A prepared statement gets one plan for all values: with a million exports, such a list took 3 s instead of 0.03.
    """
    if is_sqlite():
        yield
        return
    driver = database.connection()
    threshold, driver.prepare_threshold = driver.prepare_threshold, None
    try:
        yield
    finally:
        driver.prepare_threshold = threshold


def rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one hot statement, with `?` for its parameters, and return its rows.

    The few statements that run thousands of times a second are SQL: building them in the ORM takes longer than running them.
    """
    found: list[tuple[Any, ...]] = _run(sql, parameters).fetchall()
    return found


def first_row(sql: str, parameters: Sequence[Any]) -> Row | None:
    """Run the most frequent query, with `?` for its parameters, and return its first row; never in a transaction.

    Holds no connection afterwards. A poll takes 22 µs on SQLite; with `rows`, which gets and returns a connection, 63.
    """
    found: Row | None = database.obj.first_row(sql, parameters)
    return found


def execute(sql: str, parameters: Sequence[Any] = ()) -> int:
    """Run one hot statement, with `?` for its parameters, and return its row count."""
    return int(_run(sql, parameters).rowcount)


def values_list(columns: int, count: int) -> str:
    """Return `(?, ?), (?, ?)`: the placeholders of `count` rows of `columns` values."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * count)


def is_reachable() -> bool:
    """Return whether the database responds to a query now."""
    try:
        with connection():
            database.execute_sql("SELECT 1")
    except (*OUTAGES, *DAMAGE):
        # A file that is damaged or is no database raises an error that is not in OUTAGES.
        return False
    return True


def outage_reason(outage: BaseException) -> str:
    """Return the driver's message about an outage in one line: hosts and users, no password. Only for the operator."""
    if outage.__context__ is not None and str(outage).startswith("cannot rollback"):
        # SQLite has already rolled the transaction back; an earlier error has the cause.
        return outage_reason(outage.__context__)
    lines = str(outage).strip().splitlines() or [type(outage).__name__]
    # If there are several hosts, use the error of the last one.
    line = lines[-1] if lines[0].startswith("Multiple connection attempts") else lines[0]
    return line.strip().removeprefix("connection failed: ").removeprefix("connection is bad: ")


def database_folders() -> list[Path]:
    """Return the folder of SQLite's file; none for PostgreSQL, whose folders are on its server."""
    return [Path(database.obj.database).parent] if is_sqlite() else []


def location_hint() -> str:
    """Return what to check if the database is unreachable: SQLite's file or folder, or the setting that names PostgreSQL."""
    if not is_sqlite():
        return "DATABASE_URL"
    folder = missing_folder()
    return (
        f"{folder}, a folder that does not exist"
        if folder
        else f"{database.obj.database}, its owner and the free space there"
    )


def missing_folder() -> Path | None:
    """Return the folder of SQLite's file if it does not exist."""
    folder = Path(database.obj.database).parent if is_sqlite() else None
    # If this user may not enter the parent folder, it is unknown whether the folder exists.
    with suppress(OSError):
        return folder if folder and not folder.is_dir() else None
    return None


def describe_url(url: str) -> str:
    """Return the kind, host and name of the database at a URL, and nothing else of the URL."""
    if url.startswith("sqlite:///"):
        return f"SQLite, {url.removeprefix('sqlite:///')}"
    from storage.db.drivers.postgresql import describe  # noqa: PLC0415 - as in `open_database`

    return describe("postgresql://" + url.partition("://")[2])


def server_version() -> str:
    """Return the version of the open database's engine."""
    number = (
        Select(columns=[fn.sqlite_version() if is_sqlite() else fn.current_setting("server_version")])
        .bind(database)
        .scalar()
    )
    return f"{'SQLite' if is_sqlite() else 'PostgreSQL'} {number}"


def is_pooled() -> bool:
    """Return whether a pooler such as PgBouncer is between the caller's connection and PostgreSQL."""
    return not is_sqlite() and database.connection().prepare_threshold is None


@contextmanager
def second_connection() -> Iterator[Callable[..., Any]]:
    """Open another connection to PostgreSQL beside the caller's; yield a function that runs a statement on it."""
    opened = database.obj
    with translated:
        driver = opened._connect()

    def run(sql: str, *parameters: Any) -> Any:
        with translated:
            return driver.execute(sql, parameters)

    try:
        yield run
    finally:
        opened._close(driver)


def is_deadlock(failed: BaseException) -> bool:
    """Return whether PostgreSQL rolled a transaction back because of a deadlock."""
    return sqlstate_of(failed) == _DEADLOCK


def sqlstate_of(failed: BaseException) -> str | None:
    """Return PostgreSQL's code of an error; None on SQLite."""
    return getattr(failed.__cause__ or failed.__context__, "sqlstate", None)


def _run(sql: str, parameters: Sequence[Any]) -> Any:
    # Without the proxy and peewee's execute_sql, whose look-ups take as long as a short statement.
    opened = database.obj
    statement = sql if isinstance(opened, SqliteDatabase) else for_psycopg(sql)
    log_statement(statement, parameters)
    with translated:
        return opened.connection().execute(statement, parameters)


class _AfterCommit(threading.local):
    """The actions to call after the commit of this thread's transaction."""

    actions: list[Callable[[], object]]


_after_commit: Final = _AfterCommit()
