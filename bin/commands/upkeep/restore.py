"""`restore`: replace the database with a backup; every target is paused, and erased data stays erased.

All checks run before any change: the file is a complete backup of this kind of database, of this version or an older one,
with these keys; no service or worker runs; the present database is empty or may be replaced. Its erasure log is first saved
to a file in DATA_DIR. A restore that is killed leaves the old database, or one that delivers nothing, and the next `restore`
completes it.
"""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError

import click

from bin.cli.installation import alone, checked_settings, database_at, make_data_dir
from bin.cli.output import Refused, counted, echo
from bin.cli.records import json_option, print_record
from bin.processes.local_service import DIRECTLY, local_url
from runtime.clock import utc_now
from schemas.base.timestamps import format_rfc3339
from schemas.settings.definitions import Settings
from storage.compliance import erasure_log, erasure_replay
from storage.compliance.erasure_replay import DamagedReplay
from storage.db import schema_version
from storage.db.engine import connection, is_sqlite
from storage.db.locks import Lock
from storage.maintenance import backup as backup_files
from storage.maintenance import restore as restoring
from storage.maintenance.backup import Backup, BackupRefused
from storage.maintenance.postgres_dumps import DumpFailed
from storage.maintenance.restore import EMPTY, CurrentDatabase
from storage.maintenance.sqlite_copies import DamagedCopy
from storage.secrets.vault import Vault

#: Keeps the erasure log of a replaced database until it is replayed.
_SAVED: Final = "restoring-{}.redactions"
_STAMP: Final = "%Y%m%dT%H%M%S%fZ"
_HOW_TO_RESUME: Final = (
    "To resume deliveries: bin/riskrelay target resume --all. It also resumes targets that a person paused before the "
    "backup; to keep these paused, resume the others one by one: bin/riskrelay target resume ID"
)
#: A running service responds at once.
_RESPONSE_WITHIN_S: Final = 2


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace a database that has accounts without confirmation.")
@click.option(
    "--redactions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The output of `compliance export`, if the old database is lost.",
)
@click.option("--dry-run", is_flag=True, help="Only print what a restore would do, and what prevents it.")
@json_option
def restore(file: Path, replace: bool, redactions: Path | None, dry_run: bool, as_json: bool) -> None:
    """Restore the database from a backup; every target stays paused until you resume it.

    The `status_reason` of these targets is `restored`.

    Data that compliance requests erased after the backup is erased again, and open requests are carried over.

    Example: riskrelay restore /srv/backups/riskrelay-20260301T120000Z.backup --replace

    Exit codes: 0 restored, 1 refused or failed (with --dry-run: a restore would be refused), 2 wrong usage or settings.
    """
    settings, now = checked_settings(), utc_now()
    make_data_dir(settings)
    # In this order: an error of a copy says that the database is unchanged.
    with database_at(settings.database_url), _refusals(), _connected(), nullcontext() if dry_run else _alone():
        backup = backup_files.examine(file, Vault(settings.encryption_keys))
        if redactions is not None:
            erasure_replay.require_intact(redactions)
        before = restoring.inspect(now)
        obstacles = [*_obstacles(settings, before), *(_busy() if dry_run else ())]
        needs_consent = not replace and (before.contents is None or before.contents.accounts > 0)
        if needs_consent and not sys.stdin.isatty():
            obstacles.append(f"{_what_is_replaced(before)} would be replaced; use --replace to allow it.")
        if dry_run:
            print_record(_plan(file, settings, backup, before, redactions, obstacles), as_json)
            if obstacles:
                raise SystemExit(1)
            return
        if obstacles:
            raise Refused(" ".join(obstacles))
        if needs_consent:
            click.confirm(f"{_what_is_replaced(before)} will be replaced. Continue?", abort=True, err=True)
        record = _restored(file, settings, before, redactions, now)
        print_record(record, as_json)
    if record["targets_paused"] and not as_json:
        echo(f"The restore paused {counted(record['targets_paused'], 'target')}. {_HOW_TO_RESUME}")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn an error of any step into a refusal of one line."""
    try:
        yield
    except BackupRefused as refused:
        raise Refused(str(refused)) from None
    except DamagedReplay as damaged:
        raise Refused(f"The --redactions file is damaged: {damaged}; write it again with `compliance export`.") from None
    except (DumpFailed, DamagedCopy, sqlite3.Error) as failed:
        raise Refused(f"The restore failed: {failed}. The database is unchanged.") from None
    except OSError as failed:
        raise Refused(f"{failed.filename or 'A file'}: {failed.strerror or failed}.") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Lock out another restore, every start, backups, and erasures that the restore would undo."""
    with alone(Lock.RESTORE), alone(Lock.BACKUP), alone(Lock.COMPLIANCE):
        yield


def _connected() -> AbstractContextManager[None]:
    """Connect to PostgreSQL; a file of SQLite may be empty, old, damaged or missing, and is replaced."""
    return nullcontext() if is_sqlite() else connection()


def _obstacles(settings: Settings, before: CurrentDatabase) -> list[str]:
    """Return the reasons that prevent a restore now, each with its fix."""
    found = []
    if before.workers:
        found.append(f"A worker is running ({before.workers[0]}); stop it and wait a few seconds.")
    if _responds(settings.bind):
        found.append(f"The service is running at {settings.bind}; stop it.")
    return found


def _busy() -> list[str]:
    """Return why a restore could not take its locks now; releases them at once, so that no process waits for a dry run."""
    try:
        with _alone():
            return []
    except Refused as busy:
        return [busy.message]


def _responds(bind: str) -> bool:
    """Return whether any HTTP service responds at an address."""
    try:
        with DIRECTLY.open(f"{local_url(bind)}/healthz", timeout=_RESPONSE_WITHIN_S):
            return True
    except HTTPError:
        return True
    except (URLError, OSError, HTTPException):
        # A server that does not speak HTTP is not the service.
        return False


def _what_is_replaced(before: CurrentDatabase) -> str:
    return "A database that cannot be read" if before.contents is None else counted(before.contents.accounts, "account")


def _plan(
    file: Path,
    settings: Settings,
    backup: Backup,
    before: CurrentDatabase,
    redactions: Path | None,
    obstacles: Sequence[str],
) -> dict[str, Any]:
    """Return the plan of a restore: what it would do, and why it would be refused."""
    erasures = {line for source in _sources(settings, redactions) for line in erasure_replay.erasures_in(source)}
    if before.has_erasure_log:
        with connection():
            erasures |= {line for page in erasure_log.pages() for line in page}
    return {
        "file": str(file.absolute()),
        "would_run": [name for name in schema_version.known() if name > backup.schema],
        "would_pause": backup.paused_targets,
        "would_redact": len(erasures - {*backup_files.erasures_in(file)}),
        "replaces_accounts": before.contents and before.contents.accounts,
        "replaces_exports": before.contents and before.contents.exports,
        "obstacles": list(obstacles),
    }


def _restored(
    file: Path, settings: Settings, before: CurrentDatabase, redactions: Path | None, now: datetime
) -> dict[str, Any]:
    """Restore, and return the record of it."""
    if before.has_erasure_log:
        with connection():
            erasure_replay.save(settings.data_dir / _SAVED.format(now.strftime(_STAMP)))
    sources = _sources(settings, redactions)
    if not sources:
        echo("riskrelay: found no erasures after the backup; if there were any, use --redactions.", err=True)
    aside = None
    if is_sqlite():
        counts, aside = restoring.put_copy(file, sources, now, keep=before.contents != EMPTY)
    else:
        counts = restoring.put_dump(file, settings.database_url, sources, now)
    for saved in _saved(settings):
        saved.unlink()
    return {
        "file": str(file.absolute()),
        "restored_at": format_rfc3339(now),
        "schema": schema_version.known()[-1],
        "exports": counts["exports"],
        "targets_paused": counts["paused"],
        "redactions_repeated": counts["redactions"],
        "requests_taken_over": counts["requests"],
        "requests_open_again": counts["open"],
        "replaced_database": None if aside is None else str(aside),
    }


def _sources(settings: Settings, redactions: Path | None) -> list[Path]:
    """Return the erasure logs to replay: first those that a killed restore saved."""
    return [*_saved(settings), *([redactions] if redactions is not None else [])]


def _saved(settings: Settings) -> list[Path]:
    return sorted(settings.data_dir.glob(_SAVED.format("[0-9]*")))
