"""`backup`: copy the database while everything runs, to a file with mode 0600 that is complete or absent.

The copy is written under a temporary name and renamed once it is checked and synced. The next backup in the same folder
removes what a killed one left. Refuses to overwrite a file without --force, anything but a regular file at all, and to run
beside another backup.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from bin.cli.installation import alone, opened
from bin.cli.output import Refused, echo, writing
from bin.cli.records import json_option, print_record
from bin.cli.terminal import progress_bar
from runtime.clock import utc_now
from runtime.files import require_replaceable, sync
from schemas.base.errors import RiskRelayError
from schemas.base.timestamps import format_rfc3339
from schemas.settings.definitions import Settings
from storage.db import schema_version
from storage.db.engine import OUTAGES, database, is_sqlite, outage_reason
from storage.db.locks import Lock
from storage.maintenance import backup as backup_files
from storage.maintenance import restore as restoring
from storage.maintenance import sqlite_copies
from storage.maintenance.backup import PART, PATTERN, BackupRefused
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

#: More backups than any installation keeps.
_MAX_KEPT: Final = 100_000

_KEYS_ELSEWHERE: Final = (
    "The backup holds neither .env nor its keys. Keep ENCRYPTION_KEYS elsewhere: you cannot restore without them."
)


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--keep",
    type=click.IntRange(1, _MAX_KEPT),
    help="FILE is a folder: keep this many backups in it, and delete older ones.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@json_option
def backup(file: str, keep: int | None, force: bool, as_json: bool) -> None:
    """Back up the database to FILE, or to a new file in a folder, while everything runs.

    With --keep, or with a slash at its end, FILE is a folder; it is created if missing.

    Examples: riskrelay backup before-upgrade.backup; riskrelay backup /srv/backups --keep 14 --json

    Exit codes: 0 created, 1 refused or failed, 2 wrong usage or settings.
    """
    if file == "-":
        raise click.UsageError("FILE is a path: a backup is not written to standard output.")
    taken_at = utc_now()
    place = Path(file)
    path = _path_in(place, taken_at, is_folder=keep is not None or file.endswith("/"), force=force)
    with opened() as settings, alone(Lock.BACKUP):
        _require_another(path)
        _ensure_canary(settings)
        record = _taken(settings, path, taken_at)
        _store_time(taken_at)
    record["removed"] = [str(each) for each in _remove_older(place, keep, path)] if keep is not None else []
    print_record(record, as_json)
    if not as_json:
        echo(_KEYS_ELSEWHERE)


def _path_in(place: Path, taken_at: datetime, *, is_folder: bool, force: bool) -> Path:
    """Return the path of the new backup, after creating its folder. Raises Refused unless it can be written there."""
    with writing(place):
        if is_folder:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = place / backup_files.name_at(taken_at) if place.is_dir() else place
        exists = require_replaceable(path)
    if exists and not force:
        raise Refused(f"{path} already exists. Use another file name, or --force to overwrite it.")
    return path


def _require_another(path: Path) -> None:
    """Refuse to replace the database in use with its copy: later writes to it would be lost."""
    if is_sqlite() and path.exists() and path.samefile(database.obj.database):
        raise Refused(f"{path} is the database itself; use another file name.")


def _ensure_canary(settings: Settings) -> None:
    """Ensure that the backup records which keys it needs; the backup is created even with wrong keys."""
    try:
        check_keys(Vault(settings.encryption_keys), utc_now())
    except RiskRelayError as wrong:
        echo(f"riskrelay: {wrong.message} The backup continues.", err=True)


def _taken(settings: Settings, path: Path, taken_at: datetime) -> dict[str, Any]:
    """Write a backup and return its record."""
    exports = restoring.contents().exports
    with _part(path) as part, progress_bar(1, "Copying") as bar:
        try:
            backup_files.take(settings.database_url, part, partial(_report, bar))
        except BackupRefused as refused:
            raise Refused(str(refused)) from None
        part.rename(path)
        sync(path.parent)
    return {
        "file": str(path.absolute()),
        "bytes": path.stat().st_size,
        "sha256": backup_files.sha256_of(path),
        "taken_at": format_rfc3339(taken_at),
        "database": "sqlite" if settings.database_url.startswith("sqlite") else "postgresql",
        "schema": schema_version.known()[-1],
        "exports": exports,
        "keys_included": False,
    }


def _store_time(taken_at: datetime) -> None:
    """Store the time for the alert about old backups. If the database is full or locked, the backup still succeeds."""
    try:
        backup_files.record(taken_at)
    except OUTAGES as outage:
        reason = f"the database cannot be written ({outage_reason(outage)})"
        echo(f"riskrelay: The backup is complete, but alerts do not know of it: {reason}.", err=True)


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Create the temporary file with mode 0600; it is deleted afterwards unless it was renamed."""
    part = path.with_name(f".{path.name}{PART}")
    with writing(path, "Become the owner of its folder or create its folder, free space, or use another path."):
        _remove_leftovers(path.parent)
        _remove(part)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            yield part
        finally:
            _remove(part)


def _remove_leftovers(folder: Path) -> None:
    """Delete what killed backups left in a folder; the caller holds the lock of backups."""
    for part in folder.glob(f".{PATTERN}{PART}"):
        _remove(part)


def _remove(part: Path) -> None:
    """Delete a temporary file, and the logs that SQLite leaves beside it if the disk is full or the backup is killed."""
    for end in ("", *sqlite_copies.LOGS):
        Path(f"{part}{end}").unlink(missing_ok=True)


def _remove_older(folder: Path, keep: int, taken: Path) -> list[Path]:
    """Delete the oldest backups of a folder, by the times in their names, so that `keep` remain.

    The backup just `taken` stays, even if a clock that was ahead has given others later names.
    """
    older = [each for each in sorted(folder.glob(PATTERN))[:-keep] if each != taken]
    for each in older:
        each.unlink(missing_ok=True)
    return older


def _report(bar: Any, left: int, of: int) -> None:
    """Show the progress; PostgreSQL reports none."""
    bar.length = max(of, 1)
    bar.update(of - left - bar.pos)
