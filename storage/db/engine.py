"""The database: opening it, connections, transactions, hot statements, and the errors that are outages.

SQLite: WAL, so that readers never wait for the writer; `synchronous=FULL`, because an acknowledged request must survive a
power cut; IMMEDIATE transactions, because a deferred one that reads before it writes fails under load instead of waiting.
PostgreSQL: pooled connections. Neither is touched at import: `open_database` binds the models to a URL.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import peewee
import psycopg
from peewee import Database, DatabaseProxy, Select, SqliteDatabase, fn
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase, PooledSqliteDatabase
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from storage.db import disk_space
from storage.db.group_commit import GroupCommit

Row = tuple[Any, ...]
Driver: TypeAlias = type[psycopg.Connection[Any]]

#: The models' database; `open_database` sets it.
database: Final = DatabaseProxy()


class DatabaseFull(peewee.OperationalError):
    """A disk of the database is full: reads work, writes do not."""


#: The errors of a database that is away, locked or full.
OUTAGES: Final = (peewee.OperationalError, peewee.InterfaceError, MaxConnectionsExceeded)

#: SQLite raises exactly this class for a file that is damaged or no database; its subclasses are outages, or errors of ours.
DAMAGE: Final = peewee.DatabaseError

#: How long a statement waits for another writer before it gives up; clients get 503 then.
LOCK_WAIT_S: Final = 5

#: Connections one process may hold; a request waits for one up to POOL_WAIT_S.
POOL_SIZE: Final = 32
POOL_WAIT_S: Final = 5

#: A transaction here takes milliseconds. A process that is idle in one for so long is stopped, or its machine is gone, and
#: PostgreSQL would keep its locks for hours. Shorter than a worker's lease, so that a takeover does not wait for it.
IDLE_IN_TRANSACTION_S: Final = 5

#: A broken network link closes no connection: a process would wait a quarter of an hour, and minutes more after the link is
#: back. Either side gives up a connection without traffic; the server does so for the sake of max_connections.
LINK_LOST_AFTER_S: Final = 10
_LINK: Final[Mapping[str, int]] = {
    "keepalives_idle": LINK_LOST_AFTER_S // 2,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": LINK_LOST_AFTER_S * 1000,
}
_LINK_OF_THE_SERVER: Final[Mapping[str, int]] = {
    "tcp_keepalives_idle": 60,
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
}

#: The writer, which all transactions of a process use, caches so much of the file; the system caches the rest.
SQLITE_WRITER_CACHE_BYTES: Final = 2_048_000
#: The cache of each other connection: a worker has about twenty, seldom used. Caches of 512 KB grew by 10 MB within an hour.
SQLITE_CACHE_BYTES: Final = 128_000
#: Prepared statements that each of these connections keeps; Python's 128 grew by 25 MB within an hour, over all of a worker.
#: The writer, which runs the long statements of `bulk_sql` again and again, keeps the 128.
SQLITE_CACHED_STATEMENTS: Final = 8
_SQLITE_PRAGMAS: Final[Mapping[str, object]] = {
    "journal_mode": "wal",
    "cache_size": -SQLITE_CACHE_BYTES // 1024,
    "synchronous": "full",
    "foreign_keys": 1,
    # Overwrite deleted content: erased personal data must not remain in the file's free pages.
    "secure_delete": 1,
    "busy_timeout": LOCK_WAIT_S * 1000,
}

#: Translates the drivers' errors, which have other names on each database, into peewee's.
_in_our_words: Final = peewee.__exception_wrapper__  # type: ignore[attr-defined]  # peewee has it, and no annotations
#: An internal error to psycopg, an operational one to SQLite: a server that accepts no writes, such as a primary that became
#: a standby, or that ended an idle transaction.
_in_our_words.exceptions.update(
    dict.fromkeys(("ReadOnlySqlTransaction", "IdleInTransactionSessionTimeout"), peewee.OperationalError)
)
_peewee_log: Final = logging.getLogger("peewee")


def open_database(url: str, lock_wait_s: float = LOCK_WAIT_S, driver: Driver = psycopg.Connection) -> Database:
    """Bind the models to the database at `url` and return it; nothing is connected yet.

    `url` is `sqlite:///PATH` or anything psycopg takes after `postgresql://`; for a lock of the latter a statement waits
    `lock_wait_s` seconds at most, and `driver` is what connects to it. Raises ValueError for another scheme.
    """
    if url.startswith("sqlite:///"):
        chosen = _sqlite(Path(url.removeprefix("sqlite:///")))
    elif url.startswith(("postgresql://", "postgres://")):
        chosen = _postgresql("postgresql://" + url.partition("://")[2], lock_wait_s, driver)
    else:
        raise ValueError("A database URL begins with sqlite:/// or postgresql://")
    # At DEBUG peewee logs every statement with its values, secrets included.
    _peewee_log.setLevel(logging.WARNING)
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
    """Return what to check when the database is away: SQLite's file, or the setting that names PostgreSQL."""
    return f"{database.obj.database}, its owner and the room left there" if is_sqlite() else "DATABASE_URL"


def describe_url(url: str) -> str:
    """Return the kind, host and name of the database of a URL, and nothing else of the URL."""
    if url.startswith("sqlite:///"):
        return f"SQLite, {url.removeprefix('sqlite:///')}"
    try:
        parts = conninfo_to_dict("postgresql://" + url.partition("://")[2])
    except psycopg.ProgrammingError:
        return "PostgreSQL"
    known = {"host": parts.get("host"), "port": parts.get("port"), "database": parts.get("dbname")}
    return ", ".join(["PostgreSQL", *(f"{name} {value}" for name, value in known.items() if value)])


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
    """Hold another connection to PostgreSQL beside the caller's; yields what runs a statement on it."""
    opened = database.obj
    with _in_our_words:
        driver = opened._connect()

    def run(sql: str, *parameters: Any) -> Any:
        with _in_our_words:
            return driver.execute(sql, parameters)

    try:
        yield run
    finally:
        opened._close(driver)


def is_deadlock(failed: peewee.OperationalError) -> bool:
    """Return whether PostgreSQL ended a transaction because of a deadlock."""
    return isinstance(failed.__cause__ or failed.__context__, psycopg.errors.DeadlockDetected)


def _run(sql: str, parameters: Sequence[Any]) -> Any:
    # Without the proxy and peewee's execute_sql: their look-ups take as long as a short statement.
    opened = database.obj
    statement = sql if isinstance(opened, SqliteDatabase) else _for_psycopg(sql)
    _note(statement, parameters)
    with _in_our_words:
        return opened.connection().execute(statement, parameters)


def _for_psycopg(sql: str) -> str:
    return sql.replace("?", "%s")


def _note(sql: str, parameters: Sequence[Any]) -> None:
    """Log a statement as peewee does those that it runs, for tests that count them."""
    if _peewee_log.isEnabledFor(logging.DEBUG):
        _peewee_log.debug((sql, parameters))


def _pooled_first_row(sql: str, parameters: Sequence[Any]) -> Row | None:
    with connection():
        found = rows(sql, parameters)
    return found[0] if found else None


class _Sqlite(PooledSqliteDatabase):  # type: ignore[misc]  # playhouse has no annotations
    """Keeps two connections beside the pool's: one for single look-ups, one for writes.

    SQLite answers within the call, so that no two greenlets use the first at once; threads wait for each other in SQLite.
    """

    _reader: sqlite3.Connection | None = None

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._writes = GroupCommit(self._open_writer, LOCK_WAIT_S)

    @contextmanager
    def write(self) -> Iterator[None]:
        """Run the block as one transaction on the writer connection; a connection that the thread holds stays its own."""
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
            found: Row | None = (self._reader or self._open_reader()).execute(sql, parameters).fetchone()
        except sqlite3.Error:
            # A connection of the pool waits for locks, and raises peewee's errors. The reader stays open: another thread may
            # be using it at this moment, and would crash if it were closed.
            return _pooled_first_row(sql, parameters)
        _note(sql, parameters)
        return found

    def close_all(self) -> None:
        super().close_all()
        self._writes.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _open_writer(self) -> sqlite3.Connection:
        with _in_our_words:
            driver = sqlite3.connect(self.database, timeout=self._timeout, isolation_level=None, check_same_thread=False)
            self._add_conn_hooks(driver)
        # `GroupCommit` waits by itself.
        driver.execute("PRAGMA busy_timeout = 0")
        driver.execute(f"PRAGMA cache_size = {-SQLITE_WRITER_CACHE_BYTES // 1024}")
        return driver

    def _open_reader(self) -> sqlite3.Connection:
        self._reader = sqlite3.connect(self.database, timeout=0, isolation_level=None, check_same_thread=False)
        return self._reader


def _sqlite(path: Path) -> Database:
    opened: Callable[..., Database] = _Sqlite
    return opened(
        str(path),
        pragmas=dict(_SQLITE_PRAGMAS),
        lock_type="IMMEDIATE",
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        # The pool gives a connection to one thread at a time, but not always to the one that opened it.
        check_same_thread=False,
        cached_statements=SQLITE_CACHED_STATEMENTS,
    )


class _Postgresql(PooledPostgresqlDatabase):  # type: ignore[misc]  # playhouse has no annotations
    """Checks a pooled connection by its socket, where peewee would query the server each time."""

    @property
    def psycopg3_adapter(self) -> type["_Adapter"]:
        return _Adapter

    def _connect(self) -> Any:
        try:
            return super()._connect()
        except psycopg.ProgrammingError:
            # The message quotes the URL with its password.
            raise psycopg.OperationalError("PostgreSQL's library cannot parse the URL") from None

    def _is_closed(self, conn: psycopg.Connection[Any]) -> bool:
        if conn.closed or conn.pgconn.transaction_status != TransactionStatus.IDLE:
            return bool(super()._is_closed(conn))
        try:
            # A server that closes a connection may send a reason: the first read gets it, the second one the end.
            conn.pgconn.consume_input()
            conn.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return False

    def first_row(self, sql: str, parameters: Sequence[Any]) -> Row | None:
        # Without peewee's bookkeeping of connections, which takes as long as a short statement.
        statement = _for_psycopg(sql)
        with _in_our_words:
            try:
                driver = self._connect()
            except MaxConnectionsExceeded:
                # The pool's ordinary way waits for a free connection.
                return _pooled_first_row(sql, parameters)
            try:
                found: Row | None = driver.execute(statement, parameters).fetchone()
            finally:
                self._close(driver)
        _note(statement, parameters)
        return found


class _Adapter(peewee.Psycopg3Adapter):
    """Connects by the connection class in its parameters; prepares no statements where a pooler is in between.

    PgBouncer may run each transaction in another session, which does not know what an earlier one prepared. It makes up the
    process id that it reports.
    """

    def connect(self, db: Any, **params: Any) -> Any:
        driver: Driver = params.pop("driver")
        connected = driver.connect(db.database, autocommit=True, **params)
        [process_id] = connected.execute("SELECT pg_backend_pid()").fetchone() or [None]
        if process_id != connected.info.backend_pid:
            connected.prepare_threshold = None
        return connected


def _postgresql(url: str, lock_wait_s: float, driver: Driver) -> Database:
    opened: Callable[..., Database] = _Postgresql
    of_the_session = {
        "lock_timeout": round(lock_wait_s * 1000),
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S * 1000,
        **_LINK_OF_THE_SERVER,
    }
    return opened(
        url,
        prefer_psycopg3=True,
        driver=driver,
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        connect_timeout=LOCK_WAIT_S,
        # The URL's own options come last and win; without them here, a search_path among them would be lost.
        options=" ".join([*(f"-c {name}={value}" for name, value in of_the_session.items()), _options_of(url)]).strip(),
        **_LINK,
    )


def _options_of(url: str) -> str:
    try:
        return str(conninfo_to_dict(url).get("options") or "")
    except psycopg.ProgrammingError:
        # Connecting reports the error.
        return ""


class _AfterCommit(threading.local):
    """The actions of this thread's transaction."""

    actions: list[Callable[[], object]]


_after_commit: Final = _AfterCommit()
