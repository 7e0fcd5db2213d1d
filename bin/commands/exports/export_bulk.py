"""Decisions of `export` on every export that matches filters: a bulk job, which the command processes itself.

When interrupted, the command finishes the current batch and leaves the rest to a worker; when killed, a worker takes over
once the lease expires.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from threading import Event
from types import FrameType
from typing import Any, Final

import click
from marshmallow.fields import Field

from bin.cli.account_option import account_or_only
from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import ROW_ID, options, require_one
from bin.cli.output import Refused, echo
from bin.cli.records import Command, Record, RecordTable, print_record
from bin.cli.request_bodies import checked, present
from bin.cli.terminal import progress_bar
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.api.bulk import BulkJobResponse
from schemas.api.response_fields import dump
from schemas.base.errors import ValidationFailed
from schemas.base.principal import OPERATOR
from schemas.exports.state_machine import TRANSITIONS, Transition
from schemas.targets.approval import TargetUrlRefused
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.bulk_jobs import BulkJobStatus
from schemas.triage.export_filter import ExportFilterForm, ExportQuery, OneOrMore
from service.operations.wiring import Operations, build_operations
from storage.accounts import projects
from storage.accounts.account_limits import account_limits
from storage.db import engine
from storage.db.leases import BatchProgress, JobLease
from storage.exports.search import export_list
from storage.targets import targets
from storage.triage import bulk_jobs
from storage.triage.bulk_jobs import MAX_MATCHES
from worker.background.batches.batch_task import BatchTask, bulk_job_task

BULK_JOBS: Final = RecordTable(
    ("id", "action", "status", "done", "total", "changed", "skipped", "created_at", "finished_at"), "There are no bulk jobs."
)

HOW_TO_USE_BULK: Final = "Use one of --show, --cancel and --list."

_FIELDS: Final = ExportFilterForm().fields


def _option_of(name: str, target_option: str) -> str:
    """Return the option of a filter of the API."""
    renamed = {"project_id": "--project", "q": "--search", "target_id": target_option}
    return renamed.get(name, f"--{name.replace('_', '-')}")


def filter_options(target_option: str = "") -> Callable[[Command], Command]:
    """Add the options that filter exports; with `target_option`, also the filter by target."""
    named = {name: _option_of(name, target_option) for name in _FIELDS}
    return options(
        *(click.option(option, f"filter_{name}", help=_help_of(_FIELDS[name])) for name, option in named.items() if option),
        click.option("--account", "account_id", type=ROW_ID, help="Only exports of this account."),
    )


def _help_of(field: Field[Any]) -> str:
    allowed = ", ".join(field.allowed) if isinstance(field, OneOrMore) else ""
    return f"{field.metadata['description']}{f' Values: {allowed}.' if allowed else ''}"


def bulk_options(target_option: str = "") -> Callable[[Command], Command]:
    """Add the options that decide on every export that filters match; the default statuses are those that can change."""
    confirmed = click.option("--yes", "is_confirmed", is_flag=True, help="With filters: do not ask for confirmation.")
    return options(filter_options(target_option), confirmed)


def given_filters(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters that were given among the options, by their names in the API."""
    return present({name.removeprefix("filter_"): each for name, each in given.items() if name.startswith("filter_")})


def read_filters(filters: Mapping[str, str], target_option: str = "--of-target") -> ExportQuery:
    """Return the query of filters as the API reads them. Raises UsageError, which names their options."""
    try:
        query: ExportQuery = checked(ExportFilterForm(), filters)
    except ValidationFailed as invalid:
        named = ((each.path.split("/")[1], each.message) for each in invalid.problems)
        raise click.UsageError(
            " ".join(f"{_option_of(name, target_option)}: {message}" for name, message in named)
        ) from None
    return query


def decides_on_many(export_id: str | None, given: Mapping[str, Any]) -> bool:
    """Return whether a command has filters instead of one export's id. Raises UsageError for both or neither."""
    is_filtered = bool(given_filters(given))
    if export_id is not None and (is_filtered or given["is_confirmed"] or given.get("account_id") is not None):
        raise click.UsageError("Use an export's id or filters, not both.")
    if export_id is None and not is_filtered:
        raise click.UsageError("Use an export's id, or filters such as --severity high,critical.")
    return export_id is None


def decide_on_matching(decision: BulkDecision, given: Mapping[str, Any], as_json: bool) -> None:
    """Decide on every export that `filter_options` match, after a confirmation. Raises Refused unless the job completes."""
    with opened() as settings:
        query = read_filters(filters_of(decision.action, given))
        query = replace(query, account_id=given["account_id"] or _account_of(decision, query))
        count = require_few(export_list.count(query))
        if count and not given["is_confirmed"]:
            confirm(decision.action, decision.target_id, count, export_list.count_by_severity(query))
        with refused_urls():
            held = build_operations(settings).bulk.begin_claimed(decision, query, count, query.account_id or 0)
        wake_ups = WakeUpQueue(connect(settings.redis_url))
        task = bulk_job_task(wake_ups, settings.target_policy, account_limits(settings), utc_now)
        process(held, bulk_jobs.get(held.id).total, task, bulk_jobs.release, "bulk")
        job = bulk_jobs.get(held.id)
        print_record(dump(BulkJobResponse, job), as_json)
    if job.status is not BulkJobStatus.DONE:
        raise Refused(f"Bulk job {held.id} is {job.status}; see `export bulk --show {held.id}`.")


@contextmanager
def refused_urls() -> Iterator[None]:
    """Raise Refused with the fix if the policy refuses a target's URL."""
    try:
        yield
    except TargetUrlRefused as refused:
        # These settings may differ from those of the service and the workers, so they do not block the target.
        raise Refused(
            f"The target policy of these settings refuses the target's URL ({refused.reason}); nothing was changed. Use "
            "the settings of the service, or correct TARGET_ALLOWED_PORTS, TARGET_ALLOWED_NETWORKS or TARGET_ALLOW_HTTP."
        ) from None


@click.command()
@click.option("--show", "shown_id", metavar="ID", help="Show the progress of a bulk job.")
@click.option("--cancel", "cancelled_id", metavar="ID", help="Cancel a running bulk job; its decisions stay in effect.")
@click.option("--list", "is_list", is_flag=True, help="List bulk jobs, newest first.")
@with_database(BULK_JOBS.show, build_operations)
def bulk(operations: Operations, shown_id: str | None, cancelled_id: str | None, is_list: bool) -> list[Record] | Record:
    """Show, list or cancel bulk jobs: decisions on all exports that matched filters.

    Example: riskrelay export bulk --show blk_…

    Exit codes: 0 shown or cancelled, 1 not found, 2 wrong usage.
    """
    require_one(HOW_TO_USE_BULK, shown_id, cancelled_id, is_list)
    if is_list:
        return [dump(BulkJobResponse, each) for each in bulk_jobs.list_page()]
    if cancelled_id is not None:
        return dump(BulkJobResponse, operations.bulk.cancel(cancelled_id, OPERATOR))
    return dump(BulkJobResponse, bulk_jobs.get(str(shown_id)))


def _account_of(decision: BulkDecision, query: ExportQuery) -> int:
    """Return the account of the target or of the filters; a job decides on exports of one account."""
    target_id = decision.target_id or next(iter(query.target_ids), None)
    if target_id is not None:
        return targets.account_of(targets.find_row(target_id))
    if query.project_ids:
        return projects.get_project(query.project_ids[0]).account_id
    return account_or_only(None)


def filters_of(action: BulkAction, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters among the options; by default the statuses are those that the decision can change."""
    sources = sorted(each.value for each in TRANSITIONS[Transition(action.value)].sources)
    return {"status": ",".join(sources), **given_filters(given)}


def require_few(count: int | None) -> int:
    """Return the count of matching exports. Raises Refused if it is too large for a job, or None: too large to count."""
    if count is None or count > MAX_MATCHES:
        raise Refused(f"More than {MAX_MATCHES:,} exports match; narrow the filters and run several commands.")
    return count


def confirm(action: BulkAction, target_id: str | None, count: int, by_severity: Mapping[str, int]) -> None:
    """Print how many exports would change, and ask for confirmation. Raises Refused without a yes."""
    severities = ", ".join(f"{number:,} {severity}" for severity, number in by_severity.items())
    for_target = f" for target {target_id}" if action is BulkAction.APPROVE else ""
    matches = "1 export matches" if count == 1 else f"{count:,} exports match"
    echo(f"{matches}: {severities}.", err=True)
    try:
        click.confirm(f"{action.value.capitalize()} them{for_target}?", abort=True, err=True)
    except click.Abort:
        raise Refused("Nothing was changed; answer y, or use --yes.") from None


def process(
    held: JobLease, total: int, task: BatchTask, release: Callable[[JobLease, datetime], None], command: str
) -> BatchProgress:
    """Process the batches of a job until none is left; return the last progress. Raises Refused when interrupted."""
    # Each batch takes a connection of its own, so that no connection is held while workers are notified.
    engine.release()
    with _interruption() as interrupted, progress_bar(total, held.id) as bar:
        while (step := task.process_batch(held)).progress is BatchProgress.MORE and not interrupted.is_set():
            bar.update(step.processed)
    if step.progress is BatchProgress.MORE:
        release(held, utc_now())
        raise Refused(f"Interrupted; a worker continues {held.id}. To cancel it: `export {command} --cancel {held.id}`.")
    return step.progress


@contextmanager
def _interruption() -> Iterator[Event]:
    """Yield an event that the first SIGINT or SIGTERM sets, to finish the current batch; a second one ends the command."""
    interrupted = Event()

    def note(number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
