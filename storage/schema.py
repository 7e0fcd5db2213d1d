"""The schema's version: which numbered migrations are there, which have run, and running the rest under a lock."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from peewee import OperationalError
from playhouse.migrations import Runner

from storage.database import connection, database, is_deadlock, is_sqlite

MIGRATIONS: Final = Path(__file__).parent / "migrations"

#: Any number will do for PostgreSQL's advisory lock, as long as every version of RiskRelay uses the same one.
_MIGRATION_LOCK: Final = 7_245_991

#: Processes that still run lock the tables that a migration changes in an order of their own; of two that wait for each
#: other PostgreSQL ends one. A migration that was ended has changed nothing, and is run again.
_TRIES: Final = 10


def migrate() -> list[str]:
    """Run the migrations that have not run yet, in order, and return their names; two callers at once take turns."""
    with connection(), _lock():
        names = pending()
        for is_last in [False] * (_TRIES - 1) + [True]:
            if _has_run_all(is_last=is_last):
                break
        return names


def pending() -> list[str]:
    """Return the names of the migrations that have not run yet."""
    with connection():
        return [str(row.name) for row in _runner().status() if row.applied is None]


def _has_run_all(*, is_last: bool) -> bool:
    try:
        _runner().up()
    except OperationalError as failed:
        if is_last or not is_deadlock(failed):
            raise
        return False
    return True


def _runner() -> Runner:
    return Runner(database.obj, directory=str(MIGRATIONS), table_name="schema_migrations")


@contextmanager
def _lock() -> Iterator[None]:
    """Keep a second migration out: a lock file beside SQLite's file, an advisory lock on PostgreSQL."""
    if is_sqlite():
        with Path(f"{database.obj.database}.migrating").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    # A migration may take longer than a request would wait for a lock, and so may a turn at it.
    database.execute_sql("SET lock_timeout = 0")
    database.execute_sql("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
    try:
        yield
    finally:
        database.execute_sql("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
        database.execute_sql("RESET lock_timeout")
