"""The hand-written record of an export: read by polls and returned by approvals."""

import json
import math
from typing import Any, Final

import falcon

from bench.handwritten.rows import holder_of, now_ms, time_text
from bench.handwritten.stores import Row, SqlStore

#: A target that waits moves the next attempt, and a finding tells when it was seen: the record says both.
EXPORT: Final = """
SELECT e.id, e.status, e.status_reason, e.target_id, e.source_type, e.source_id, e.scan_run_id, e.ticket, e.ticket_digest,
    e.preview_problems, e.attempts, e.due_at, e.version,
    e.last_attempt_at, e.last_response_status, e.last_error_code, e.last_duration_ms, e.provider_ticket_id,
    e.provider_ticket_url, e.created_at, e.approved_at, e.finished_at,
    f.id, f.first_seen_at, f.last_seen_at, f.times_seen, f.first_scan_run_id, f.last_scan_run_id,
    t.status,
    CASE WHEN t.max_per_minute <= 61 AND t.paced_until > COALESCE(t.held_until, 0) * 1000
        THEN (t.paced_until + 999) / 1000 ELSE t.held_until END
FROM exports e
    LEFT JOIN findings f ON f.id = e.source_id AND e.source_type = 'finding'
    LEFT JOIN targets t ON t.id = e.target_id
WHERE e.id = ? AND e.account_id = ?"""


class HandWrittenExport:
    """Answers polls."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        holder = holder_of(self._store, req, "api", "ticket-exports:read")
        row = self._store.row(EXPORT, (export_id, holder.account_id))
        if row is None:
            raise falcon.HTTPNotFound
        etag = f'"v{row[12]}"' if row[22] is None else f'"v{row[12]}-{row[25]}-{row[24]}"'
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
    return record


def _sighting(row: Row) -> dict[str, Any]:
    finding_id, first_at, last_at, times, first_run, last_run = row
    seen = {"id": finding_id, "first_seen_at": time_text(first_at), "last_seen_at": time_text(last_at)}
    return {**seen, "times_seen": times, "first_scan_run_id": first_run, "last_scan_run_id": last_run}


def _next_attempt(row: Row) -> tuple[int | None, str | None, int | None]:
    """Return when it is tried next, what stops it, and the seconds until then."""
    status, due_at, target_status, held_until = row[1], row[11], row[28], row[29]
    if status not in {"approved", "retry_scheduled"}:
        return None, None, None
    if target_status in {"paused", "inactive"}:
        return None, f"target_{target_status}", 60
    now = now_ms()
    next_at = max(due_at, held_until) if held_until and target_status == "active" and held_until > now else due_at
    waits = next_at > now or status == "retry_scheduled"
    return next_at, None, max(1, math.ceil((next_at - now) / 1000)) if waits else None
