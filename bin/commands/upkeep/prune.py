"""`prune`: delete records older than RETENTION_DAYS; for cron, and to archive what is deleted.

A worker does the same every hour in small batches, without an archive. It holds the lock for one batch at a time, and
`prune` waits for the lock. Refuses to run beside another `prune`, and to archive to a folder that others can read.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from bin.cli.installation import alone, opened
from bin.cli.option_types import DAYS, LIMIT
from bin.cli.output import Refused, echo
from bin.cli.records import json_option, print_record
from bin.cli.terminal import progress_bar
from runtime.clock import utc_now
from schemas.settings.definitions import Settings
from storage.db import write_ahead_log_sql
from storage.db.locks import Lock
from storage.db.shared_clock import SharedClock
from storage.maintenance import retention
from storage.maintenance.archive import Archive, UnsafeFolder
from storage.maintenance.retention import Cutoffs

#: Pause between batches. Other writers of SQLite retry every 2 ms; a pause as long as a batch leaves them half of the time.
_PAUSE_S: Final = 0.01
#: Wait for the lock. A worker's batch takes 10 ms, or some seconds where its rows are locked; another `prune` takes longer.
_LOCK_WITHIN_S: Final = 3.0


@click.command()
@click.option("--older-than-days", "days", type=DAYS, help="Use this age instead of RETENTION_DAYS.")
@click.option("--dry-run", is_flag=True, help="Only count the records that would be deleted.")
@click.option(
    "--limit",
    type=LIMIT,
    default=retention.ALL,
    help="Maximum number of rows; an export is deleted with all its rows or not at all.",
)
@click.option(
    "--archive",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write deleted records to this folder first, as JSON Lines; created if missing.",
)
@json_option
def prune(days: int | None, dry_run: bool, limit: int, folder: Path | None, as_json: bool) -> None:
    """Delete records older than RETENTION_DAYS: exports with their attempts, page results, keys, tokens.

    Exports that wait, are being delivered or are being recovered are kept at any age; findings and audit logs are kept
    forever.

    Example: riskrelay prune --archive /var/lib/riskrelay/archive --json

    Exit codes: 0 done, 1 already running, archive refused, or database unavailable, 2 wrong usage or settings.
    """
    with opened() as settings:
        until = _until(settings, days)
        counts = retention.count_expired(until, limit) if dry_run else _remove(until, limit, folder)
    # Print counts of 0 if there is a limit: an old export with more rows than the limit is not deleted.
    if as_json or counts.total() or limit != retention.ALL:
        print_record({name: counts[name] for name in retention.counted(until)}, as_json)
    else:
        echo("Nothing is old enough to delete.")


def _until(settings: Settings, days: int | None) -> Cutoffs:
    age = settings.retention if days is None else timedelta(days=days)
    # Compare the clock, as workers do: a host whose clock is ahead would delete records too early.
    clock = SharedClock(utc_now)
    clock.compare()
    return retention.cutoffs(clock.now(), age, settings.idempotency_ttl)


@contextmanager
def _archive(folder: Path) -> Iterator[Archive]:
    """Open an archive, or raise Refused with the fix; a batch that cannot be archived is not deleted."""
    try:
        with Archive(folder, utc_now()) as archive:
            yield archive
    except UnsafeFolder:
        # The message does not suggest `chmod 700`: the folder may be /tmp.
        cause = f"Others can read {folder}, and an archive holds personal data"
        raise Refused(f"{cause}; use a private folder such as {folder / 'riskrelay-archive'}, which is created.") from None
    except OSError as failed:
        cause = f"The archive {folder} cannot be written: {failed.strerror}."
        raise Refused(f"{cause} Free space or use another folder; records that are not archived were not deleted.") from None


def _remove(until: Cutoffs, limit: int, folder: Path | None) -> Counter[str]:
    """Delete in batches, with pauses for other writers; a terminal shows a progress bar."""
    counts = Counter[str]()
    with alone(Lock.PRUNE, _LOCK_WITHIN_S), nullcontext() if folder is None else _archive(folder) as archive:
        # Count the rows first only for a progress bar: counting takes time.
        length = retention.count_expired(until, limit).total() if sys.stderr.isatty() else 0
        with progress_bar(length, "Rows") as bar:
            for gone in retention.purge(until, limit, archive):
                counts += gone
                bar.update(gone.total())
                time.sleep(_PAUSE_S)
        write_ahead_log_sql.empty()
    return counts
