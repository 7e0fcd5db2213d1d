"""`sweep`: wake the workers if exports are due; for cron, if no worker daemon runs."""

from contextlib import nullcontext

import click

from bin.cli.installation import alone, opened
from bin.cli.number_types import LIMIT
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from storage.db.locks import Lock
from storage.exports import queries


@click.command(
    epilog="Example: riskrelay sweep --json\n\n"
    "Exit codes: 0 done, 1 already running, or Redis or database unavailable, 2 wrong usage or settings."
)
@click.option("--dry-run", is_flag=True, help="Count due exports only.")
@click.option("--limit", type=LIMIT, default=10_000, show_default=True, help="Stop counting at this number.")
@json_option
def sweep(dry_run: bool, limit: int, as_json: bool) -> None:
    """Wake the workers if exports are due or leases have expired; only one sweep runs at a time."""
    with opened() as settings, nullcontext() if dry_run else alone(Lock.SWEEP):
        due = queries.count_due(utc_now(), limit)
        is_notified = bool(due) and not dry_run and WakeUpQueue(connect(settings.redis_url)).notify()
        print_record({"due": due, "rung": is_notified}, as_json)
    if due and not dry_run and not is_notified:
        raise SystemExit(1)
