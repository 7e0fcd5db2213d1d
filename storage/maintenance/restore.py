"""Makes a backup the database: nothing of it is sent before somebody says so, and nothing that was erased comes back.

There is no moment at which a worker could find a restored target open. SQLite: a copy beside the database is migrated and
prepared, and put in place when it is ready. PostgreSQL: the tables are replaced and the targets paused in one transaction;
what follows may be cut off, and is done again from the beginning by the next restore.
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

from schemas.base.console_session import Ended
from schemas.base.timestamps import to_ms
from schemas.targets.pings import NO_WORKER
from schemas.targets.target import RESTORED, TargetStatus
from storage.accounts import sessions
from storage.accounts.audit_log import append
from storage.compliance import erasure_replay
from storage.db import schema_version
from storage.db.engine import (
    OUTAGES,
    close_database,
    connection,
    database,
    execute,
    is_sqlite,
    open_database,
    rows,
    transaction,
)
from storage.db.schema_version import UnfitDatabase
from storage.db.shared_clock import SharedClock
from storage.exports.worker_heartbeats import ALIVE_FOR
from storage.maintenance import backup as backup_files
from storage.maintenance import postgres_dumps, sqlite_copies
from storage.maintenance.sqlite_copies import DamagedCopy

#: What an audit entry about the whole installation is about.
INSTALLATION: Final = "installation"
#: What the ledger says of a restore: that the database is a backup's from now on, and that nothing is left to be done.
_BEGUN: Final = "begin_restore"
_DONE: Final = "restore"
#: What is wrong where the first stands without the second, and the remedy.
UNFINISHED: Final = "A restore was cut off: what was erased since the backup is not erased again yet."
FINISH: Final = "run the same restore again: bin/riskrelay restore FILE --replace"

#: The migrations that made the tables that an older database does not have.
_WORKERS_SINCE: Final = "0003_throttle_state_and_workers"
_JOURNAL_SINCE: Final = "0004_key_check_and_erasure_log"


@dataclass(frozen=True, slots=True)
class Contents:
    """How much of an installation a database holds."""

    accounts: int
    exports: int


NOTHING: Final = Contents(0, 0)


@dataclass(frozen=True, slots=True)
class Before:
    """The database that stands where a backup is to be restored.

    `contents` are None where nobody can read it; `workers` were seen lately; `has_redactions`: it knows what a restored
    backup must not forget.
    """

    contents: Contents | None
    workers: Sequence[str] = ()
    has_redactions: bool = False


def look_at(now: datetime) -> Before:
    """Look at the open database: it may be empty, old, damaged, or not there. Raises UnfitDatabase where it is another's."""
    standing = schema_version.inspect()
    if standing.foreign:
        raise UnfitDatabase(standing.problem or "")
    if standing.damage:
        return Before(None)
    if len(standing.pending) == len(schema_version.known()):
        return Before(NOTHING)
    try:
        with connection():
            return _read(standing.pending, now)
    except OUTAGES:
        raise
    except DatabaseError:
        if not is_sqlite():
            raise
        return Before(None)


def contents() -> Contents:
    """Count what a restore would replace."""
    [(accounts, exports)] = rows("SELECT (SELECT COUNT(*) FROM accounts), (SELECT COUNT(*) FROM exports)")
    return Contents(accounts, exports)


def living_workers(now: datetime) -> list[str]:
    """Return the names of the workers that were seen lately."""
    lately = (to_ms(now - ALIVE_FOR), to_ms(now + ALIVE_FOR))
    return [row[0] for row in rows("SELECT name FROM workers WHERE seen_at > ? AND seen_at < ? ORDER BY name", lately)]


def _read(pending: Sequence[str], now: datetime) -> Before:
    # As the workers do: by a clock of this host that is off, a living one was seen long ago.
    clock = SharedClock(lambda: now)
    clock.compare()
    workers = living_workers(clock.now()) if _WORKERS_SINCE not in pending else []
    return Before(contents(), workers, has_redactions=_JOURNAL_SINCE not in pending)


def is_unfinished() -> bool:
    """Tell whether a restore was cut off after the open database had become the backup's: the erased are in it again."""
    asked = "SELECT action FROM audit_entries WHERE subject_id = ? AND action IN (?, ?) ORDER BY id DESC LIMIT 1"
    found = rows(asked, (INSTALLATION, _BEGUN, _DONE))
    return bool(found) and found[0][0] == _BEGUN


def put_copy(file: Path, sources: Sequence[Path], now: datetime, *, keep: bool) -> tuple[Counter[str], Path | None]:
    """Restore a backup of SQLite; return what `prepare` counts, and where the database that it replaced is kept.

    That is done where somebody wants to `keep` it. Raises DamagedCopy, sqlite3.Error; then everything is as it was.
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
                for statement in _quieting(now):
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
    """Restore a dump of PostgreSQL to the open database, which `url` names; return what `prepare` counts.

    Raises DumpFailed; then everything is as it was.
    """
    postgres_dumps.put_in_place(file, url, _quieting(now))
    schema_version.migrate()
    return prepare(file, sources, now)


def _quieting(now: datetime) -> tuple[str, str, str]:
    """Return the statements that note the beginning and pause every target that could be sent to; the others stay.

    They are without parameters, because `psql` runs them too.
    """
    at, active, paused = to_ms(now), TargetStatus.ACTIVE.value, TargetStatus.PAUSED.value
    begun = (
        "INSERT INTO audit_entries (at, actor, action, subject_id) "  # noqa: S608 - our own words and a number
        f"VALUES ({at}, 'operator', '{_BEGUN}', '{INSTALLATION}')"
    )
    noted = (
        "INSERT INTO audit_entries (at, actor, action, subject_id, reason) "  # noqa: S608 - our own words and a number
        f"SELECT {at}, 'operator', 'pause_target', id, '{RESTORED}' FROM targets WHERE status = '{active}'"
    )
    turned = f"status = '{paused}', status_reason = '{RESTORED}', updated_at = {at}"
    return begun, noted, f"UPDATE targets SET {turned} WHERE status = '{active}'"  # noqa: S608 - our own names


def prepare(file: Path, sources: Sequence[Path], now: datetime) -> Counter[str]:
    """Forget what belonged to the processes of then, do what files of redactions tell, and note which backup it was.

    Return what `carry_over.apply` counts, how many targets are `paused` for the restore, and how many `exports` there are.
    """
    with transaction():
        execute("DELETE FROM workers")
        # Nobody waits for them any more, and a paused target is pinged all the same.
        ended = "finished_at = ?, delivered = ?, error_code = ?"
        execute(
            f"UPDATE pings SET {ended} WHERE started_at IS NULL AND finished_at IS NULL",  # noqa: S608 - our own words
            (to_ms(now), False, NO_WORKER),
        )
        # Who was signed in then, and has been signed out since, is not let in again.
        sessions.end_all(Ended.RESTORED, now, "operator")
        execute("UPDATE compliance_requests SET lease = NULL, next_run_at = ? WHERE next_run_at IS NOT NULL", (to_ms(now),))
    counts = sum((erasure_replay.apply(source, now) for source in sources), Counter[str]())
    with transaction():
        append(now, "operator", _DONE, INSTALLATION, f"sha256:{backup_files.sha256_of(file)}")
    asked = "SELECT COUNT(*) FROM targets WHERE status = ? AND status_reason = ?"
    [(paused,)] = rows(asked, (TargetStatus.PAUSED.value, RESTORED))
    return counts + Counter(paused=paused, exports=contents().exports)


def _set_aside(path: Path, now: datetime) -> Path:
    """Keep a database beside itself: a copy of it where it can be read, else the files as they are."""
    aside = path.with_name(f"{path.name}.before-restore-{now:%Y%m%dT%H%M%S%fZ}")
    aside.touch(0o600)
    try:
        sqlite_copies.take(path, aside, lambda _left, _of: None)
    except sqlite3.OperationalError:
        # Locked, or no room: it may be whole.
        aside.unlink()
        raise
    except (DamagedCopy, sqlite3.DatabaseError):
        aside.unlink()
        sqlite_copies.set_aside(path, aside)
    return aside


def _remove_all(beside: Path) -> None:
    """Remove what a restore works on, and what a killed one has left: the file, its logs and its locks."""
    for each in beside.parent.glob(f"{glob.escape(beside.name)}*"):
        each.unlink()
