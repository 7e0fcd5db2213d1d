"""`export` at a remote installation: bulk decisions and recoveries are jobs of its workers, for which a command waits."""

import time
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, BinaryIO, Final

import click

from bin.api_client.client import ApiClient, ApiRecord, ApiRefusal, path_to
from bin.cli.option_types import require_one
from bin.cli.output import Refused, echo
from bin.cli.records import print_record, shown_of
from bin.cli.request_bodies import parse_strictly, present, read_limited
from bin.commands.exports import export, export_bulk
from bin.commands.exports.export import APPROVED, snoozed_until, text_of
from bin.remote.remote_command import RemoteCommand, posting, printing
from schemas.base.timestamps import format_rfc3339
from schemas.triage.bulk_decisions import BulkAction

_EXPORTS: Final = "/api/ticket-exports"
_EXPORT: Final = f"{_EXPORTS}/{{export_id}}"
_JOB: Final = "/api/bulk-jobs/{job_id}"
_RECOVERIES: Final = "/api/ticket-export-recoveries"
_RECOVERY: Final = f"{_RECOVERIES}/{{recovery_id}}"
#: Far more than a ticket may have; the server enforces the actual limit.
_MAX_FILE_BYTES: Final = 16 * 1024**2
#: Seconds between two polls of a job.
_PAUSE_S: Final = 1.0
#: A running worker begins a job within seconds, and processes each of its batches in less time.
_NO_PROGRESS_S: Final = 60.0


def _list(api: ApiClient, *, limit: int | None, is_all: bool, as_json: bool, sort: str, **filters: Any) -> None:
    shown = shown_of(limit, as_json, is_all)
    query = export_bulk.given_filters(filters)
    export_bulk.read_filters(query, "--target")
    records = api.items(_EXPORTS, shown, **query, sort=sort)
    export.print_list(records, as_json, is_filtered=bool(query))
    if not as_json and shown is not None and len(records) == shown:
        export.print_rest(api.get(_EXPORTS, **query, limit=1)["total"], shown)


def _show(api: ApiClient, *, export_id: str, as_json: bool) -> None:
    shown = api.get(path_to(_EXPORT, export_id=export_id))
    print_record(shown, as_json)
    if as_json or shown.get("target_id") is None:
        return
    try:
        api.get(path_to("/api/ticket-export-targets/{target_id}", target_id=shown["target_id"]))
    except ApiRefusal as refused:
        # A token may lack the ability to read targets.
        if refused.status == HTTPStatus.NOT_FOUND:
            echo(f"Target {shown['target_id']} was removed.")


def _open(api: ApiClient, *, export_id: str, as_json: bool) -> None:
    export.print_link(api.get(path_to(_EXPORT, export_id=export_id)), as_json)


def _attempts(api: ApiClient, *, export_id: str, as_json: bool) -> None:
    export.ATTEMPTS.show(api.items(path_to(f"{_EXPORT}/attempts", export_id=export_id)), as_json)


def _prepare(
    api: ApiClient, file: BinaryIO | None, source_id: str | None, project_id: int | None, **ticket: str | None
) -> ApiRecord:
    written = export.require_ticket(ticket, file)
    content = written if file is None else parse_strictly(read_limited(file, _MAX_FILE_BYTES))
    return api.post(_EXPORTS, export.preparation_body(content, source_id, project_id))


def _approve(api: ApiClient, *, export_id: str | None, target_ids: tuple[str, ...], as_json: bool, **filters: Any) -> None:
    if export_bulk.decides_on_many(export_id, filters):
        if len(target_ids) > 1:
            raise click.UsageError("With filters, give one target.")
        _decide_on_matching(api, BulkAction.APPROVE, {"target_id": target_ids[0]}, filters, as_json)
        return
    path = path_to(f"{_EXPORT}/approve", export_id=export_id)
    if len(target_ids) == 1:
        print_record(api.post(path, {"target_id": target_ids[0]}), as_json)
        return
    APPROVED.show(api.post(path, {"target_ids": [*target_ids]})["items"], as_json)


def _dismiss(
    api: ApiClient, *, export_id: str | None, reason: str | None, note: str | None, as_json: bool, **filters: Any
) -> None:
    _decide(api, BulkAction.DISMISS, export_id, present({"reason": reason, "note": note}), filters, as_json)


def _restore(api: ApiClient, *, export_id: str | None, as_json: bool, **filters: Any) -> None:
    _decide(api, BulkAction.RESTORE, export_id, {}, filters, as_json)


def _retry(api: ApiClient, *, export_id: str | None, target_id: str | None, as_json: bool, **filters: Any) -> None:
    if export_bulk.decides_on_many(export_id, filters) and target_id is not None:
        raise click.UsageError("With filters, exports are retried at their own targets: use --of-target to filter.")
    _decide(api, BulkAction.RETRY, export_id, present({"target_id": target_id}), filters, as_json)


def _snooze(api: ApiClient, export_id: str, until: str | None, until_seen: bool) -> ApiRecord:
    moment = snoozed_until(until, until_seen)
    body = {} if moment is None else {"until": format_rfc3339(moment)}
    return api.post(path_to(f"{_EXPORT}/snooze", export_id=export_id), body)


def _edit(api: ApiClient, export_id: str, file: BinaryIO | None, labels: tuple[str, ...], **parts: str | None) -> ApiRecord:
    description = None if file is None else text_of(read_limited(file, _MAX_FILE_BYTES))
    body = present({**parts, "description": description, "labels": [*labels] or None})
    return api.patch(path_to(_EXPORT, export_id=export_id), body)


def _bulk(api: ApiClient, *, shown_id: str | None, cancelled_id: str | None, is_list: bool, as_json: bool) -> None:
    require_one(export_bulk.HOW_TO_USE_BULK, shown_id, cancelled_id, is_list)
    if is_list:
        export_bulk.BULK_JOBS.show(api.items("/api/bulk-jobs"), as_json)
    else:
        print_record(_shown_or_cancelled(api, _JOB, "job_id", shown_id, cancelled_id), as_json)


def _recover(
    api: ApiClient,
    *,
    target_id: str | None,
    since: datetime | None,
    shown_id: str | None,
    cancelled_id: str | None,
    is_list: bool,
    as_json: bool,
) -> None:
    require_one(export.HOW_TO_RECOVER, target_id is not None or since is not None, shown_id, cancelled_id, is_list)
    if is_list:
        export.RECOVERIES.show(api.items(_RECOVERIES), as_json)
    elif shown_id is not None or cancelled_id is not None:
        print_record(_shown_or_cancelled(api, _RECOVERY, "recovery_id", shown_id, cancelled_id), as_json)
    elif target_id is None or since is None:
        raise click.UsageError("Use --target and --since together.")
    else:
        begun = api.post(_RECOVERIES, {"target_id": target_id, "since": format_rfc3339(since)})
        _wait_for(api, path_to(_RECOVERY, recovery_id=begun["id"]), begun, "recover", as_json)


def _decide(
    api: ApiClient,
    action: BulkAction,
    export_id: str | None,
    members: dict[str, Any],
    filters: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Decide on one export, or on all that match."""
    if export_bulk.decides_on_many(export_id, filters):
        _decide_on_matching(api, action, members, filters, as_json)
    else:
        print_record(api.post(path_to(f"{_EXPORT}/{action.value}", export_id=export_id), members), as_json)


def _decide_on_matching(
    api: ApiClient, action: BulkAction, members: dict[str, Any], filters: Mapping[str, Any], as_json: bool
) -> None:
    """Begin a job for the matching exports and wait for it, after a confirmation."""
    wanted = export_bulk.filters_of(action, filters)
    allowed = export_bulk.read_filters(wanted).severities
    page = api.get(_EXPORTS, **wanted, limit=1, facets="true")
    count = export_bulk.require_few(page["total"])
    if not count and action is not BulkAction.APPROVE:
        # Print the result of an empty job without creating one; an approval needs the job, which checks its target.
        counts = dict.fromkeys(("total", "done", "changed", "skipped"), 0)
        print_record({"id": None, "action": action.value, "status": "done", **counts}, as_json)
        return
    if count and not filters["is_confirmed"]:
        # The severity facet ignores the filter by severity, so apply the filter here.
        by_severity = page["facets"]["severity"]
        matching = {name: number for name, number in by_severity.items() if not allowed or name in allowed}
        export_bulk.confirm(action, members.get("target_id"), count, matching)
    body = {"action": action.value, **members, "filter": wanted, "expected_count": count}
    job = api.post(f"{_EXPORTS}/bulk", body)
    _wait_for(api, path_to(_JOB, job_id=job["id"]), job, "bulk", as_json)


def _wait_for(api: ApiClient, path: str, job: ApiRecord, command: str, as_json: bool) -> None:
    """Wait while workers process a job, and print it. Raises Refused unless it is done, or if it makes no progress."""
    progress, moved_at = job, time.monotonic()
    try:
        while job["status"] == "running" and time.monotonic() - moved_at < _NO_PROGRESS_S:
            time.sleep(_PAUSE_S)
            job = api.get(path)
            if job != progress:
                progress, moved_at = job, time.monotonic()
    except KeyboardInterrupt:
        cancelling = f"`export {command} --cancel {job['id']}`"
        raise Refused(f"Interrupted; a worker continues {job['id']}. To cancel it: {cancelling}.") from None
    print_record(job, as_json)
    if job["status"] != "done":
        no_progress = f", without progress for {_NO_PROGRESS_S:.0f} s; check that a worker runs"
        state = f"still running{no_progress}" if job["status"] == "running" else job["status"]
        raise Refused(f"{job['id']} is {state}; see `export {command} --show {job['id']}`.")


def _shown_or_cancelled(
    api: ApiClient, template: str, name: str, shown_id: str | None, cancelled_id: str | None
) -> ApiRecord:
    if shown_id is not None:
        return api.get(path_to(template, **{name: shown_id}))
    return api.post(path_to(f"{template}/cancel", **{name: cancelled_id}))


_WITHOUT: Final = ("account_id",)
REMOTE_COMMANDS: Final = {
    ("export", "list"): RemoteCommand(_list, _WITHOUT),
    ("export", "show"): RemoteCommand(_show),
    ("export", "open"): RemoteCommand(_open),
    ("export", "attempts"): RemoteCommand(_attempts),
    ("export", "prepare"): printing(_prepare, without=_WITHOUT),
    ("export", "approve"): RemoteCommand(_approve, _WITHOUT),
    ("export", "dismiss"): RemoteCommand(_dismiss, _WITHOUT),
    ("export", "restore"): RemoteCommand(_restore, _WITHOUT),
    ("export", "snooze"): printing(_snooze),
    ("export", "split"): posting(f"{_EXPORT}/split"),
    ("export", "edit"): printing(_edit),
    ("export", "retry"): RemoteCommand(_retry, _WITHOUT),
    ("export", "bulk"): RemoteCommand(_bulk),
    ("export", "recover"): RemoteCommand(_recover),
}
