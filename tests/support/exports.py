"""Exports for tests: a row, and the record that the API should return for it, built member by member."""

import json
from datetime import UTC, datetime
from typing import Any, Final

from schemas.base.timestamps import format_rfc3339, format_rfc3339_or_none, to_ms
from schemas.exports.next_attempt import next_attempt
from schemas.exports.polled_record import PolledExport
from schemas.exports.record import Export, LastAttempt, Sighting, as_shown

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def export_row(ticket: dict[str, Any] | None = None, **changes: Any) -> PolledExport:
    """Return the row of a prepared export that was made from a finding."""
    empty = PolledExport._make([None] * len(PolledExport._fields))
    row = empty._replace(
        id="exp_1",
        account_id=1,
        status="prepared",
        source_type="finding",
        source_id="fnd_1",
        scan_run_id=42,
        ticket=json.dumps({"title": "T"} if ticket is None else ticket),
        ticket_digest="sha256:00",
        preview_problems="[]",
        attempts=0,
        version=1,
        created_at=to_ms(NOW),
        severity_rank=0,
    )
    return row._replace(**changes)


def written_record(export: Export, now: datetime) -> dict[str, Any]:
    """Return the record of an export at `now`."""
    row = export.stored
    attempt = next_attempt(row.status, row.due_at, row.target_status, row.held_until, to_ms(now))
    export = as_shown(export, now)
    record: dict[str, Any] = {
        "id": export.id,
        "status": export.status.value,
        "status_reason": export.status_reason,
        "target_id": export.target_id,
        "source": export.source.record(),
        "ticket": export.ticket,
        "ticket_digest": export.ticket_digest,
        "preview": {"safe": not export.preview_problems, "problems": list(export.preview_problems)},
        "attempts": export.attempts,
        "next_attempt_at": format_rfc3339_or_none(export.due_at),
        "created_at": format_rfc3339(export.created_at),
        "approved_at": format_rfc3339_or_none(export.approved_at),
        "finished_at": format_rfc3339_or_none(export.finished_at),
        "project_id": export.project_id,
        "severity": export.severity,
        "rule": export.rule,
        "findings": None if export.findings is None else {"total": export.findings[0], "fixed": export.findings[1]},
        "edited": export.original_ticket is not None,
    }
    if attempt.retry_after_s is not None:
        record["retry_after_seconds"] = attempt.retry_after_s
    if export.last_attempt is not None:
        record["last_attempt"] = _last_attempt(export.last_attempt)
    if export.provider_ticket_id or export.provider_ticket_url:
        record["provider_ticket"] = {"id": export.provider_ticket_id, "url": export.provider_ticket_url}
    if export.finding is not None:
        record["finding"] = _sighting(export.finding)
    if export.dismissal is not None:
        at = format_rfc3339_or_none(export.dismissal.at)
        record["dismissal"] = {"reason": export.dismissal.reason, "note": export.dismissal.note, "at": at}
    if export.snooze is not None and not export.snooze.is_over(now):
        record["snoozed_until"] = format_rfc3339_or_none(export.snooze.until)
    if export.approved_by is not None:
        kind, id_, name = export.approved_by.kind, export.approved_by.id, export.approved_by.name
        record["approved_by"] = {"kind": kind, "id": id_, "name": name}
    if export.siblings is not None:
        record["siblings"] = list(export.siblings)
    if export.original_ticket is not None:
        record["original_ticket"] = export.original_ticket
    return record


def _sighting(finding: Sighting) -> dict[str, Any]:
    return {
        "id": finding.finding_id,
        "first_seen_at": format_rfc3339(finding.first_seen_at),
        "last_seen_at": format_rfc3339(finding.last_seen_at),
        "times_seen": finding.times_seen,
        "first_scan_run_id": finding.first_scan_run_id,
        "last_scan_run_id": finding.last_scan_run_id,
    }


def _last_attempt(attempt: LastAttempt) -> dict[str, Any]:
    return {
        "at": format_rfc3339(attempt.at),
        "response_status": attempt.response_status,
        "error_code": attempt.error_code,
        "duration_ms": attempt.duration_ms,
    }
