"""The database: how it is opened, how a transaction is taken, what counts as an outage.

SQLite: WAL, so that readers never wait for the writer; `synchronous=FULL`, because an acknowledged request must survive a
power cut; IMMEDIATE transactions, because a deferred one that reads before it writes fails under load instead of waiting.
PostgreSQL: pooled connections. Neither is touched at import: `open_database` binds the models to a URL.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import peewee
import psycopg
from peewee import Database, DatabaseProxy, SqliteDatabase
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase, PooledSqliteDatabase
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from storage.db.group_commit import GroupCommit

Row = tuple[Any, ...]
Driver: TypeAlias = type[psycopg.Connection[Any]]

#: The models' database; `open_database` decides which one it is.
database: Final = DatabaseProxy()

#: What a caller sees when the database is away, locked or full.
OUTAGES: Final = (peewee.OperationalError, peewee.InterfaceError, MaxConnectionsExceeded)

#: SQLite's word for a file that is damaged or no database is this very class; kinds of it are outages, or slips of ours.
DAMAGE: Final = peewee.DatabaseError

#: How long a statement waits for another writer before it gives up; clients are told 503 then.
LOCK_WAIT_S: Final = 5

#: Connections one process may hold; a request waits for one up to POOL_WAIT_S.
POOL_SIZE: Final = 32
POOL_WAIT_S: Final = 5

#: A transaction here is over in milliseconds. Who does nothing in one for so long stands still, or its machine is gone, and
#: PostgreSQL would keep what it has locked for hours; within a worker's lease, so that a takeover waits no longer for it.
IDLE_IN_TRANSACTION_S: Final = 5

#: A link that is cut hangs nothing up: who waits on it would wait for a quarter of an hour, and after it is mended still for
#: minutes. Either side gives up a connection over which nothing comes, the server's for the sake of max_connections.
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

#: Each connection keeps so much of the file; the system keeps the rest. A worker's fill within the first hour.
SQLITE_CACHE_BYTES: Final = 2_048_000
_SQLITE_PRAGMAS: Final[Mapping[str, object]] = {
    "journal_mode": "wal",
    "cache_size": -SQLITE_CACHE_BYTES // 1024,
    "synchronous": "full",
    "foreign_keys": 1,
    # What is deleted or changed is overwritten: whoever asked to be forgotten is not to be read in the file's free places.
    "secure_delete": 1,
    "busy_timeout": LOCK_WAIT_S * 1000,
}

#: What makes peewee's errors of the drivers', which have other names on each database.
_in_our_words: Final = peewee.__exception_wrapper__  # type: ignore[attr-defined]  # peewee has it, and no annotations
#: What psycopg calls an internal error, and SQLite an operational one: a server that takes no writes, such as a primary that
#: became a standby, or that ended a transaction which stood still.
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
    # At DEBUG peewee writes every statement with its values, whatever they are.
    _peewee_log.setLevel(logging.WARNING)
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
    # Not through the proxy, as in `_run`: every request passes here.
    opened = database.obj
    if not opened.is_closed():
        opened.close()


@contextmanager
def transaction() -> Iterator[None]:
    """Run the work inside as one transaction; inside another one it simply joins it.

    Never call the network from inside: on SQLite every other writer is waiting.
    """
    if database.in_transaction():
        yield
        return
    with database.obj.write() if is_sqlite() else database.atomic():
        yield


@contextmanager
def savepoint() -> Iterator[None]:
    """Run the work inside as a part of the caller's transaction that is taken back alone when it raises."""
    with database.savepoint():
        yield


def rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one hot statement, written with `?` for parameters, and return its rows.

    The few statements that run thousands of times a second are SQL: building them in the ORM costs more than running them.
    """
    found: list[tuple[Any, ...]] = _run(sql, parameters).fetchall()
    return found


def first_row(sql: str, parameters: Sequence[Any]) -> Row | None:
    """Run the hottest query there is, written with `?` for parameters, and return its first row; never in a transaction.

    No connection is held afterwards. A poll's takes 22 µs on SQLite; by `rows`, with connecting and giving back, 63.
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
    """Tell whether a query is answered now."""
    try:
        with connection():
            database.execute_sql("SELECT 1")
    except (*OUTAGES, peewee.DatabaseError):
        # A file that is damaged or no database at all answers nothing either.
        return False
    return True


def outage_reason(outage: BaseException) -> str:
    """Return what the driver said of an outage in one line: hosts and users, no password; for the operator alone."""
    if outage.__context__ is not None and str(outage).startswith("cannot rollback"):
        # SQLite took the transaction back by itself; what made it do so came before.
        return outage_reason(outage.__context__)
    lines = str(outage).strip().splitlines() or [type(outage).__name__]
    # Of several hosts, the last one.
    line = lines[-1] if lines[0].startswith("Multiple connection attempts") else lines[0]
    return line.strip().removeprefix("connection failed: ").removeprefix("connection is bad: ")


def location_hint() -> str:
    """Return what to look at when the database is away: SQLite's file, or the setting that names PostgreSQL."""
    return f"{database.obj.database}, its owner and the room left there" if is_sqlite() else "DATABASE_URL"


def describe_url(url: str) -> str:
    """Return which database a URL leads to: its kind, host and name, and nothing else of what it says."""
    if url.startswith("sqlite:///"):
        return f"SQLite, {url.removeprefix('sqlite:///')}"
    try:
        parts = conninfo_to_dict("postgresql://" + url.partition("://")[2])
    except psycopg.ProgrammingError:
        return "PostgreSQL"
    told = {"host": parts.get("host"), "port": parts.get("port"), "database": parts.get("dbname")}
    return ", ".join(["PostgreSQL", *(f"{name} {value}" for name, value in told.items() if value)])


def server_version() -> str:
    """Return the version of the open database's engine."""
    [(number,)] = rows("SELECT sqlite_version()" if is_sqlite() else "SHOW server_version")
    return f"{'SQLite' if is_sqlite() else 'PostgreSQL'} {number}"


def is_deadlock(failed: peewee.OperationalError) -> bool:
    """Tell whether PostgreSQL ended a transaction because it and another one waited for each other."""
    return isinstance(failed.__cause__ or failed.__context__, psycopg.errors.DeadlockDetected)


def _run(sql: str, parameters: Sequence[Any]) -> Any:
    # Past the proxy and peewee's execute_sql: its look-ups take as long as a short statement.
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
    """Keeps two connections beside the pool's: one that answers single look-ups, one that writes.

    SQLite answers within the call, so that no two greenlets ever meet on the one; threads wait for each other inside SQLite.
    """

    _reader: sqlite3.Connection | None = None

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._writes = GroupCommit(self._open_writer, LOCK_WAIT_S)

    @contextmanager
    def write(self) -> Iterator[None]:
        """Run the work inside as one transaction, on the connection that writes; what a thread holds besides, it keeps."""
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
            # A connection of the pool waits for what is locked, and says whatever else it is in peewee's words. The reader
            # stays open: another thread may be asking it at this moment, which does not outlive a connection that is closed.
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
            driver: sqlite3.Connection = SqliteDatabase._connect(self)  # type: ignore[attr-defined]  # peewee has no annotations
        # `SqliteWrites` waits by itself.
        driver.execute("PRAGMA busy_timeout = 0")
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
        # The pool hands a connection to one thread at a time, but not always to the one that opened it.
        check_same_thread=False,
    )


class _Postgresql(PooledPostgresqlDatabase):  # type: ignore[misc]  # playhouse has no annotations
    """Asks the socket whether a pooled connection is still there, where peewee would ask the server each time."""

    @property
    def psycopg3_adapter(self) -> type["_Adapter"]:
        return _Adapter

    def _connect(self) -> Any:
        try:
            return super()._connect()
        except psycopg.ProgrammingError:
            # What it says quotes the URL, and the password with it.
            raise psycopg.OperationalError("the URL is none that PostgreSQL's library can read") from None

    def _is_closed(self, conn: psycopg.Connection[Any]) -> bool:
        if conn.closed or conn.pgconn.transaction_status != TransactionStatus.IDLE:
            return bool(super()._is_closed(conn))
        try:
            # A server that hangs up may say why: the first look takes that in, the second one meets the end.
            conn.pgconn.consume_input()
            conn.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return False

    def first_row(self, sql: str, parameters: Sequence[Any]) -> Row | None:
        # Past peewee's own account of who holds which connection, which takes as long as a short statement.
        statement = _for_psycopg(sql)
        with _in_our_words:
            try:
                driver = self._connect()
            except MaxConnectionsExceeded:
                # Who comes by the pool's front door waits for one.
                return _pooled_first_row(sql, parameters)
            try:
                found: Row | None = driver.execute(statement, parameters).fetchone()
            finally:
                self._close(driver)
        _note(statement, parameters)
        return found


class _Adapter(peewee.Psycopg3Adapter):
    """Connects by the kind of connection that it is given."""

    def connect(self, db: Any, **params: Any) -> Any:
        driver: Driver = params.pop("driver")
        return driver.connect(db.database, **params)


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
        # The URL's own come last and win: what is given here takes their place, and a search_path among them would be lost.
        options=" ".join([*(f"-c {name}={value}" for name, value in of_the_session.items()), _options_of(url)]).strip(),
        **_LINK,
    )


def _options_of(url: str) -> str:
    try:
        return str(conninfo_to_dict(url).get("options") or "")
    except psycopg.ProgrammingError:
        # Who connects is told so.
        return ""
