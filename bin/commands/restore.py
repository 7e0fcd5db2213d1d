"""`restore`: make a backup the database, with every target paused and nothing that was erased since come back.

Everything that speaks against it is found before anything is touched: a file that is no backup, damaged, of a newer version,
of another kind of database or sealed with other keys; an installation that runs; a database that holds something, unless it
is to be replaced. What the replaced database knows of redactions is first saved in a file in DATA_DIR: a restore that is
killed leaves the old database, or one that delivers nothing, and the next `restore` finishes its work.
"""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError

import click

from bin.cli.installation import Refused, alone, checked_settings, database_at, make_data_dir
from bin.cli.records import json_option, print_record
from bin.processes.local_service import DIRECTLY, local_url
from runtime.clock import utc_now
from schemas.base.errors import NoEncryptionKey
from schemas.base.timestamps import rfc3339
from schemas.settings.definitions import Settings
from storage.compliance import erasure_log, erasure_replay
from storage.compliance.erasure_replay import Unreadable
from storage.db import schema_version
from storage.db.engine import connection, database, is_sqlite
from storage.db.locks import Lock
from storage.maintenance import backup as backup_files
from storage.maintenance import restore as restoring
from storage.maintenance.backup import Backup, BackupRefused
from storage.maintenance.postgres_dumps import DumpFailed
from storage.maintenance.restore import NOTHING, Before
from storage.maintenance.sqlite_copies import DamagedCopy
from storage.secrets.vault import Vault

#: Where the redactions of a replaced database wait until they are repeated.
_SAVED: Final = "restoring-{}.redactions"
_STAMP: Final = "%Y%m%dT%H%M%S%fZ"
#: A service that runs answers at once.
_ANSWERS_WITHIN_S: Final = 2


@click.command(
    epilog="Example: riskrelay restore /srv/backups/riskrelay-20260301T120000Z.backup --replace\n\n"
    "Exit codes: 0 restored, 1 refused or failed, 2 wrong usage or settings."
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace a database that has accounts, without asking.")
@click.option(
    "--redactions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `compliance export` wrote, for when the old database is gone.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would happen, and what speaks against it.")
@json_option
def restore(file: Path, replace: bool, redactions: Path | None, dry_run: bool, as_json: bool) -> None:
    """Restore the database from a backup; every target stays paused until you resume it.

    The reason of the pause is `restored`.

    What compliance requests erased since the backup is erased again, and open requests are taken over.
    """
    settings, now = checked_settings(), utc_now()
    make_data_dir(settings)
    with _refusals(), _opened(settings), nullcontext() if dry_run else _alone():
        backup = backup_files.examine(file, Vault(settings.encryption_keys))
        if redactions is not None:
            erasure_replay.require_whole(redactions)
        before = restoring.look_at(now)
        obstacles = _obstacles(settings, before)
        if dry_run:
            obstacles += [] if replace else _needs_consent(before)
            print_record(_foretold(file, settings, backup, before, redactions, obstacles), as_json)
            return
        if obstacles:
            raise Refused(" ".join(obstacles))
        _require_consent(before, replace)
        record = _restored(file, settings, before, redactions, now)
        print_record(record, as_json)
    if record["targets_paused"] and not as_json:
        click.echo("Nothing is delivered until you say so: bin/riskrelay target resume --all")


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell in one line what a part of it refuses."""
    try:
        yield
    except BackupRefused as refused:
        raise Refused(str(refused)) from None
    except NoEncryptionKey:
        raise Refused("ENCRYPTION_KEYS is not set; put back the .env that belongs to the backup.") from None
    except Unreadable as damaged:
        raise Refused(f"The file of redactions is not whole: {damaged}; write it anew with `compliance export`.") from None
    except (DumpFailed, DamagedCopy, sqlite3.Error) as failed:
        raise Refused(f"The restore failed: {failed}. The database is as it was.") from None
    except OSError as failed:
        raise Refused(f"{failed.filename or 'A file'}: {failed.strerror or failed}.") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Keep out another restore and every start, a backup of what is being replaced, and who erases what would come back."""
    with alone(Lock.RESTORE), alone(Lock.BACKUP), alone(Lock.COMPLIANCE):
        yield


@contextmanager
def _opened(settings: Settings) -> Iterator[None]:
    """Open the database as it stands: it may be empty, old, damaged, or not there at all."""
    with database_at(settings.database_url):
        if is_sqlite():
            _require_folder(Path(database.obj.database).parent)
            yield
        else:
            with connection():
                yield


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise Refused(f"{folder} is no folder; make it, or set DATABASE_URL to another file.")


def _obstacles(settings: Settings, before: Before) -> list[str]:
    """Return what forbids a restore now, with the remedy."""
    told = []
    if before.workers:
        told.append(f"A worker is running ({before.workers[0]}); stop it, and wait a few seconds.")
    if _answers(settings.bind):
        told.append(f"The service answers at {settings.bind}; stop it.")
    return told


def _answers(bind: str) -> bool:
    """Tell whether a service answers at an address, whatever it answers."""
    try:
        with DIRECTLY.open(f"{local_url(bind)}/healthz", timeout=_ANSWERS_WITHIN_S):
            return True
    except HTTPError:
        return True
    except (URLError, OSError):
        return False


def _require_consent(before: Before, replace: bool) -> None:
    """End unless what stands here holds nothing, or may be replaced."""
    told = [] if replace else _needs_consent(before)
    if told and not sys.stdin.isatty():
        raise Refused(told[0])
    if told:
        click.confirm(f"{_what_is_replaced(before)} will be replaced. Go on?", abort=True, err=True)


def _needs_consent(before: Before) -> list[str]:
    if before.contents is not None and not before.contents.accounts:
        return []
    return [f"{_what_is_replaced(before)} would be replaced; say --replace if that is meant."]


def _what_is_replaced(before: Before) -> str:
    return "A database that cannot be read" if before.contents is None else f"{before.contents.accounts} account(s)"


def _foretold(
    file: Path, settings: Settings, backup: Backup, before: Before, redactions: Path | None, obstacles: Sequence[str]
) -> dict[str, Any]:
    """Return what a restore would do."""
    there = {line for source in _sources(settings, redactions) for line in erasure_replay.journal_of(source)}
    if before.has_redactions:
        with connection():
            there |= {line for page in erasure_log.pages() for line in page}
    return {
        "file": str(file.absolute()),
        "would_run": [name for name in schema_version.known() if name > backup.schema],
        "would_pause": backup.active_targets,
        "would_redact": len(there - {*backup_files.journal_of(file)}),
        "replaces_accounts": before.contents and before.contents.accounts,
        "replaces_exports": before.contents and before.contents.exports,
        "obstacles": list(obstacles),
    }


def _restored(file: Path, settings: Settings, before: Before, redactions: Path | None, now: datetime) -> dict[str, Any]:
    """Do it, and return what is to be told of it."""
    if before.has_redactions:
        with connection():
            erasure_replay.save(settings.data_dir / _SAVED.format(now.strftime(_STAMP)))
    sources = _sources(settings, redactions)
    if not sources:
        click.echo("riskrelay: no redactions since the backup are known here; see `restore --help`.", err=True)
    aside = None
    if is_sqlite():
        counts, aside = restoring.put_copy(file, sources, now, keep=before.contents != NOTHING)
    else:
        counts = restoring.put_dump(file, settings.database_url, sources, now)
    for saved in _saved(settings):
        saved.unlink()
    return {
        "file": str(file.absolute()),
        "restored_at": rfc3339(now),
        "schema": schema_version.known()[-1],
        "exports": counts["exports"],
        "targets_paused": counts["paused"],
        "redactions_repeated": counts["redactions"],
        "requests_taken_over": counts["requests"],
        "requests_open_again": counts["open"],
        "replaced_database": None if aside is None else str(aside),
    }


def _sources(settings: Settings, redactions: Path | None) -> list[Path]:
    """Return the files of redactions: what a restore that was killed had saved comes first."""
    return [*_saved(settings), *([redactions] if redactions is not None else [])]


def _saved(settings: Settings) -> list[Path]:
    return sorted(settings.data_dir.glob(_SAVED.format("[0-9]*")))
