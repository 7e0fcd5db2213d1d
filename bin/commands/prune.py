"""`prune`: remove what has been over for long enough; for cron, and for an archive of what goes.

A worker does the same by itself, a little every hour, without an archive; it holds the lock for a batch at a time, and this
waits for that. Refuses to run beside another one, and to archive where others can read.
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

from bin.cli.installation import Refused, alone, opened
from bin.cli.number_types import DAYS, LIMIT
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from schemas.settings.definitions import Settings
from storage.db.locks import Lock
from storage.db.shared_clock import SharedClock
from storage.maintenance import retention
from storage.maintenance.archive import Archive, UnsafeFolder
from storage.maintenance.retention import Cutoffs

#: Other writers of SQLite ask every 2 ms whether it is their turn: as long as a batch takes, so that half of it is theirs.
_BREATH_S: Final = 0.01
#: A worker's batch takes 10 ms, and what locks its rows may hold it up for some seconds; another `prune` takes longer.
_TURN_WITHIN_S: Final = 3.0


@click.command(
    epilog="Example: riskrelay prune --archive /var/lib/riskrelay/archive --json\n\n"
    "Exit codes: 0 done, 1 another one runs, the archive is refused, or the database is away, "
    "2 wrong usage or settings."
)
@click.option("--older-than-days", "days", type=DAYS, help="Instead of RETENTION_DAYS.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@click.option("--limit", type=LIMIT, default=retention.ALL, help="Remove no more rows; an export goes whole or stays.")
@click.option(
    "--archive",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write what goes there first, as JSON Lines; made where it is not there.",
)
@json_option
def prune(days: int | None, dry_run: bool, limit: int, folder: Path | None, as_json: bool) -> None:
    """Delete records older than RETENTION_DAYS: exports with their attempts, page results, keys, tokens.

    What waits, is being sent or is being recovered stays, however old; findings and the ledgers stay for good.
    """
    with opened() as settings:
        until = _until(settings, days)
        counts = retention.planned(until, limit) if dry_run else _remove(until, limit, folder)
        print_record({name: counts[name] for name in retention.COUNTED}, as_json)


def _until(settings: Settings, days: int | None) -> Cutoffs:
    age = settings.retention if days is None else timedelta(days=days)
    # As the workers do: a host whose clock is ahead would remove what is not over.
    clock = SharedClock(utc_now)
    clock.compare()
    return retention.cutoffs(clock.now(), age, settings.idempotency_ttl)


def _remove(until: Cutoffs, limit: int, folder: Path | None) -> Counter[str]:
    with alone(Lock.PRUNE, _TURN_WITHIN_S), nullcontext() if folder is None else _archive(folder) as archive:
        return _batches(until, limit, archive)


@contextmanager
def _archive(folder: Path) -> Iterator[Archive]:
    """Open an archive, or end with a remedy; a batch that cannot be archived stays."""
    try:
        with Archive(folder, utc_now()) as archive:
            yield archive
    except UnsafeFolder:
        # No `chmod 700` to be typed: /tmp may be what was named.
        told = f"Others can read {folder}, and an archive holds what people wrote"
        raise Refused(f"{told}; name a folder of its own, such as {folder / 'riskrelay-archive'}, which is made.") from None
    except OSError as failed:
        told = f"The archive {folder} cannot be written: {failed.strerror}."
        raise Refused(f"{told} Make room or choose another; what it does not hold was not removed.") from None


def _batches(until: Cutoffs, limit: int, archive: Archive | None) -> Counter[str]:
    """Remove batch after batch and let others have their turn between two; on a terminal a bar shows how far it is."""
    is_watched, counts = sys.stderr.isatty(), Counter[str]()
    # To know the length everything is counted first, which only somebody who watches has use for.
    length = retention.planned(until, limit).total() if is_watched else 0
    with click.progressbar(length=length, label="Rows", file=sys.stderr, hidden=not is_watched) as bar:
        for gone in retention.removed(until, limit, archive):
            counts += gone
            bar.update(gone.total())
            time.sleep(_BREATH_S)
    return counts
