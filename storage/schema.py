"""The schema's version: which numbered migrations are there, which have run, and running the rest under a lock."""

from pathlib import Path
from typing import Final

from peewee import OperationalError
from playhouse.migrations import Runner

from storage.database import connection, database, is_deadlock
from storage.locks import Lock, alone

MIGRATIONS: Final = Path(__file__).parent / "migrations"

#: Processes that still run lock the tables that a migration changes in an order of their own; of two that wait for each
#: other PostgreSQL ends one. A migration that was ended has changed nothing, and is run again.
_TRIES: Final = 10


def migrate() -> list[str]:
    """Run the migrations that have not run yet, in order, and return their names; two callers at once take turns."""
    # A migration may take longer than a request would wait for a lock, and so may a turn at it.
    with connection(), alone(Lock.MIGRATE, wait=True):
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
