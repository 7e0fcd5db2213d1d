"""`backup`: a copy of the database while everything runs, for its owner alone, and whole or not there at all.

It is written beside and gets its name when it is checked and on disk. What a killed backup leaves behind is no backup by its
name, and the next one in the same folder removes it. Refuses to overwrite a file, and a second backup at the same time.
"""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import click

from bin.cli.installation import Refused, alone, opened
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from runtime.fsync import sync
from schemas.base.errors import RiskRelayError
from schemas.base.timestamps import rfc3339
from schemas.settings.definitions import Settings
from storage.db import schema_version
from storage.db.engine import database, is_sqlite
from storage.db.locks import Lock
from storage.maintenance import backup as backup_files
from storage.maintenance import restore as restoring
from storage.maintenance.backup import PART, PATTERN, BackupRefused
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

#: Nobody keeps so many.
_MOST_KEPT: Final = 100_000

_KEYS_ELSEWHERE: Final = "Neither .env nor the keys are in it: keep ENCRYPTION_KEYS elsewhere, without them it is of no use."


@click.command(
    epilog="Examples: riskrelay backup before-upgrade.backup; riskrelay backup /srv/backups --keep 14 --json\n\n"
    "Exit codes: 0 taken, 1 refused or failed, 2 wrong usage or settings."
)
@click.argument("file", type=click.Path())
@click.option("--keep", type=click.IntRange(1, _MOST_KEPT), help="In a folder: how many of its backups are kept.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@json_option
def backup(file: str, keep: int | None, force: bool, as_json: bool) -> None:
    """Back up the database to FILE, or to a new file in a folder, while everything runs.

    With --keep, or a slash at its end, FILE is a folder, and is made where there is none.
    """
    taken_at = utc_now()
    place = Path(file)
    if keep is not None or file.endswith("/"):
        _make_folder(place)
    path = place / backup_files.name_at(taken_at) if place.is_dir() else place
    if path.exists() and not force:
        raise Refused(f"{path} exists already; name another file, or say --force.")
    with opened() as settings, alone(Lock.BACKUP):
        _require_another(path)
        _make_sure_of_canary(settings)
        record = _taken(settings, path, taken_at)
    record["removed"] = [str(each) for each in _remove_older(place, keep, path)] if keep is not None else []
    print_record(record, as_json)
    if not as_json:
        click.echo(_KEYS_ELSEWHERE)


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise click.UsageError(f"{folder} is a file, and --keep or a slash at the end asks for a folder.")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failed:
        raise Refused(f"{folder} cannot be made: {failed.strerror}.") from None


def _require_another(path: Path) -> None:
    """Keep the database that is in use from being replaced by its copy: what is written to it from then on would be lost."""
    if is_sqlite() and path.exists() and path.samefile(database.obj.database):
        raise Refused(f"{path} is the database itself; name another file.")


def _make_sure_of_canary(settings: Settings) -> None:
    """Let the backup tell whose keys it needs; an operator with the wrong ones at hand gets a backup all the same."""
    try:
        check_keys(Vault(settings.encryption_keys), utc_now())
    except RiskRelayError as wrong:
        click.echo(f"riskrelay: {wrong.message} The backup is taken all the same.", err=True)


def _taken(settings: Settings, path: Path, taken_at: datetime) -> dict[str, Any]:
    """Write a backup and return what is to be told of it."""
    exports = restoring.contents().exports
    with _part(path) as part, _progress() as told:
        try:
            backup_files.take(settings.database_url, part, told)
        except BackupRefused as refused:
            raise Refused(str(refused)) from None
        part.rename(path)
        sync(path.parent)
    return {
        "file": str(path.absolute()),
        "bytes": path.stat().st_size,
        "sha256": backup_files.sha256_of(path),
        "taken_at": rfc3339(taken_at),
        "database": "sqlite" if settings.database_url.startswith("sqlite") else "postgresql",
        "schema": schema_version.known()[-1],
        "exports": exports,
        "keys_included": False,
    }


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Make the file that is written to, for its owner alone; it is gone afterwards, unless it has got its name."""
    part = path.with_name(f".{path.name}{PART}")
    try:
        _remove_leftovers(path.parent)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            # Held as long as it is written to: by that a leftover is known.
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield part
            finally:
                part.unlink(missing_ok=True)
    except OSError as failed:
        remedy = "see its folder's owner and the room left there" if path.parent.is_dir() else "make its folder"
        raise Refused(f"{path} cannot be written: {failed.strerror or failed}; {remedy}, or name another.") from None


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed backups left in a folder, but nothing that another installation is writing there now."""
    for part in folder.glob(f".{PATTERN}{PART}"):
        with part.open("rb") as file:
            if _is_free(file):
                part.unlink(missing_ok=True)


def _is_free(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_older(folder: Path, keep: int, taken: Path) -> list[Path]:
    """Remove the backups of a folder but for the newest; their names tell their times.

    The one just `taken` stays, also beside those that a clock ahead of its time has named.
    """
    older = [each for each in sorted(folder.glob(PATTERN))[:-keep] if each != taken]
    for each in older:
        each.unlink(missing_ok=True)
    return older


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far the copy is; PostgreSQL does not tell."""
    with click.progressbar(length=1, label="Copying", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def told(left: int, of: int) -> None:
            bar.length = max(of, 1)
            bar.update(of - left - bar.pos)

        yield told
