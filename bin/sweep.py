"""`sweep`: ring for what is due; for cron, where no daemon sweeps by itself."""

import click

from bin.installation import opened
from bin.records import json_option, print_record
from storage import exports
from storage.clock import utc_now
from storage.doorbell import Doorbell, connect


@click.command(
    epilog="Example: riskrelay sweep --json\n\nExit codes: 0 done, 1 Redis or the database is away, 2 wrong settings."
)
@click.option("--dry-run", is_flag=True, help="Only tell whether something is due.")
@json_option
def sweep(dry_run: bool, as_json: bool) -> None:
    """Ring the doorbell if an export is due or its lease has lapsed."""
    with opened() as settings:
        due = exports.any_due(utc_now())
        rung = due and not dry_run and Doorbell(connect(settings.redis_url)).ring()
        print_record({"due": due, "rung": rung}, as_json)
    if due and not dry_run and not rung:
        raise SystemExit(1)
