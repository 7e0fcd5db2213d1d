"""`export`: list, show, prepare and recover ticket exports, and decide on them.

`recover` processes the recovery that it starts. When interrupted, it finishes the current batch and leaves the rest to a
worker; when killed, a worker takes over once the lease expires.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO, Final

import click

from bin.cli.account_option import account_option, account_or_only
from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import LIMIT, Parsed, ValueList, require_one
from bin.cli.output import Refused, echo
from bin.cli.records import SHOWN, Record, RecordTable, json_option, print_record, shown_of
from bin.cli.request_bodies import checked, given, parse_strictly, read_limited
from bin.commands.exports.export_bulk import (
    bulk,
    bulk_options,
    decide_on_matching,
    decides_on_many,
    filter_options,
    given_filters,
    process,
    read_filters,
    refused_urls,
)
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.api.deliveries import RecoveryResponse, dump_details
from schemas.api.response_fields import dump
from schemas.base.principal import OPERATOR
from schemas.base.printable import printable
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll, ApprovalForm, Export, export_record, listed_record
from schemas.exports.recoveries import RecoveryStatus, parse_since, parse_until
from schemas.exports.state_machine import ExportStatus
from schemas.settings.definitions import Settings
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.decision_forms import DismissalForm, DismissalRequest, Edit, EditForm
from schemas.triage.export_filter import ExportQuery, ExportSort
from service.operations import recoveries as operations
from service.operations.exports import read_preparation
from service.operations.wiring import Operations, build_operations
from storage.db.leases import BatchProgress
from storage.exports import attempts, queries, recoveries
from storage.exports.search import export_list
from storage.exports.search.export_list import MAX_COUNTED
from storage.targets import summaries
from worker.background.batches.batch_task import recovery_task

EXPORTS = RecordTable(("id", "status", "status_reason", "attempts", "severity", "title"), "There are no exports.")
ATTEMPTS = RecordTable(
    ("number", "started_at", "outcome", "response_status", "error_code", "address", "answer"), "No attempts yet."
)
RECOVERIES = RecordTable(
    ("id", "target_id", "since", "status", "done", "total", "created_at", "finished_at"), "There are no recoveries."
)


#: The exports of one ticket that was approved for several targets.
APPROVED: Final = RecordTable(("id", "status", "target_id"), "")

HOW_TO_RECOVER: Final = "Use --target with --since, or one of --show, --cancel and --list."


def print_export(record: Export, as_json: bool) -> None:
    """Print an export as it is now."""
    print_record(export_record(record, utc_now()), as_json)


export: Final = click.Group("export")


@export.command("list")
@filter_options("--target")
@click.option(
    "--sort", type=click.Choice([*map(str, ExportSort)]), default="-created_at", help="The order; default: -created_at."
)
@click.option("--limit", type=LIMIT, help=f"Maximum number of exports; default: {SHOWN} in a table, all in JSON.")
@click.option("--all", "is_all", is_flag=True, help="List every export, also in a table.")
@json_option
def list_exports(account_id: int | None, limit: int | None, is_all: bool, as_json: bool, sort: str, **filters: Any) -> None:
    """List exports, newest first, or in the order of --sort.

    All filters except --account, --search and the times accept several values, separated by commas without spaces.

    Example: riskrelay export list --status failed,blocked --severity high,critical

    Exit codes: 0 listed, 1 database unavailable, 2 wrong usage or settings.
    """
    shown = shown_of(limit, as_json, is_all)
    query = replace(read_filters(given_filters(filters), "--target"), account_id=account_id)
    with opened():
        now = utc_now()
        records = [listed_record(each, now) for each in export_list.list_page(query, ExportSort(sort), shown)]
        print_list(records, as_json, is_filtered=query != ExportQuery())
        if not as_json and shown is not None and len(records) == shown:
            print_rest(export_list.count(query), shown)


def print_list(records: Sequence[Record], as_json: bool, *, is_filtered: bool) -> None:
    """Print exports."""
    rows = [{**each, **{name: each["ticket"][name] for name in ("severity", "title")}} for each in records]
    EXPORTS.show(records if as_json else rows, as_json, "No exports match." if is_filtered else None)


def print_rest(total: int | None, shown: int) -> None:
    """Print how many exports there are beyond those shown, and the option that lists them; None is too many to count."""
    if total is None or total > shown:
        number = f"more than {MAX_COUNTED:,}" if total is None else f"{total:,}"
        echo(f"Showing the first {shown:,} of {number}. To list more: --limit N or --all.")


@export.command()
@click.argument("export_id")
@json_option
def show(export_id: str, as_json: bool) -> None:
    """Show one export, and whether its target was removed.

    Example: riskrelay export show exp_… --json

    Exit codes: 0 shown, 1 not found, 2 wrong usage.
    """
    with opened():
        shown = queries.get(export_id)
        print_export(shown, as_json)
        if shown.target_id is None or as_json:
            return
        if summaries.by_id([shown.target_id], shown.account_id)[shown.target_id].is_removed:
            echo(f"Target {shown.target_id} was removed.")


def print_link(shown: Record, as_json: bool) -> None:
    """Print the link of an export's ticket. Raises Refused if it has none."""
    ticket = shown.get("provider_ticket")
    if not ticket or ticket["url"] is None:
        named = "its receiver named no link" if shown["status"] == ExportStatus.EXPORTED else f"it is {shown['status']}"
        raise Refused(f"Export {shown['id']} has no link at a target: {named}.")
    if as_json:
        print_record({"id": ticket["id"], "url": ticket["url"]}, as_json)
    else:
        echo(printable(ticket["url"]))


@export.command("open")
@click.argument("export_id")
@with_database(print_link)
def open_ticket(export_id: str) -> Record:
    """Print the URL of the ticket at its target.

    Example: xdg-open "$(riskrelay export open exp_…)"

    Exit codes: 0 printed, 1 not found or no URL, 2 wrong usage.
    """
    return export_record(queries.get(export_id), utc_now())


@export.command("attempts")
@click.argument("export_id")
@with_database(ATTEMPTS.show)
def list_attempts(export_id: str) -> list[Record]:
    """List the delivery attempts of an export, newest first, with address and response.

    Responses are kept up to 2 KiB, without secrets. Only the operator sees them.

    Example: riskrelay export attempts exp_… --json

    Exit codes: 0 listed, 1 not found, 2 wrong usage.
    """
    return [dump_details(each) for each in attempts.list_details(export_id)]


@export.command()
@account_option
@click.option("--title", help="The title, one line.")
@click.option("--description", help="The description; may have several lines.")
@click.option("--severity", help="The severity: info, low, medium, high or critical; default: info.")
@click.option("--page-url", help="The URL of the affected page.")
@click.option(
    "--ticket",
    "file",
    type=click.File("rb"),
    help="A ticket, or the whole body of POST /api/ticket-exports, as JSON; - reads standard input.",
)
@click.option("--source-id", help="The ticket's id in the system that it comes from.")
@click.option("--project", "project_id", type=int, help="The id of a project of the account.")
@json_option
def prepare(
    account_id: int | None,
    file: BinaryIO | None,
    source_id: str | None,
    project_id: int | None,
    as_json: bool,
    **parts: str | None,
) -> None:
    """Prepare a ticket by hand, from options or JSON, with the checks that the API makes.

    Example: riskrelay export prepare --title 'The total is wrong' --severity high

    Exit codes: 0 prepared, 1 refused, 2 wrong usage.
    """
    written = require_ticket(parts, file)
    with opened() as settings:
        account_id = account_or_only(account_id)
        content = written if file is None else parse_strictly(read_limited(file, settings.max_body_bytes))
        preparation = read_preparation(preparation_body(content, source_id, project_id))
        print_export(build_operations(settings).exports.prepare(preparation, account_id, OPERATOR), as_json)


@export.command()
@click.argument("export_id", required=False)
@click.option(
    "--target",
    "target_ids",
    type=ValueList(click.STRING),
    required=True,
    help="The target's id. With EXPORT_ID, several ids separated by commas are possible: each target gets an export.",
)
@bulk_options()
@json_option
def approve(export_id: str | None, target_ids: tuple[str, ...], as_json: bool, **filters: Any) -> None:
    """Approve a prepared export, or all that match filters, for a target; a worker delivers them.

    With filters, a bulk job decides on up to 10,000 exports, without --status on those whose status it can change; a worker
    resumes an interrupted one.

    Examples: riskrelay export approve exp_… --target tgt_…; riskrelay export approve --target tgt_… --severity high,critical

    Exit codes: 0 approved, 1 refused or still running, 2 wrong usage.
    """
    if decides_on_many(export_id, filters) or export_id is None:
        if len(target_ids) > 1:
            raise click.UsageError("With filters, give one target.")
        decide_on_matching(BulkDecision(BulkAction.APPROVE, target_ids[0]), filters, as_json)
        return
    with opened() as settings, refused_urls():
        operations = build_operations(settings)
        if len(target_ids) == 1:
            record = operations.exports.approve(export_id, OPERATOR, Approval(target_ids[0], None))
            operations.wake_workers()
            print_export(record, as_json)
            return
        approval: ApprovalForAll = checked(ApprovalForm(), {"target_ids": target_ids})
        approved = operations.exports.approve_for_all(export_id, OPERATOR, approval)
        operations.wake_workers()
        APPROVED.show([export_record(each, utc_now()) for each in approved], as_json)


@export.command()
@click.argument("export_id", required=False)
@click.option("--reason", type=click.Choice([*map(str, DismissalReason)]), help="The reason.")
@click.option("--note", help="A note for other people; may have several lines.")
@bulk_options()
@json_option
def dismiss(export_id: str | None, reason: str | None, note: str | None, as_json: bool, **filters: Any) -> None:
    """Dismiss a prepared export, or all that match filters.

    New places join a group that is dismissed as false_positive or wont_fix; otherwise they make a new group.

    Example: riskrelay export dismiss exp_… --reason false_positive --note 'The picture is decoration.'

    Exit codes: 0 dismissed, 1 refused or still running, 2 wrong usage.
    """
    is_many = decides_on_many(export_id, filters)
    wanted: DismissalRequest = checked(DismissalForm(), {"reason": reason, "note": note})
    if is_many or export_id is None:
        decide_on_matching(BulkDecision(BulkAction.DISMISS, None, wanted.reason, wanted.note), filters, as_json)
        return
    with opened() as settings:
        print_export(build_operations(settings).exports.dismiss(export_id, OPERATOR, wanted.reason, wanted.note), as_json)


@export.command()
@click.argument("export_id", required=False)
@bulk_options()
@json_option
def restore(export_id: str | None, as_json: bool, **filters: Any) -> None:
    """Make a dismissed export, or all that match filters, prepared again, or end a snooze.

    Example: riskrelay export restore exp_…

    Exit codes: 0 prepared, 1 refused or still running, 2 wrong usage.
    """
    if decides_on_many(export_id, filters) or export_id is None:
        decide_on_matching(BulkDecision(BulkAction.RESTORE), filters, as_json)
        return
    with opened() as settings:
        print_export(build_operations(settings).exports.restore(export_id, OPERATOR), as_json)


@export.command()
@click.argument("export_id")
@click.option(
    "--until",
    metavar="TIME",
    help="The time at which the snooze ends: RFC 3339, a date (UTC), or a time from now such as 14d, 12h, 30m.",
)
@click.option("--until-seen", is_flag=True, help="Snooze until one of its findings is seen again.")
@with_database(print_export, build_operations)
def snooze(operations: Operations, export_id: str, until: str | None, until_seen: bool) -> Export:
    """Snooze a prepared export; it stays prepared, and an approval ends the snooze.

    Example: riskrelay export snooze exp_… --until 14d

    Exit codes: 0 snoozed, 1 refused, 2 wrong usage.
    """
    return operations.exports.snooze(export_id, OPERATOR, snoozed_until(until, until_seen))


@export.command()
@click.argument("export_id")
@with_database(build=build_operations)
def split(operations: Operations, export_id: str) -> Record:
    """Turn a prepared group into one export for each of its findings.

    Example: riskrelay export split exp_…

    Exit codes: 0 split, 1 refused, 2 wrong usage.
    """
    return {"ticket_exports": operations.exports.split(export_id, OPERATOR)}


@export.command()
@click.argument("export_id")
@click.option("--title", help="The title, one line.")
@click.option(
    "--description-file", "file", type=click.File("rb"), help="A file with the description; - reads standard input."
)
@click.option("--severity", help="The severity: info, low, medium, high or critical.")
@click.option(
    "--label", "labels", multiple=True, help="A label; may be repeated. The given labels replace all labels of the ticket."
)
@click.option(
    "--ticket-digest", help="The digest of the ticket that you read; if the ticket has changed since, it is not edited."
)
@json_option
def edit(export_id: str, file: BinaryIO | None, labels: tuple[str, ...], as_json: bool, **parts: str | None) -> None:
    """Replace parts of a prepared ticket; the original is kept.

    Example: riskrelay export edit exp_… --severity low --label accessibility

    Exit codes: 0 edited, 1 refused, 2 wrong usage.
    """
    with opened() as settings:
        description = None if file is None else text_of(read_limited(file, settings.max_body_bytes))
        edited: Edit = checked(EditForm(), {**parts, "description": description, "labels": [*labels] or None})
        print_export(build_operations(settings).exports.edit(export_id, OPERATOR, edited), as_json)


@export.command()
@click.argument("export_id", required=False)
@click.option(
    "--target", "target_id", help="The id of another active target of the account; default: the export's own target."
)
@bulk_options("--of-target")
@json_option
def retry(export_id: str | None, target_id: str | None, as_json: bool, **filters: Any) -> None:
    """Redeliver a failed or blocked export, or all that match filters, with a new retry schedule.

    If the target is blocked, its address is checked again; if the settings of this command allow it, the target is resumed
    as well, and a worker validates it with the worker's settings.

    Example: riskrelay export retry exp_…

    Exit codes: 0 scheduled, 1 refused or still running, 2 wrong usage.
    """
    if decides_on_many(export_id, filters) or export_id is None:
        if target_id is not None:
            raise click.UsageError("With filters, exports are retried at their own targets: use --of-target to filter.")
        decide_on_matching(BulkDecision(BulkAction.RETRY), filters, as_json)
        return
    with opened() as settings, refused_urls():
        operations = build_operations(settings)
        validation = operations.exports.check_blocked_target(export_id, OPERATOR, target_id)
        record = operations.exports.retry(export_id, OPERATOR, validation, target_id)
        operations.wake_workers()
        print_export(record, as_json)


export.add_command(bulk)


def _since(text: str) -> datetime | None:
    """Parse the value of `--since`."""
    now = utc_now()
    moment = parse_since(text, now)
    if moment is not None and moment > now:
        raise click.BadParameter("The time is in the future.")
    return moment


@export.command()
@click.option("--target", "target_id", help="Redeliver the exports of this target.")
@click.option(
    "--since",
    type=Parsed(_since, "Use an RFC 3339 time, a date, or an age such as 7d, 12h or 30m."),
    help="Only exports that ended at this time or later: RFC 3339, a date (UTC), or an age such as 7d, 12h, 30m.",
)
@click.option("--show", "shown_id", metavar="ID", help="Show the progress of a recovery.")
@click.option(
    "--cancel",
    "cancelled_id",
    metavar="ID",
    help="Cancel a running recovery; exports that it already rescheduled stay scheduled.",
)
@click.option("--list", "is_list", is_flag=True, help="List recoveries, newest first.")
@json_option
def recover(
    target_id: str | None,
    since: datetime | None,
    shown_id: str | None,
    cancelled_id: str | None,
    is_list: bool,
    as_json: bool,
) -> None:
    """Redeliver all failed or blocked exports of a target, each with a new retry schedule.

    A worker resumes an interrupted recovery where it stopped.

    Example: riskrelay export recover --target tgt_… --since 7d

    Exit codes: 0 done, 1 refused or still running, 2 wrong usage.
    """
    require_one(HOW_TO_RECOVER, target_id is not None or since is not None, shown_id, cancelled_id, is_list)
    with opened() as settings:
        if is_list:
            RECOVERIES.show([dump(RecoveryResponse, each) for each in recoveries.list_page()], as_json)
        elif shown_id is not None:
            print_record(dump(RecoveryResponse, recoveries.get(shown_id)), as_json)
        elif cancelled_id is not None:
            print_record(dump(RecoveryResponse, operations.cancel(cancelled_id, OPERATOR)), as_json)
        elif target_id is None or since is None:
            raise click.UsageError("Use --target and --since together.")
        else:
            _recover(target_id, since, settings, as_json)


def require_ticket(ticket: Mapping[str, str | None], file: BinaryIO | None) -> dict[str, Any]:
    """Return the ticket from the options, empty if there is a file. Raises UsageError for both or neither."""
    written = given(ticket)
    if (file is None) == (ticket["title"] is None) or (file is not None and written):
        raise click.UsageError("Give the ticket either as --title and other options, or as --ticket.")
    return written


def preparation_body(value: Any, source_id: str | None, project_id: int | None) -> dict[str, Any]:
    """Return the request body for a ticket, or for a whole body, with the fields from options added. Raises UsageError."""
    members = given({"source": None if source_id is None else {"id": source_id}, "project_id": project_id})
    body: dict[str, Any] = value if isinstance(value, dict) and "ticket" in value else {"ticket": value}
    if body.keys() & members.keys():
        raise click.UsageError("The JSON already has `source` or `project_id`; omit --source-id and --project.")
    return body | members


def snoozed_until(until: str | None, until_seen: bool) -> datetime | None:
    """Return the end of the snooze from the options, None for --until-seen. Raises UsageError."""
    if (until is None) != until_seen:
        raise click.UsageError("Use either --until or --until-seen.")
    moment = None if until is None else parse_until(until, utc_now())
    if until is not None and moment is None:
        raise click.UsageError("Use an RFC 3339 time, a date, or a time from now such as 14d, 12h or 30m.")
    return moment


def text_of(content: bytes) -> str:
    """Return a text without the line end that an editor or `echo` adds. Raises Refused."""
    try:
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise Refused("The description is not UTF-8.") from None


def _recover(target_id: str, since: datetime, settings: Settings, as_json: bool) -> None:
    """Start a recovery and process it; raises Refused unless it completes."""
    held = recoveries.begin(target_id, since, utc_now(), "operator")
    task = recovery_task(WakeUpQueue(connect(settings.redis_url)), utc_now)
    progress = process(held, recoveries.get(held.id).total, task, recoveries.release, "recover")
    recovery = recoveries.get(held.id)
    print_record(dump(RecoveryResponse, recovery), as_json)
    if progress is BatchProgress.WAITING_FOR_TARGET:
        raise Refused(f"Target {target_id} was blocked or disabled; a worker continues after `target resume {target_id}`.")
    if recovery.status is not RecoveryStatus.DONE:
        raise Refused(f"A worker took over recovery {held.id}; see `export recover --show {held.id}`.")
