"""Backups: takes, checks and reads backup files.

A backup of SQLite is a database file; a backup of PostgreSQL is a dump in its custom format. Each can be restored only to
the same kind of database. It contains neither the settings nor the keys: without ENCRYPTION_KEYS, its encrypted values
cannot be read.

Refuses a file that is not a backup of RiskRelay, a damaged one, one of a newer version, and one that was encrypted with
other keys. All checks run before anything is changed.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from runtime.files import sync
from storage.compliance.erasure_log import ErasedRow
from storage.db import schema_version as schema
from storage.db.engine import database, is_sqlite, transaction
from storage.db.models import InstallationRow
from storage.db.queries import tuples
from storage.maintenance import postgres_dumps, sqlite_copies
from storage.maintenance.postgres_dumps import DumpFailed
from storage.maintenance.restore_sql import PAUSED_BY_RESTORE
from storage.maintenance.sqlite_copies import DamagedCopy, Progress
from storage.secrets.key_check import opens
from storage.secrets.vault import Vault

#: The names of the backups in a folder; their order by name is their order by time.
_NAME: Final = "riskrelay-%Y%m%dT%H%M%SZ"
SUFFIX: Final = ".backup"
PATTERN: Final = f"riskrelay-[0-9]*Z{SUFFIX}"
#: The suffix of a backup that is not complete yet.
PART: Final = ".part"

_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_DUMP_MAGIC: Final = b"PGDMP"


class Kind(StrEnum):
    """The kind of database in a backup."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class BackupRefused(Exception):
    """A backup cannot be taken or restored; the message gives the cause and the fix."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup file that can be restored here: its schema version, and how many targets a restore pauses."""

    schema: str
    paused_targets: int


def name_at(now: datetime) -> str:
    """Return the name of a backup taken at `now`."""
    return now.strftime(_NAME) + SUFFIX


def take(url: str, part: Path, progress: Progress) -> None:
    """Write a backup of the open database at `url` into the empty file `part`, check it and sync it.

    Raises BackupRefused.
    """
    try:
        if is_sqlite():
            sqlite_copies.take(Path(database.obj.database), part, progress)
        else:
            with part.open("wb") as dump:
                postgres_dumps.take(url, dump)
            postgres_dumps.require_intact(part)
            sync(part)
    except (DamagedCopy, DumpFailed, sqlite3.Error) as failed:
        raise BackupRefused(f"The backup failed: {failed}") from failed


def record(taken_at: datetime) -> None:
    """Store the time of the last backup, for the alert about old backups."""
    with transaction():
        InstallationRow.update(backup_at=taken_at).execute()


def last_recorded() -> tuple[datetime | None, datetime | None]:
    """Return when `record` was last called and when the installation was first started; None if it has not been."""
    found = tuples(InstallationRow.select(InstallationRow.backup_at, InstallationRow.created_at))
    return found[0] if found else (None, None)


def examine(file: Path, vault: Vault) -> Backup:
    """Read a backup from end to end; the database that it may replace is open.

    Raises BackupRefused, NoEncryptionKey, OSError.
    """
    if file.exists() and not file.is_file():
        raise BackupRefused(f"{file} is not a file.")
    here, kind = Kind.SQLITE if is_sqlite() else Kind.POSTGRESQL, _kind_of(file)
    if kind is not here:
        raise BackupRefused(
            f"{file} is a backup of {kind}, and DATABASE_URL names {here}; each is restored to its own kind."
        )
    _require_whole(file)
    applied = schema.current_names(str(row["name"]) for row in read(file, "schema_migrations", "name"))
    _require_known(file, applied)
    _require_own_keys(file, [row["key_canary"] for row in read(file, "installation", "key_canary")], vault)
    paused = sum(row["status"] in PAUSED_BY_RESTORE for row in read(file, "targets", "status"))
    return Backup(max(applied), paused)


def erasures_in(file: Path) -> Iterator[ErasedRow]:
    """Read the erasure log of a backup."""
    for row in read(file, "redactions", "request_id", "table_name", "row_id", "redacted_at"):
        yield ErasedRow(str(row["request_id"]), str(row["table_name"]), str(row["row_id"]), int(row["redacted_at"]))


def read(file: Path, table: str, *columns: str) -> Iterator[dict[str, Any]]:
    """Read columns of a table of a backup; a missing table has no rows."""
    if _kind_of(file) is Kind.POSTGRESQL:
        return postgres_dumps.rows_of(file, table)
    return sqlite_copies.rows_of(file, table, columns)


def sha256_of(file: Path) -> str:
    """Return the digest of a file, in hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _kind_of(file: Path) -> Kind:
    with file.open("rb") as opened:
        begins = opened.read(len(_SQLITE_MAGIC))
    if begins == _SQLITE_MAGIC:
        return Kind.SQLITE
    if begins.startswith(_DUMP_MAGIC):
        return Kind.POSTGRESQL
    raise BackupRefused(f"{file} is not a backup of RiskRelay.")


def _require_whole(file: Path) -> None:
    log = Path(f"{file}{sqlite_copies.LOGS[0]}")
    if log.exists() and log.stat().st_size:
        # The log may contain data that the file does not have yet.
        raise BackupRefused(f"{file} is a database in use, not a backup; take one with: bin/riskrelay backup FILE")
    try:
        if is_sqlite():
            sqlite_copies.require_intact(file)
        else:
            postgres_dumps.require_intact(file)
    except (DamagedCopy, DumpFailed) as damaged:
        raise BackupRefused(f"{file} is damaged or cannot be read ({damaged}); take another backup.") from damaged


def _require_known(file: Path, applied: set[str]) -> None:
    known = schema.known()
    if not applied or not applied & {*known}:
        raise BackupRefused(f"{file} is not a backup of RiskRelay.")
    newer = sorted(applied - {*known})
    if newer:
        raise BackupRefused(
            f"{file} was written by a newer RiskRelay ({', '.join(newer)}); install that version to restore it."
        )


def _require_own_keys(file: Path, canaries: list[Any], vault: Vault) -> None:
    if not canaries:
        raise BackupRefused(f"{file} contains no key check: use a file that `bin/riskrelay backup` wrote.")
    [stored] = canaries
    # A dump contains bytes as text.
    canary = bytes.fromhex(stored.removeprefix("\\x")) if isinstance(stored, str) else bytes(stored)
    if not opens(canary, vault):
        raise BackupRefused(
            f"{file} was encrypted with a key that ENCRYPTION_KEYS does not have; "
            "add the key of its installation there, after the present ones and a comma."
        )
