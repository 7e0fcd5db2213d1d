"""Code that both kinds of database share: timeouts, Peewee's errors for those of the drivers, the log of statements."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import peewee

Row = tuple[Any, ...]

#: How long a statement waits for another writer. After that, clients get a 503.
LOCK_WAIT_S: Final = 5

#: Connections one process may hold; a request waits for one up to POOL_WAIT_S.
POOL_SIZE: Final = 32
POOL_WAIT_S: Final = 5

#: Translates the drivers' errors, which have different names on each database, to Peewee's.
translated: Final = peewee.__exception_wrapper__  # type: ignore[attr-defined]  # peewee has it, and no annotations
#: A server that accepts no writes, such as a primary that became a standby, or that ended an idle transaction. psycopg calls
#: these internal errors; on SQLite they are operational.
translated.exceptions.update(
    dict.fromkeys(("ReadOnlySqlTransaction", "IdleInTransactionSessionTimeout"), peewee.OperationalError)
)

_peewee_log: Final = logging.getLogger("peewee")


def hide_values() -> None:
    """Keep Peewee from logging statements: at DEBUG it logs each with its values, secrets included."""
    _peewee_log.setLevel(logging.WARNING)


def for_psycopg(sql: str) -> str:
    """Return a statement with `?` for its parameters in the form of the PostgreSQL driver, with `%s`."""
    return sql.replace("?", "%s")


def log_statement(sql: str, parameters: Sequence[Any]) -> None:
    """Log a statement in the way Peewee logs those that it runs, for tests that count statements."""
    if _peewee_log.isEnabledFor(logging.DEBUG):
        _peewee_log.debug((sql, parameters))


def pooled_row(opened: Any, statement: str, parameters: Sequence[Any]) -> Row | None:
    """Return the first row of a statement, run on the connection that the thread holds, or else on one from the pool."""
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
