"""`sweep`: wake the workers if exports are due, and send alerts. For cron: it also reports that no worker daemon runs.

If a worker runs, too, no alert is sent twice. A channel that fails is tried again by the next sweep.
"""

from contextlib import nullcontext

import click

from bin.cli.installation import alone, database_at, opened
from bin.cli.option_types import LIMIT
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from storage.db.locks import Lock
from storage.exports import queries
from worker.composition import compose_alert_task


@click.command()
@click.option("--dry-run", is_flag=True, help="Count due exports only.")
@click.option("--limit", type=LIMIT, default=10_000, show_default=True, help="Stop counting at this number.")
@json_option
def sweep(dry_run: bool, limit: int, as_json: bool) -> None:
    """Wake the workers if exports are due, leases have expired or targets were turned off, and send alerts.

    Only one sweep runs at a time.

    Example: riskrelay sweep --json

    Exit codes: 0 done, 1 already running, or Redis or database unavailable, 2 wrong usage or settings.
    """
    with opened() as settings, nullcontext() if dry_run else alone(Lock.SWEEP):
        due = queries.count_due(utc_now(), limit)
        is_needed = not dry_run and (due > 0 or queries.any_waits_for_inactive_target())
        is_notified = is_needed and WakeUpQueue(connect(settings.redis_url)).notify()
        print_record({"due": due, "notified": is_notified}, as_json)
    # Send alerts after the lock and the database connection are released: a channel may hang for a while.
    if not dry_run and (alerts := compose_alert_task(settings)) is not None:
        with database_at(settings.database_url):
            while alerts.run_once():
                pass
    if is_needed and not is_notified:
        raise SystemExit(1)
