"""Restores the database from a backup: every target is paused, and erased data does not come back.

At no time can a worker find a restored target active. SQLite: a copy beside the database is migrated and prepared, and then
replaces the database. PostgreSQL: one transaction replaces the tables and pauses the targets. The steps after it may be
interrupted; the next restore repeats them from the beginning.
"""

import glob
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.base.console_session import SessionEndReason
from schemas.targets.pings import NO_WORKER
from schemas.targets.target import RESTORED, TargetStatus
from storage.accounts import sessions
from storage.accounts.audit_log import append
from storage.compliance import erasure_replay
from storage.db import schema_version
from storage.db.engine import (
    DAMAGE,
    OUTAGES,
    close_database,
    connection,
    database,
    execute,
    is_sqlite,
    open_database,
    transaction,
)
from storage.db.models import AccountRow, AuditEntryRow, ComplianceRequestRow, ExportRow, PingRow, TargetRow, WorkerRow
from storage.db.schema_version import UnsuitableDatabase
from storage.db.shared_clock import SharedClock
from storage.exports import transitions, worker_heartbeats
from storage.exports.search import export_words_sql
from storage.maintenance import backup as backup_files
from storage.maintenance import postgres_dumps, sqlite_copies
from storage.maintenance.restore_sql import pausing_statements
from storage.maintenance.sqlite_copies import DamagedCopy

#: The subject of audit entries about the whole installation.
INSTALLATION: Final = "installation"
#: The actions of a restore in the audit log: from this entry on, the database is the backup's; and the restore is complete.
_BEGUN: Final = "begin_restore"
_DONE: Final = "restore"
#: The message if only the first entry exists, and the fix.
UNFINISHED: Final = "A restore was cut off: what was erased since the backup is not erased again yet."
FINISH: Final = "run the same restore again: bin/riskrelay restore FILE --replace"


@dataclass(frozen=True, slots=True)
class Contents:
    """How many accounts and exports a database contains."""

    accounts: int
    exports: int


EMPTY: Final = Contents(0, 0)


@dataclass(frozen=True, slots=True)
class CurrentDatabase:
    """The database that a restore replaces.

    `contents` is None if the database cannot be read. `workers` are those that run now. `has_erasure_log` says whether it
    has the erasures that a restore repeats.
    """

    contents: Contents | None
    workers: Sequence[str] = ()
    has_erasure_log: bool = False


def inspect(now: datetime) -> CurrentDatabase:
    """Inspect the open database: empty, old, damaged or missing. Raises UnsuitableDatabase if it is another product's."""
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
    except DAMAGE:
        if not is_sqlite():
            raise
        return CurrentDatabase(None)


def contents() -> Contents:
    """Count the rows that a restore would replace."""
    return Contents(AccountRow.select().count(), ExportRow.select().count())


def is_unfinished() -> bool:
    """Return whether a restore was interrupted after its backup replaced the database: it contains erased data again."""
    entry = AuditEntryRow
    query = entry.select(entry.action).where(entry.subject_id == INSTALLATION, entry.action.in_([_BEGUN, _DONE]))
    return bool(query.order_by(entry.id.desc()).limit(1).scalar() == _BEGUN)


def put_copy(file: Path, sources: Sequence[Path], now: datetime, *, keep: bool) -> tuple[Counter[str], Path | None]:
    """Restore a backup of SQLite; return the counts of `prepare` and, with `keep`, the file with the replaced database.

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
    """Restore a dump of PostgreSQL to the open database at `url`; return the counts of `prepare`.

    Raises DumpFailed; then nothing has changed.
    """
    postgres_dumps.put_in_place(file, url, pausing_statements(_BEGUN, INSTALLATION, now))
    schema_version.migrate()
    return prepare(file, sources, now)


def prepare(file: Path, sources: Sequence[Path], now: datetime) -> Counter[str]:
    """Remove the state of processes that no longer run, replay the erasures of `sources`, and log which backup was restored.

    Returns the counts of `erasure_replay.apply`, the number of targets that are `paused` for the restore, and of `exports`.
    """
    with transaction():
        WorkerRow.delete().execute()
        # No request waits for these pings any more, but workers would send them, because a paused target may be pinged.
        abandoned = PingRow.started_at.is_null() & PingRow.finished_at.is_null()
        PingRow.update(finished_at=now, delivered=False, error_code=NO_WORKER).where(abandoned).execute()
        transitions.mark_outcomes_unknown()
        # These sessions may have ended since the backup: a restore must not sign anybody in again.
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
    # The clock that the workers use: if this host's clock is wrong, a running worker's heartbeat would look old.
    clock = SharedClock(lambda: now)
    clock.compare()
    return CurrentDatabase(contents(), worker_heartbeats.list_alive(clock.now()), has_erasure_log=True)


def _set_aside(path: Path, now: datetime) -> Path:
    """Keep the replaced database beside the new one: as a copy if it can be read, else as its unchanged files."""
    aside = path.with_name(f"{path.name}.before-restore-{now:%Y%m%dT%H%M%S%fZ}")
    aside.touch(0o600)
    try:
        sqlite_copies.take(path, aside, lambda _left, _of: None)
    except sqlite3.OperationalError:
        # The database is locked or the disk is full: the database may be intact.
        _remove_all(aside)
        raise
    except (DamagedCopy, sqlite3.DatabaseError):
        _remove_all(aside)
        sqlite_copies.set_aside(path, aside)
    return aside


def _remove_all(beside: Path) -> None:
    """Remove a copy of this restore or of a killed one, with its logs and locks."""
    for each in beside.parent.glob(f"{glob.escape(beside.name)}*"):
        each.unlink()
