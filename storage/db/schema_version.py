"""The schema's version: the numbered migrations of this version, those that have run, and running the rest under a lock.

Before it changes anything, it refuses a database of a newer version, one with another application's tables, and a file that
is no database.
"""

import glob
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

#: The table with the names of the migrations that have run.
HISTORY: Final = "schema_migrations"
_history: Final = Table(HISTORY)
#: Names that migrations had up to version 0.1.0. Where a history is read, they count as the new ones; `migrate` rewrites
#: them.
RENAMED: Final = {
    "0001_first_tables": "0001_initial_tables",
    "0002_what_comes_in": "0002_uploads_emails_compliance",
    "0003_what_delivery_remembers": "0003_throttle_state_and_workers",
    "0004_what_operating_needs": "0004_key_check_and_erasure_log",
    "0005_what_the_console_needs": "0005_console_sessions_and_charts",
}

#: The end of the name of a migration that keeps older code working, if that code knows the migration with this number.
_SINCE: Final = re.compile(r"_since_(\d{4})$")

#: Running processes lock the tables that a migration changes in another order. In a deadlock, PostgreSQL rolls one of two
#: transactions back. A migration that was rolled back has changed nothing, and runs again.
_MAX_TRIES: Final = 10
#: How many foreign tables the message names: enough to identify the application.
_MAX_NAMED_TABLES: Final = 3

_SQLITE_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
# The tables of an extension such as PostGIS belong to no application.
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

    `pending` migrations have not run yet. `unknown` ones have run; they belong to a newer version beside which this one
    cannot run. `foreign` tables belong to another application. `damage` is the reason why SQLite cannot read the file.
    `encoding` is the one of a new database that cannot store every text.
    """

    pending: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    damage: str | None = None
    encoding: str | None = None

    @property
    def problem(self) -> str | None:
        """Why this version cannot use the database, and the fix; None if it can, after the pending migrations."""
        if self.damage:
            return f"{database.obj.database}: {self.damage}; restore a backup, or set DATABASE_URL to another file."
        if self.foreign:
            tables = ", ".join(self.foreign[:_MAX_NAMED_TABLES]) + (", …" if len(self.foreign) > _MAX_NAMED_TABLES else "")
            fix = "set DATABASE_URL to an empty database or to RiskRelay's own."
            return f"The database holds another application's tables ({tables}); {fix}"
        if self.encoding:
            fix = "create it with: createdb --template template0 --encoding UTF8."
            return f"The database has the encoding {self.encoding}, which cannot store every text; {fix}"
        if self.unknown:
            fix = "install that version, or restore a backup made before it."
            return f"The database was written by a newer RiskRelay ({', '.join(self.unknown)}); {fix}"
        return None


def version() -> str:
    """Return the name of the newest migration that has run."""
    return max(_applied())


def known() -> list[str]:
    """Return the names of this version's migrations, in the order in which they run."""
    return list(_KNOWN)


def inspect() -> SchemaState:
    """Inspect the open database; change nothing, and create no SQLite file."""
    try:
        tables, applied = _inspect_sqlite() if is_sqlite() else _inspect_postgresql()
    except (sqlite3.OperationalError, PermissionError) as error:
        raise OperationalError(getattr(error, "strerror", None) or str(error)) from error
    except sqlite3.DatabaseError as damaged:
        return SchemaState(damage=str(damaged))
    if tables and not applied & {*_KNOWN}:
        return SchemaState(foreign=tuple(sorted(tables)))
    if not (applied or is_sqlite()):
        with connection():
            [(encoding,)] = rows("SHOW server_encoding")
        if encoding != "UTF8":
            return SchemaState(encoding=encoding)
    pending = tuple(name for name in _KNOWN if name not in applied)
    return SchemaState(pending=pending, unknown=tuple(sorted(_unknown(applied))))


def is_current() -> bool:
    """Return whether this version's migrations have run, and no newer ones that break it; reads only the history.

    The database must be reachable.
    """
    try:
        applied = _applied()
        return applied.issuperset(_KNOWN) and not _unknown(applied)
    except DatabaseError:
        # The table of the history does not exist.
        return False


def migrate() -> list[str]:
    """Run the migrations that have not run yet, in order, and return their names; concurrent callers wait for each other.

    Raises UnsuitableDatabase before it changes anything, or if the database refuses a migration; earlier ones stay.
    """
    # Before the first connection, which would make another application's SQLite file keep a write-ahead log.
    _require_suitable()
    if is_sqlite():
        _make_private(Path(database.obj.database))
    # A migration, and so the wait for the lock, may take longer than a request would wait.
    with connection(), exclusive(Lock.MIGRATE, math.inf):
        # The previous holder of the lock may have run a newer version.
        names = _require_suitable()
        if len(names) < len(_KNOWN):
            _rename_applied()
        if names:
            _run_all()
        return names


def current_names(applied: Iterable[str]) -> set[str]:
    """Return the names of applied migrations as this version calls them."""
    return {RENAMED.get(name, name) for name in applied}


def _unknown(applied: set[str]) -> set[str]:
    """Return the applied migrations of newer versions whose names do not say that this version still works."""
    newest = _KNOWN[-1]
    found = {name: _SINCE.search(name) for name in applied.difference(_KNOWN)}
    return {name for name, since in found.items() if since is None or since[1] > newest[: len(since[1])]}


def _applied() -> set[str]:
    """Return the names of the migrations that have run. Raises DatabaseError if the history does not exist."""
    return current_names(name for (name,) in _history.select(_history.c.name).bind(database).tuples())


def _rename_applied() -> None:
    """Rename migrations that ran under an older name: the runner looks for the new one."""
    with transaction():
        for old, new in RENAMED.items():
            _history.update({_history.c.name: new}).where(_history.c.name == old).bind(database).execute()


def _make_private(path: Path) -> None:
    """Create SQLite's file so that only its owner can read it; SQLite would make it readable for all users."""
    # SQLite fails for the same reason, with its own error.
    with suppress(OSError):
        path.touch(0o600, exist_ok=False)


def _require_suitable() -> list[str]:
    """Return the pending migrations. Raises UnsuitableDatabase."""
    found = inspect()
    if found.problem:
        raise UnsuitableDatabase(found.problem)
    return list(found.pending)


def _inspect_sqlite() -> tuple[set[str], set[str]]:
    """Return the names of the tables, except the history, and of the migrations that have run.

    Uses a separate connection, because a connection of the pool changes the file's journal mode.
    """
    path = Path(database.obj.database)
    if not path.exists():
        return set(), set()
    with closing(open_file(path, "mode=rw")) as driver:
        driver.execute("PRAGMA query_only = 1")
        tables = {name for (name,) in driver.execute(_SQLITE_TABLES)}
        columns = {row[1] for row in driver.execute(f"PRAGMA table_info({HISTORY})")}
        applied = {name for (name,) in driver.execute(f"SELECT name FROM {HISTORY}")} if "name" in columns else set()  # noqa: S608 - our own names
        return _without_history(tables, columns), current_names(applied)


def _inspect_postgresql() -> tuple[set[str], set[str]]:
    """Return the same as `_inspect_sqlite`, for PostgreSQL's current schema."""
    with connection():
        tables = {name for (name,) in rows(_POSTGRESQL_TABLES)}
        columns = {name for (name,) in rows(_POSTGRESQL_COLUMNS, (HISTORY,))}
        return _without_history(tables, columns), _applied() if "name" in columns else set()


def _without_history(tables: set[str], columns: set[str]) -> set[str]:
    """Return the tables without our history, known by its column `name`; other applications use the same table name."""
    return tables - {HISTORY} if "name" in columns else tables


@retry(retry=retry_if_exception(is_deadlock), stop=stop_after_attempt(_MAX_TRIES), reraise=True)
def _run_all() -> None:
    try:
        _runner().up()
    except OUTAGES:
        raise
    except DatabaseError as refused:
        why = str(refused).strip().partition("\n")[0]
        raise UnsuitableDatabase(f"The database refused a migration ({why}); check the privileges of its user.") from refused


def _runner() -> "Runner":
    # Imported here, because services and workers check the schema but run no migration.
    from playhouse.migrations import Runner  # noqa: PLC0415 - see above

    # PostgreSQL creates tables in the current schema; without it, the runner would look for its history only in `public`.
    current = None if is_sqlite() else Select(columns=[fn.current_schema()]).bind(database).scalar()
    # The runner takes the folder for a part of a pattern.
    return Runner(database.obj, directory=glob.escape(str(MIGRATIONS)), table_name=HISTORY, schema=current)
