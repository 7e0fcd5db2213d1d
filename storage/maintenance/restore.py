"""Restores the database from a backup: every target is paused, and erased data does not come back.

There is no moment at which a worker could find a restored target active. SQLite: a copy beside the database is migrated and
prepared, and replaces it when it is ready. PostgreSQL: the tables are replaced and the targets paused in one transaction;
the steps after it may be cut off, and the next restore repeats them from the beginning.
"""

import glob
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from peewee import DatabaseError

from schemas.base.console_session import SessionEndReason
from schemas.targets.pings import NO_WORKER
from schemas.targets.target import RESTORED, TargetStatus
from storage.accounts import sessions
from storage.accounts.audit_log import append
from storage.compliance import erasure_replay
from storage.db import schema_version
from storage.db.engine import OUTAGES, close_database, connection, database, execute, is_sqlite, open_database, transaction
from storage.db.models import AccountRow, AuditEntryRow, ComplianceRequestRow, ExportRow, PingRow, TargetRow, WorkerRow
from storage.db.schema_version import UnsuitableDatabase
from storage.db.shared_clock import SharedClock
from storage.exports import transitions, worker_heartbeats
from storage.exports.search import export_words_sql
from storage.maintenance import backup as backup_files
from storage.maintenance import postgres_dumps, sqlite_copies
from storage.maintenance.restore_sql import pausing_statements
from storage.maintenance.sqlite_copies import DamagedCopy

#: The subject of an audit entry about the whole installation.
INSTALLATION: Final = "installation"
#: The audit log's actions of a restore: the database is the backup's from here on, and the restore is complete.
_BEGUN: Final = "begin_restore"
_DONE: Final = "restore"
#: The message if the first entry is there without the second, and the fix.
UNFINISHED: Final = "A restore was cut off: what was erased since the backup is not erased again yet."
FINISH: Final = "run the same restore again: bin/riskrelay restore FILE --replace"


@dataclass(frozen=True, slots=True)
class Contents:
    """How many accounts and exports a database holds."""

    accounts: int
    exports: int


EMPTY: Final = Contents(0, 0)


@dataclass(frozen=True, slots=True)
class CurrentDatabase:
    """The database that a restore replaces.

    `contents` are None if it cannot be read; `workers` are those that are alive; with `has_erasure_log` it has the erasures
    that a restore repeats.
    """

    contents: Contents | None
    workers: Sequence[str] = ()
    has_erasure_log: bool = False


def inspect(now: datetime) -> CurrentDatabase:
    """Inspect the open database: empty, old, damaged or missing. Raises UnsuitableDatabase for that of another product."""
    state = schema_version.inspect()
    if state.foreign:
        raise UnsuitableDatabase(state.problem or "")
    if state.damage:
        return CurrentDatabase(None)
    if len(state.pending) == len(schema_version.known()):
        return CurrentDatabase(EMPTY)
    try:
        with connection():
            return _read(now)
    except OUTAGES:
        raise
    except DatabaseError:
        if not is_sqlite():
            raise
        return CurrentDatabase(None)


def contents() -> Contents:
    """Count the rows that a restore would replace."""
    return Contents(AccountRow.select().count(), ExportRow.select().count())


def is_unfinished() -> bool:
    """Return whether a restore was cut off after its backup had become the database: erased data is in it again."""
    entry = AuditEntryRow
    query = entry.select(entry.action).where(entry.subject_id == INSTALLATION, entry.action.in_([_BEGUN, _DONE]))
    return bool(query.order_by(entry.id.desc()).limit(1).scalar() == _BEGUN)


def put_copy(file: Path, sources: Sequence[Path], now: datetime, *, keep: bool) -> tuple[Counter[str], Path | None]:
    """Restore a backup of SQLite; return the counts of `prepare` and, with `keep`, where the replaced database is kept.

    Raises DamagedCopy, sqlite3.Error; then nothing has changed.
    """
    url, path = f"sqlite:///{database.obj.database}", Path(database.obj.database)
    beside = path.with_name(f"{path.name}.restoring")
    _remove_all(beside)
    try:
        beside.touch(0o600)
        sqlite_copies.copy_of_copy(file, beside)
        open_database(f"sqlite:///{beside}")
        with connection():
            with transaction():
                for statement in pausing_statements(_BEGUN, INSTALLATION, now):
                    execute(statement)
            schema_version.migrate()
            counts = prepare(file, sources, now)
        close_database()
        aside = _set_aside(path, now) if keep else None
        sqlite_copies.put_in_place(beside, path)
        return counts, aside
    finally:
        open_database(url)
        _remove_all(beside)


def put_dump(file: Path, url: str, sources: Sequence[Path], now: datetime) -> Counter[str]:
    """Restore a dump of PostgreSQL to the open database, which `url` names; return the counts of `prepare`.

    Raises DumpFailed; then nothing has changed.
    """
    postgres_dumps.put_in_place(file, url, pausing_statements(_BEGUN, INSTALLATION, now))
    schema_version.migrate()
    return prepare(file, sources, now)


def prepare(file: Path, sources: Sequence[Path], now: datetime) -> Counter[str]:
    """Remove the state of processes that are gone, replay the erasures of `sources`, and log which backup was restored.

    Return the counts of `erasure_replay.apply`, how many targets are `paused` for the restore, and how many `exports` exist.
    """
    with transaction():
        WorkerRow.delete().execute()
        # No request waits for these pings any more, and a paused target may be pinged.
        abandoned = PingRow.started_at.is_null() & PingRow.finished_at.is_null()
        PingRow.update(finished_at=now, delivered=False, error_code=NO_WORKER).where(abandoned).execute()
        transitions.mark_outcomes_unknown()
        # A session of then may have ended since; nobody is signed in again by a restore.
        sessions.end_all(SessionEndReason.RESTORED, now, "operator")
        requests = ComplianceRequestRow
        requests.update(lease=None, next_run_at=now).where(requests.next_run_at.is_null(False)).execute()
    counts = sum((erasure_replay.apply(source, now) for source in sources), Counter[str]())
    export_words_sql.overwrite_removed()
    with transaction():
        append(now, "operator", _DONE, INSTALLATION, f"sha256:{backup_files.sha256_of(file)}")
    paused = TargetRow.select().where(TargetRow.status == TargetStatus.PAUSED, TargetRow.status_reason == RESTORED).count()
    return counts + Counter(paused=paused, exports=ExportRow.select().count())


def _read(now: datetime) -> CurrentDatabase:
    # The clock that the workers use: by a wrong clock of this host, a worker that is alive was seen long ago.
    clock = SharedClock(lambda: now)
    clock.compare()
    return CurrentDatabase(contents(), worker_heartbeats.list_alive(clock.now()), has_erasure_log=True)


def _set_aside(path: Path, now: datetime) -> Path:
    """Keep a database beside itself: a copy if it can be read, else its files as they are."""
    aside = path.with_name(f"{path.name}.before-restore-{now:%Y%m%dT%H%M%S%fZ}")
    aside.touch(0o600)
    try:
        sqlite_copies.take(path, aside, lambda _left, _of: None)
    except sqlite3.OperationalError:
        # Locked, or no room on the disk: it may be intact.
        aside.unlink()
        raise
    except (DamagedCopy, sqlite3.DatabaseError):
        aside.unlink()
        sqlite_copies.set_aside(path, aside)
    return aside


def _remove_all(beside: Path) -> None:
    """Remove the files of a restore, and those that a killed one left: the copy, its logs and its locks."""
    for each in beside.parent.glob(f"{glob.escape(beside.name)}*"):
        each.unlink()
