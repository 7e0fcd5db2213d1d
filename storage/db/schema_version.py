"""The schema's version: the numbered migrations of this version, those that have run, and running the rest under a lock.

Refuses, before it changes anything, a database of a newer version, one that holds another application's tables, and a file
that is no database.
"""

import math
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peewee import DatabaseError, OperationalError, Select, Table, fn
from tenacity import retry, retry_if_exception, stop_after_attempt

from storage.db.drivers.sqlite import open_file
from storage.db.engine import OUTAGES, connection, database, is_deadlock, is_sqlite, rows, transaction
from storage.db.locks import Lock, exclusive

if TYPE_CHECKING:
    from playhouse.migrations import Runner

MIGRATIONS: Final = Path(__file__).parent / "migrations"
#: Read when this module is imported: an upgrade replaces the files of processes that still run the older version.
_KNOWN: Final = tuple(sorted(path.stem for path in MIGRATIONS.glob("[0-9]*.py")))

#: The table of the names of the migrations that have run.
HISTORY: Final = "schema_migrations"
_history: Final = Table(HISTORY)
#: Names of migrations up to version 0.1.0. They count as the new ones wherever a history is read; `migrate` rewrites them.
RENAMED: Final = {
    "0001_first_tables": "0001_initial_tables",
    "0002_what_comes_in": "0002_uploads_emails_compliance",
    "0003_what_delivery_remembers": "0003_throttle_state_and_workers",
    "0004_what_operating_needs": "0004_key_check_and_erasure_log",
    "0005_what_the_console_needs": "0005_console_sessions_and_charts",
}

#: The end of the name of a migration that keeps older code working: all that knows the migration of this number.
_SINCE: Final = re.compile(r"_since_(\d{4})$")

#: Running processes lock the tables that a migration changes in another order; PostgreSQL ends one of two transactions that
#: deadlock. A migration that was ended has changed nothing, and is run again.
_TRIES: Final = 10
#: As many as identify the application.
_TABLES_NAMED: Final = 3

_SQLITE_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
# An extension's tables, such as those of PostGIS, belong to no application.
_POSTGRESQL_TABLES: Final = """
    SELECT c.relname FROM pg_class c
     WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
       AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
"""
_POSTGRESQL_COLUMNS: Final = """
    SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ? AND a.attnum > 0
"""


class UnsuitableDatabase(Exception):
    """This version cannot use the database; the message gives the cause and the fix."""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The state of a database, compared with this version.

    `pending` migrations have not run yet; `unknown` ones have, and are of a newer version that this one cannot run beside;
    `foreign` tables are another application's; `damage` is why SQLite cannot read the file.
    """

    pending: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    damage: str | None = None

    @property
    def problem(self) -> str | None:
        """Why this version cannot use the database, and the fix; None if it can, once nothing is pending."""
        if self.damage:
            return f"{database.obj.database}: {self.damage}; restore a backup, or set DATABASE_URL to another file."
        if self.foreign:
            tables = ", ".join(self.foreign[:_TABLES_NAMED]) + (", …" if len(self.foreign) > _TABLES_NAMED else "")
            fix = "set DATABASE_URL to an empty database or to RiskRelay's own."
            return f"The database holds another application's tables ({tables}); {fix}"
        if self.unknown:
            fix = "install that version, or restore a backup made before it."
            return f"The database was written by a newer RiskRelay ({', '.join(self.unknown)}); {fix}"
        return None


def version() -> str:
    """Return the name of the newest migration that has run."""
    return max(_applied())


def known() -> list[str]:
    """Return the names of this version's migrations, in the order they run in."""
    return list(_KNOWN)


def inspect() -> SchemaState:
    """Inspect the open database; changes nothing, and does not create a SQLite file."""
    try:
        tables, applied = _inspect_sqlite() if is_sqlite() else _inspect_postgresql()
    except (sqlite3.OperationalError, PermissionError) as error:
        raise OperationalError(getattr(error, "strerror", None) or str(error)) from error
    except sqlite3.DatabaseError as damaged:
        return SchemaState(damage=str(damaged))
    if tables and not applied & {*_KNOWN}:
        return SchemaState(foreign=tuple(sorted(tables)))
    pending = tuple(name for name in _KNOWN if name not in applied)
    return SchemaState(pending=pending, unknown=tuple(sorted(_unknown(applied))))


def is_current() -> bool:
    """Return, by the history alone, whether this version's migrations have run, and no newer ones that break it.

    The database must be reachable.
    """
    try:
        applied = _applied()
        return applied.issuperset(_KNOWN) and not _unknown(applied)
    except DatabaseError:
        # There is no history.
        return False


def migrate() -> list[str]:
    """Run the migrations that have not run yet, in order, and return their names; concurrent callers wait for each other.

    Raises UnsuitableDatabase before anything is changed, or where the database refuses one; what ran before that one stays.
    """
    # Before the first connection: it would make another application's SQLite file keep a write-ahead log.
    _require_fit()
    if is_sqlite():
        _make_private(Path(database.obj.database))
    # A migration may take longer than a request would wait for a lock, and so may waiting for it.
    with connection(), exclusive(Lock.MIGRATE, math.inf):
        # The previous holder of the lock may have been of a newer version.
        names = _require_fit()
        if len(names) < len(_KNOWN):
            _rename_applied()
        if names:
            _run_all()
        return names


def current_names(applied: Iterable[str]) -> set[str]:
    """Return the names that a history's migrations have in this version."""
    return {RENAMED.get(name, name) for name in applied}


def _unknown(applied: set[str]) -> set[str]:
    """Return the migrations of newer versions that do not say that they keep this one working."""
    newest = _KNOWN[-1]
    found = {name: _SINCE.search(name) for name in applied.difference(_KNOWN)}
    return {name for name, since in found.items() if since is None or since[1] > newest[: len(since[1])]}


def _applied() -> set[str]:
    """Return the names of the migrations that have run. Raises DatabaseError where there is no history."""
    return current_names(name for (name,) in _history.select(_history.c.name).bind(database).tuples())


def _rename_applied() -> None:
    """Give migrations that ran under an older name the one that the runner finds now."""
    with transaction():
        for old, new in RENAMED.items():
            _history.update({_history.c.name: new}).where(_history.c.name == old).bind(database).execute()


def _make_private(path: Path) -> None:
    """Create SQLite's file for its owner alone; SQLite itself would make it readable for all users."""
    # SQLite fails for the same reason, with its own error.
    with suppress(OSError):
        path.touch(0o600, exist_ok=False)


def _require_fit() -> list[str]:
    """Return the pending migrations."""
    found = inspect()
    if found.problem:
        raise UnsuitableDatabase(found.problem)
    return list(found.pending)


def _inspect_sqlite() -> tuple[set[str], set[str]]:
    """Return the names of the tables, the history aside, and of the migrations that have run.

    By a connection of its own, because those of the pool set how the file keeps its log.
    """
    path = Path(database.obj.database)
    if not path.exists():
        return set(), set()
    with closing(open_file(path, "mode=rw")) as looking:
        looking.execute("PRAGMA query_only = 1")
        tables = {name for (name,) in looking.execute(_SQLITE_TABLES)}
        columns = {row[1] for row in looking.execute(f"PRAGMA table_info({HISTORY})")}
        applied = {name for (name,) in looking.execute(f"SELECT name FROM {HISTORY}")} if "name" in columns else set()  # noqa: S608 - our own names
        return _without_history(tables, columns), current_names(applied)


def _inspect_postgresql() -> tuple[set[str], set[str]]:
    """Return the same of PostgreSQL's current schema."""
    with connection():
        tables = {name for (name,) in rows(_POSTGRESQL_TABLES)}
        columns = {name for (name,) in rows(_POSTGRESQL_COLUMNS, (HISTORY,))}
        return _without_history(tables, columns), _applied() if "name" in columns else set()


def _without_history(tables: set[str], columns: set[str]) -> set[str]:
    """Return the tables but for a history of the form that ours has; other applications call theirs the same."""
    return tables - {HISTORY} if "name" in columns else tables


@retry(retry=retry_if_exception(is_deadlock), stop=stop_after_attempt(_TRIES), reraise=True)
def _run_all() -> None:
    try:
        _runner().up()
    except OUTAGES:
        raise
    except DatabaseError as refused:
        why = str(refused).strip().partition("\n")[0]
        raise UnsuitableDatabase(f"The database refused a migration ({why}); check the privileges of its user.") from refused


def _runner() -> "Runner":
    # Imported here: the services and workers that check the schema run no migration.
    from playhouse.migrations import Runner  # noqa: PLC0415 - see above

    # Tables are made where names without a schema lead; the runner would look for its history in `public` alone.
    current = None if is_sqlite() else Select(columns=[fn.current_schema()]).bind(database).scalar()
    return Runner(database.obj, directory=str(MIGRATIONS), table_name=HISTORY, schema=current)
