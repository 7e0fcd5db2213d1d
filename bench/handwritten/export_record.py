"""The hand-written record of an export: read by polls and returned by approvals."""

import json
import math
from typing import Any, Final

import falcon

from bench.handwritten.rows import SEVERITIES, holder_of, now_ms, time_text
from bench.handwritten.stores import Row, SqlStore

#: Joins the target, whose wait delays the next attempt, and the finding, since the record contains its times.
EXPORT: Final = """
SELECT e.id, e.status, e.status_reason, e.target_id, e.source_type, e.source_id, e.scan_run_id, e.ticket, e.ticket_digest,
    e.preview_problems, e.attempts, e.due_at, e.version,
    e.last_attempt_at, e.last_response_status, e.last_error_code, e.last_duration_ms, e.provider_ticket_id,
    e.provider_ticket_url, e.created_at, e.approved_at, e.finished_at,
    f.id, f.first_seen_at, f.last_seen_at, f.times_seen, f.first_scan_run_id, f.last_scan_run_id,
    t.status,
    CASE WHEN t.max_per_minute <= 61 AND t.paced_until > COALESCE(t.held_until, 0) * 1000
        THEN (t.paced_until + 999) / 1000 ELSE t.held_until END,
    e.project_id, e.severity_rank, e.rule, e.findings_total, e.findings_fixed, e.original_ticket, e.dismissal_reason,
    e.dismissal_note, e.snoozed_at, e.snoozed_until, e.approved_by_user_id, e.approved_by_rule_id, COALESCE(r.name, u.email),
    e.siblings
FROM exports e
    LEFT JOIN findings f ON f.id = e.source_id AND e.source_type = 'finding'
    LEFT JOIN targets t ON t.id = e.target_id
    LEFT JOIN users u ON u.id = e.approved_by_user_id
    LEFT JOIN approval_rules r ON r.id = e.approved_by_rule_id
WHERE e.id = ? AND e.account_id = ?"""


class HandWrittenExport:
    """Responds to polls."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        holder = holder_of(self._store, req, "api", "ticket-exports:read")
        row = self._store.row(EXPORT, (export_id, holder.account_id))
        if row is None:
            raise falcon.HTTPNotFound
        etag = f'"v{row[12]}-snoozed' if _is_snoozed(row) else f'"v{row[12]}'
        etag += '"' if row[22] is None else f'-{row[25]}-{row[24]}"'
        next_at, stopped_by, seconds = _next_attempt(row)
        if next_at != row[11]:
            etag = f'{etag[:-1]}-{stopped_by or next_at}"'
        resp.set_header("ETag", etag)
        if seconds is not None:
            resp.set_header("Retry-After", str(seconds))
        if req.get_header("If-None-Match") == etag:
            resp.status = falcon.HTTP_304
            return
        resp.data = json.dumps(record_of(row), ensure_ascii=False).encode()


def record_of(row: Row) -> dict[str, Any]:
    """Return the record of a row of EXPORT."""
    (id_, status, reason, target_id, source_type, source_id, run_id, ticket, digest, problems, attempts, _due_at) = row[:12]
    (_, last_at, last_status, last_error, last_ms, ticket_id, ticket_url, created_at, approved_at, finished_at) = row[12:22]
    source = {"type": source_type, "id": source_id}
    if run_id is not None:
        source["scan_run_id"] = run_id
    found = json.loads(problems)
    next_at, stopped_by, seconds = _next_attempt(row)
    record = {
        "id": id_,
        "status": status,
        "status_reason": stopped_by or reason,
        "target_id": target_id,
        "source": source,
        "ticket": json.loads(ticket),
        "ticket_digest": digest,
        "preview": {"safe": not found, "problems": found},
        "attempts": attempts,
        "next_attempt_at": time_text(next_at),
        "created_at": time_text(created_at),
        "approved_at": time_text(approved_at),
        "finished_at": time_text(finished_at),
    }
    if seconds is not None:
        record["retry_after_seconds"] = seconds
    if last_at is not None:
        known = {"response_status": last_status, "error_code": last_error, "duration_ms": last_ms}
        record["last_attempt"] = {"at": time_text(last_at), **known}
    if ticket_id or ticket_url:
        record["provider_ticket"] = {"id": ticket_id, "url": ticket_url}
    if row[22] is not None:
        record["finding"] = _sighting(row[22:28])
    return record | _triage(row)


def _triage(row: Row) -> dict[str, Any]:
    """Return the fields that lists sort and group by, and the decisions of people and rules."""
    (project_id, rank, rule, total, fixed, original, reason, note, _, until, user_id, rule_id, approver, siblings) = row[30:]
    findings = None if total is None else {"total": total, "fixed": fixed}
    known = {"project_id": project_id, "severity": SEVERITIES[rank], "rule": rule, "findings": findings}
    known["edited"] = original is not None
    if row[1] == "dismissed":
        known["dismissal"] = {"reason": reason, "note": note, "at": time_text(row[21])}
    if _is_snoozed(row):
        known["snoozed_until"] = time_text(until)
    if row[20] is not None and (rule_id or user_id):
        known["approved_by"] = {"kind": "rule" if rule_id else "user", "id": rule_id or user_id, "name": approver}
    if siblings is not None:
        known["siblings"] = json.loads(siblings)
    if original is not None:
        known["original_ticket"] = json.loads(original)
    return known


def _is_snoozed(row: Row) -> bool:
    return row[38] is not None and (row[39] is None or row[39] > now_ms())


def _sighting(row: Row) -> dict[str, Any]:
    finding_id, first_at, last_at, times, first_run, last_run = row
    seen = {"id": finding_id, "first_seen_at": time_text(first_at), "last_seen_at": time_text(last_at)}
    return {**seen, "times_seen": times, "first_scan_run_id": first_run, "last_scan_run_id": last_run}


def _next_attempt(row: Row) -> tuple[int | None, str | None, int | None]:
    """Return the time of the next attempt, the reason if there is none, and the seconds for Retry-After."""
    status, due_at, target_status, held_until = row[1], row[11], row[28], row[29]
    if status not in {"approved", "retry_scheduled"}:
        return None, None, None
    if target_status in {"paused", "inactive"}:
        return None, f"target_{target_status}", 60
    now = now_ms()
    next_at = max(due_at, held_until) if held_until and target_status == "active" and held_until > now else due_at
    waits = next_at > now or status == "retry_scheduled"
    return next_at, None, max(1, math.ceil((next_at - now) / 1000)) if waits else None
