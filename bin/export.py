"""`export`: see and steer ticket exports."""

import click

from bin.installation import opened
from bin.records import json_option, print_record, print_records
from schemas.exports import Approval, export_record
from storage import exports
from storage.clock import utc_now
from storage.doorbell import Doorbell, connect

#: What a table shows unless it is asked for more: a screenful.
SHOWN = 50


@click.group()
def export() -> None:
    """Exports: tickets on their way to a target."""


@export.command(
    "list", epilog="Example: riskrelay export list --account 1 --json\n\nExit codes: 0 listed, 2 wrong settings."
)
@click.option("--account", "account_id", type=int, help="Only this account's.")
@click.option("--limit", type=click.IntRange(min=1), help=f"How many at most; default: {SHOWN} in a table, all in JSON.")
@json_option
def list_exports(account_id: int | None, limit: int | None, as_json: bool) -> None:
    """List exports, the newest first."""
    with opened():
        now = utc_now()
        shown = limit or (exports.ALL if as_json else SHOWN)
        records = [export_record(each, now) for each in exports.newest(account_id, shown)]
        if not as_json:
            records = [{**record, "title": record["ticket"]["title"]} for record in records]
        columns = ("id", "status", "status_reason", "attempts", "title")
        print_records(records, as_json, columns, "There are no exports.")


@export.command(epilog="Example: riskrelay export show exp_… --json\n\nExit codes: 0 shown, 1 there is none, 2 wrong usage.")
@click.argument("export_id")
@json_option
def show(export_id: str, as_json: bool) -> None:
    """Show one export."""
    with opened():
        print_record(export_record(exports.get(export_id), utc_now()), as_json)


@export.command(
    epilog="Example: riskrelay export approve exp_… --target tgt_…\n\nExit codes: 0 approved, 1 refused, 2 wrong usage."
)
@click.argument("export_id")
@click.option("--target", "target_id", required=True, help="Where to deliver it.")
@json_option
def approve(export_id: str, target_id: str, as_json: bool) -> None:
    """Approve a prepared export for a target; a worker delivers it."""
    with opened() as settings:
        account_id = exports.get(export_id).account_id
        record = exports.approve(export_id, account_id, Approval(target_id, None), utc_now(), "operator")
        Doorbell(connect(settings.redis_url)).ring()
        print_record(export_record(record, utc_now()), as_json)


@export.command(epilog="Example: riskrelay export dismiss exp_…\n\nExit codes: 0 dismissed, 1 refused, 2 wrong usage.")
@click.argument("export_id")
@json_option
def dismiss(export_id: str, as_json: bool) -> None:
    """Put a prepared export aside for good."""
    with opened():
        print_record(export_record(exports.dismiss(export_id, None, utc_now(), "operator"), utc_now()), as_json)


@export.command(epilog="Example: riskrelay export retry exp_…\n\nExit codes: 0 due again, 1 refused, 2 wrong usage.")
@click.argument("export_id")
@json_option
def retry(export_id: str, as_json: bool) -> None:
    """Deliver a failed or blocked export after all, with its whole schedule."""
    with opened() as settings:
        record = exports.retry(export_id, None, utc_now(), "operator")
        Doorbell(connect(settings.redis_url)).ring()
        print_record(export_record(record, utc_now()), as_json)
