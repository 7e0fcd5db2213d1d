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
    e.preview_problems, e.attempts,
    CASE WHEN e.status IN ('approved', 'retry_scheduled') AND t.status = 'active' AND t.held_until > e.due_at
        THEN t.held_until ELSE e.due_at END,
    e.version, e.last_attempt_at, e.last_response_status, e.last_error_code, e.last_duration_ms, e.provider_ticket_id,
    e.provider_ticket_url, e.created_at, e.approved_at, e.finished_at,
    f.id, f.first_seen_at, f.last_seen_at, f.times_seen, f.first_scan_run_id, f.last_scan_run_id
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
        resp.set_header("ETag", etag)
        if row[1] == "retry_scheduled":
            resp.set_header("Retry-After", str(_retry_after_s(row)))
        if req.get_header("If-None-Match") == etag:
            resp.status = falcon.HTTP_304
            return
        resp.data = json.dumps(record_of(row), ensure_ascii=False).encode()


def record_of(row: Row) -> dict[str, Any]:
    """Return the record of a row of EXPORT."""
    (id_, status, reason, target_id, source_type, source_id, run_id, ticket, digest, problems, attempts, due_at) = row[:12]
    (_, last_at, last_status, last_error, last_ms, ticket_id, ticket_url, created_at, approved_at, finished_at) = row[12:22]
    source = {"type": source_type, "id": source_id}
    if run_id is not None:
        source["scan_run_id"] = run_id
    found = json.loads(problems)
    record = {
        "id": id_,
        "status": status,
        "status_reason": reason,
        "target_id": target_id,
        "source": source,
        "ticket": json.loads(ticket),
        "ticket_digest": digest,
        "preview": {"safe": not found, "problems": found},
        "attempts": attempts,
        "next_attempt_at": time_text(due_at) if status in {"approved", "retry_scheduled"} else None,
        "created_at": time_text(created_at),
        "approved_at": time_text(approved_at),
        "finished_at": time_text(finished_at),
    }
    if status == "retry_scheduled":
        record["retry_after_seconds"] = _retry_after_s(row)
    if last_at is not None:
        known = {"response_status": last_status, "error_code": last_error, "duration_ms": last_ms}
        record["last_attempt"] = {"at": time_text(last_at), **known}
    if ticket_id or ticket_url:
        record["provider_ticket"] = {"id": ticket_id, "url": ticket_url}
    if row[22] is not None:
        record["finding"] = _sighting(row[22:])
    return record


def _sighting(row: Row) -> dict[str, Any]:
    finding_id, first_at, last_at, times, first_run, last_run = row
    seen = {"id": finding_id, "first_seen_at": time_text(first_at), "last_seen_at": time_text(last_at)}
    return {**seen, "times_seen": times, "first_scan_run_id": first_run, "last_scan_run_id": last_run}


def _retry_after_s(row: Row) -> int:
    due_at_ms: int = row[11]
    return max(1, math.ceil((due_at_ms - now_ms()) / 1000))
