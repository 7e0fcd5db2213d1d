"""The decisions of `export`: approve, dismiss, restore, snooze, split, edit, retry."""

from datetime import datetime
from typing import Any, BinaryIO, Final

import click

from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import ValueList
from bin.cli.output import Refused
from bin.cli.records import Record, RecordTable, json_option, print_record
from bin.cli.request_bodies import checked, read_limited
from bin.commands.exports.export_bulk import bulk_options, decide_on_matching, decides_on_many, refused_urls
from runtime.clock import utc_now
from schemas.base.principal import OPERATOR
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll, ApprovalForm, Export, export_record
from schemas.exports.recoveries import parse_until
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.decision_forms import DismissalForm, DismissalRequest, Edit, EditForm
from service.operations.wiring import Operations, build_operations

#: The exports of one ticket that was approved for several targets.
APPROVED: Final = RecordTable(("id", "status", "target_id"), "")


def print_export(record: Export, as_json: bool) -> None:
    """Print an export as it is now."""
    print_record(export_record(record, utc_now()), as_json)


@click.command()
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

    With filters, a bulk job decides on up to 10,000 exports; a worker resumes an interrupted one.

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


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
@click.argument("export_id")
@with_database(build=build_operations)
def split(operations: Operations, export_id: str) -> Record:
    """Turn a prepared group into one export for each of its findings.

    Example: riskrelay export split exp_…

    Exit codes: 0 split, 1 refused, 2 wrong usage.
    """
    return {"ticket_exports": operations.exports.split(export_id, OPERATOR)}


@click.command()
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


@click.command()
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
