"""PostgreSQL: pooled connections, which client and server give up soon after the link is lost.

Imported only if the database is PostgreSQL (`storage.db.drivers.unused_driver`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import peewee
import psycopg
from peewee import Database
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import ConnectionTimeout
from psycopg.pq import TransactionStatus

from storage.db.drivers.shared import (
    LOCK_WAIT_S,
    POOL_SIZE,
    POOL_WAIT_S,
    Row,
    for_psycopg,
    log_statement,
    pooled_row,
    translated,
)

Driver: TypeAlias = type[psycopg.Connection[Any]]

#: A transaction takes milliseconds here. If a process is idle in one for this long, it has stopped or its machine is lost,
#: and PostgreSQL would keep its locks for hours. Shorter than a worker's lease, so that a takeover does not wait for it.
IDLE_IN_TRANSACTION_S: Final = 5

#: A broken network link closes no connection: a process would wait a quarter of an hour, and minutes more after the link is
#: back. So client and server give up a connection without traffic; the server does so because of max_connections.
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

#: The pool opens one connection at a time. After a timeout, callers that waited meanwhile fail at once. Otherwise each would
#: wait for its own timeout, the tenth for 50 s.
REFUSED_AFTER_TIMEOUT_S: Final = 1.0


def open_postgresql(url: str, lock_wait_s: float, driver: Driver | None) -> Database:
    """Return the database of a URL that begins with postgresql://; nothing is connected yet."""
    opened: Callable[..., Database] = _Postgresql
    of_the_session: dict[str, Any] = {
        "lock_timeout": round(lock_wait_s * 1000),
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S * 1000,
        # Lists of many exports took 30 to 400 ms longer when PostgreSQL compiled their queries first.
        "jit": "off",
        # The driver cannot read times in another style, which a server may have as its default.
        "datestyle": "ISO",
        **_LINK_OF_THE_SERVER,
    }
    return opened(
        url,
        prefer_psycopg3=True,
        driver=driver or psycopg.Connection,
        timeout=POOL_WAIT_S,
        max_connections=POOL_SIZE,
        connect_timeout=LOCK_WAIT_S,
        client_encoding="UTF8",
        # The URL's own options come last and take precedence. If they were left out, a search_path among them would be lost.
        options=" ".join(
            [*(f"-c {name}={value}" for name, value in of_the_session.items()), _parts_of(url).get("options") or ""]
        ).strip(),
        **_LINK,
    )


def describe(url: str) -> str:
    """Return the host, port and name of the database of a URL, and nothing else of the URL."""
    parts = _parts_of(url)
    known = {"host": parts.get("host"), "port": parts.get("port"), "database": parts.get("dbname")}
    return ", ".join(["PostgreSQL", *(f"{name} {value}" for name, value in known.items() if value)])


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
            # A server that closes a connection may send a reason. The first call reads the reason, the second one the end.
            conn.pgconn.consume_input()
            conn.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return False

    def first_row(self, sql: str, parameters: Sequence[Any]) -> Row | None:
        # Skips peewee's bookkeeping of connections, which takes as long as a short statement.
        statement = for_psycopg(sql)
        with translated:
            try:
                driver = self._connect()
            except MaxConnectionsExceeded:
                # `pooled_row` waits for a free connection.
                return pooled_row(self, statement, parameters)
            try:
                found: Row | None = driver.execute(statement, parameters).fetchone()
            finally:
                self._close(driver)
        log_statement(statement, parameters)
        return found


class _Adapter(peewee.Psycopg3Adapter):
    """Connects with the connection class in its parameters; prepares no statements if there is a pooler.

    PgBouncer may run each transaction in another session, which lacks the statements that an earlier session prepared. A
    pooler is recognized by the process id that it reports, because it makes up this number.
    """

    _refuses_until = 0.0

    def connect(self, db: Any, **params: Any) -> Any:
        driver: Driver = params.pop("driver")
        if time.monotonic() < self._refuses_until:
            raise ConnectionTimeout("the server did not answer another connection in time")
        try:
            connected = driver.connect(db.database, autocommit=True, **params)
        except ConnectionTimeout:
            self._refuses_until = time.monotonic() + REFUSED_AFTER_TIMEOUT_S
            raise
        [process_id] = connected.execute("SELECT pg_backend_pid()").fetchone() or [None]
        if process_id != connected.info.backend_pid:
            connected.prepare_threshold = None
        return connected


def _parts_of(url: str) -> Mapping[str, Any]:
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Connecting reports the error.
        return {}
