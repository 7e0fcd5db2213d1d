"""The database: opening it, connections, transactions, hot statements, and the errors that are outages.

No database is touched at import: `open_database` binds the models to a URL, by a module of `storage.db.drivers`.
"""

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


#: The errors of a database that is away, locked or full.
OUTAGES: Final = (peewee.OperationalError, peewee.InterfaceError, MaxConnectionsExceeded)

#: SQLite raises exactly this class for a file that is damaged or no database; its subclasses are outages, or errors of ours.
DAMAGE: Final = peewee.DatabaseError

#: PostgreSQL's code of an error by which it ends one of two transactions that wait for each other.
_DEADLOCK: Final = "40P01"


def open_database(url: str, lock_wait_s: float = LOCK_WAIT_S, driver: "Driver | None" = None) -> Database:
    """Bind the models to the database at `url` and return it; nothing is connected yet.

    `url` is `sqlite:///PATH` or anything psycopg takes after `postgresql://`; for a lock of the latter a statement waits
    `lock_wait_s` seconds at most, and `driver` is the class of its connections, by default psycopg's.
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
    disk_space.LAST_FULL_WRITE.forget()
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
    """Hold one pooled connection for the block, and return it whatever happens; inside another one, use that one.

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
    # Not through the proxy, as in `_run`: every request passes here.
    opened = database.obj
    if not opened.is_closed():
        opened.close()


@contextmanager
def transaction() -> Iterator[None]:
    """Run the block as one transaction, or as a part of the transaction around it.

    Never call the network in the block: on SQLite every other writer is waiting.
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
        disk_space.LAST_FULL_WRITE.note()
        raise DatabaseFull(*outage.args) from outage
    for action in actions:
        action()


def transact(work: Callable[[], _Result]) -> _Result:
    """Return the result of `work`, run in a transaction; once more if PostgreSQL ends that because of a deadlock.

    A statement locks rows in the order of their ids. Two statements of a transaction cannot always: a postback learns from
    the first which exports the second concerns.
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
    """Call `action` when the caller's transaction has committed; never if it rolls back.

    For what no rollback undoes, such as a wake-up. A repeated action is called once.
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
    """Let PostgreSQL plan each statement of the block for its values: the best index for a list depends on its filters.

    Prepared statements get one plan for all values: with a million exports, a list took 3 s with it instead of 0.03.
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
    """Run one hot statement, written with `?` for parameters, and return its rows.

    The few statements that run thousands of times a second are SQL: building them in the ORM costs more than running them.
    """
    found: list[tuple[Any, ...]] = _run(sql, parameters).fetchall()
    return found


def first_row(sql: str, parameters: Sequence[Any]) -> Row | None:
    """Run the most frequent query, written with `?` for parameters, and return its first row; never in a transaction.

    Holds no connection afterwards. A poll takes 22 µs on SQLite; by `rows`, with taking and returning a connection, 63.
    """
    found: Row | None = database.obj.first_row(sql, parameters)
    return found


def execute(sql: str, parameters: Sequence[Any] = ()) -> int:
    """Run one hot statement, written with `?` for parameters, and return how many rows it touched."""
    return int(_run(sql, parameters).rowcount)


def values_list(columns: int, count: int) -> str:
    """Return `(?, ?), (?, ?)`: the place of `count` rows of `columns` values in a statement."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * count)


def is_reachable() -> bool:
    """Return whether the database answers a query now."""
    try:
        with connection():
            database.execute_sql("SELECT 1")
    except (*OUTAGES, peewee.DatabaseError):
        # A file that is damaged, or no database, does not answer either.
        return False
    return True


def outage_reason(outage: BaseException) -> str:
    """Return the driver's message about an outage in one line: hosts and users, no password; for the operator alone."""
    if outage.__context__ is not None and str(outage).startswith("cannot rollback"):
        # SQLite rolled the transaction back by itself; the cause came before.
        return outage_reason(outage.__context__)
    lines = str(outage).strip().splitlines() or [type(outage).__name__]
    # Of several hosts, the last one.
    line = lines[-1] if lines[0].startswith("Multiple connection attempts") else lines[0]
    return line.strip().removeprefix("connection failed: ").removeprefix("connection is bad: ")


def database_folders() -> list[Path]:
    """Return the folder of SQLite's file; PostgreSQL's are on its server."""
    return [Path(database.obj.database).parent] if is_sqlite() else []


def location_hint() -> str:
    """Return what to check when the database is away: SQLite's file or folder, or the setting that names PostgreSQL."""
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
    # Of a folder that this user may not enter, nothing can be said.
    with suppress(OSError):
        return folder if folder and not folder.is_dir() else None
    return None


def describe_url(url: str) -> str:
    """Return the kind, host and name of the database of a URL, and nothing else of the URL."""
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
    """Hold another connection to PostgreSQL beside the caller's; yields a function that runs a statement on it."""
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
    """Return whether PostgreSQL ended a transaction because of a deadlock."""
    return sqlstate_of(failed) == _DEADLOCK


def sqlstate_of(failed: BaseException) -> str | None:
    """Return PostgreSQL's code of an error; None on SQLite."""
    return getattr(failed.__cause__ or failed.__context__, "sqlstate", None)


def _run(sql: str, parameters: Sequence[Any]) -> Any:
    # Without the proxy and peewee's execute_sql: their look-ups take as long as a short statement.
    opened = database.obj
    statement = sql if isinstance(opened, SqliteDatabase) else for_psycopg(sql)
    log_statement(statement, parameters)
    with translated:
        return opened.connection().execute(statement, parameters)


class _AfterCommit(threading.local):
    """The actions of this thread's transaction."""

    actions: list[Callable[[], object]]


_after_commit: Final = _AfterCommit()
