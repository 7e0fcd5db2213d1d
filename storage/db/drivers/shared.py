"""Code that both kinds of database share: timeouts, their errors in Peewee's terms, the log of statements."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import peewee

Row = tuple[Any, ...]

#: How long a statement waits for another writer before it gives up; clients get 503 then.
LOCK_WAIT_S: Final = 5

#: Connections one process may hold; a request waits for one up to POOL_WAIT_S.
POOL_SIZE: Final = 32
POOL_WAIT_S: Final = 5

#: Translates the drivers' errors, which have other names on each database, into Peewee's.
translated: Final = peewee.__exception_wrapper__  # type: ignore[attr-defined]  # peewee has it, and no annotations
#: An internal error to psycopg, an operational one to SQLite: a server that accepts no writes, such as a primary that became
#: a standby, or that ended an idle transaction.
translated.exceptions.update(
    dict.fromkeys(("ReadOnlySqlTransaction", "IdleInTransactionSessionTimeout"), peewee.OperationalError)
)

_peewee_log: Final = logging.getLogger("peewee")


def hide_values() -> None:
    """Keep Peewee from logging statements: at DEBUG it logs each with its values, secrets included."""
    _peewee_log.setLevel(logging.WARNING)


def for_psycopg(sql: str) -> str:
    """Return a statement, written with `?` for parameters, as the PostgreSQL driver takes it."""
    return sql.replace("?", "%s")


def log_statement(sql: str, parameters: Sequence[Any]) -> None:
    """Log a statement as Peewee does those that it runs, for tests that count them."""
    if _peewee_log.isEnabledFor(logging.DEBUG):
        _peewee_log.debug((sql, parameters))


def pooled_row(opened: Any, statement: str, parameters: Sequence[Any]) -> Row | None:
    """Return the first row of a statement over a connection of the pool, or over the one that the thread holds."""
    is_held = not opened.is_closed()
    if not is_held:
        opened.connect()
    try:
        log_statement(statement, parameters)
        with translated:
            found: Row | None = opened.connection().execute(statement, parameters).fetchone()
        return found
    finally:
        if not is_held:
            opened.close()
