"""Hand-written client writes: a new target, an approval, a capture of the browser extension."""

import json
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import falcon
from redis import Redis

from bench.handwritten.export_record import EXPORT, record_of
from bench.handwritten.rows import (
    DraftExport,
    Holder,
    RouteResponse,
    audit,
    canonical,
    compact,
    holder_of,
    new_id,
    now_ms,
    once,
    prepare,
    time_text,
)
from bench.handwritten.stores import Execute, PostgresStore, Row, SqlStore

#: A target is validated again a day after it passed.
_VALID_FOR_MS: Final = 24 * 3600 * 1000

_TARGET: Final = """
INSERT INTO targets (id, account_id, provider_key, base_url, deployment_mode, name, status, status_reason, connected_status,
    validation_status, validated_at, validation_due_at, created_at, updated_at, concurrency, ramp, failures_in_row)
VALUES (?, ?, ?, ?, ?, ?, 'active', NULL, 'unknown', 'passed', ?, ?, ?, ?, 16, 4, 0)"""
_LOCK: Final = "SELECT 1 FROM exports WHERE id = ? FOR UPDATE"
_TARGET_STATE: Final = "SELECT status, events FROM targets WHERE id = ? AND account_id = ?"
_APPROVE: Final = """
UPDATE exports SET status = 'approved', target_id = ?, body = ?, approved_at = ?, due_at = ?, schedule_began_at = ?,
    version = version + 1, approved_by_user_id = ?, events = ?
WHERE id = ? AND version = ? AND status = 'prepared'"""
_MANAGEABLE: Final = """
SELECT EXISTS (SELECT 1 FROM grants g WHERE g.user_id = ? AND g.project_id = p.id)
FROM projects p WHERE p.id = ? AND p.account_id = ?"""
_CAPTURE: Final = """
INSERT INTO evidence_captures (id, project_id, report_id, page_url, page_title, selected_text, meta_description,
    canonical_url, heading_outline, captured_at, extension_version, created_at)
VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_HANDOFF: Final = """
INSERT INTO handoffs (id, source_type, source_id, project_id, report_id, user_id, export_id, status, created_at)
VALUES (?, 'evidence_capture', ?, ?, NULL, ?, ?, 'received', ?)"""

#: The fields of a capture that are returned unchanged.
_CAPTURED: Final = (
    "page_url",
    "page_title",
    "selected_text",
    "meta_description",
    "canonical_url",
    "heading_outline",
    "captured_at",
    "extension_version",
)

#: Redis key for "workers are notified": only the client that sets it sends a wake-up. In the product, the worker deletes it;
#: it expires after _MARK_S seconds.
_MARK: Final = "bench:notified"
_MARK_S: Final = 5
_WAKE_UPS: Final = "bench:wake-ups"


class Targets:
    """Creates targets; does not check their addresses."""

    def __init__(self, store: SqlStore, base_url: str, fingerprint: str, deployment_mode: str) -> None:
        self._store = store
        self._url = f"{base_url}/api/ticket-export-targets"
        self._fingerprint = fingerprint
        self._deployment_mode = deployment_mode

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        holder = holder_of(self._store, req, "api", "ticket-export-targets:manage")
        if not holder.may_use_webhooks:
            raise falcon.HTTPForbidden
        body = req.bounded_stream.read()
        parsed = json.loads(body)
        once(self._store, req, resp, holder.key, 201, body, lambda execute: self._create(execute, holder, parsed))

    def _create(self, execute: Execute, holder: Holder, parsed: dict[str, Any]) -> RouteResponse:
        at_ms = now_ms()
        target_id, mode = new_id("tgt", at_ms), parsed.get("deployment_mode") or self._deployment_mode
        values = (parsed["provider_key"], parsed["base_url"], mode, parsed["name"])
        execute(_TARGET, (target_id, holder.account_id, *values, at_ms, at_ms + _VALID_FOR_MS, at_ms, at_ms))
        audit(execute, [(at_ms, holder.key, "create_target", target_id, None, None, None, holder.account_id)])
        return self._record(target_id, parsed, mode, at_ms), {"Location": f"{self._url}/{target_id}"}

    def _record(self, target_id: str, parsed: dict[str, Any], mode: str, at_ms: int) -> dict[str, Any]:
        at = time_text(at_ms)
        return {
            "id": target_id,
            "provider_key": parsed["provider_key"],
            "base_url": parsed["base_url"],
            "deployment_mode": mode,
            "name": parsed["name"],
            "status": "active",
            "status_reason": None,
            "secret": {"configured": True, "fingerprint": self._fingerprint},
            "connected": {"status": "unknown", "last_success_at": None},
            "last_validation": {"status": "passed", "reason": None, "checked_at": at},
            "max_per_minute": None,
            "provider_settings": {},
            "signature": "service",
            "format": "ticket",
            "events": [],
            "headers": [],
            "standard_secret": {"configured": False, "fingerprint": None},
            "delivery": {"concurrency": 4, "failures_in_row": 0, "max_per_minute": None, "waits_until": None},
            "created_at": at,
        }


class ApprovalRoute:
    """Approves exports, and notifies a worker after the commit."""

    def __init__(self, store: SqlStore, base_url: str, redis: Redis) -> None:
        self._store = store
        self._url = f"{base_url}/api/ticket-exports"
        self._redis = redis

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        holder = holder_of(self._store, req, "api", "ticket-exports:approve")
        body = req.bounded_stream.read()
        target_id = json.loads(body)["target_id"]
        once(
            self._store, req, resp, holder.key, 202, body, lambda execute: self._once(execute, holder, export_id, target_id)
        )
        if self._redis.set(_MARK, 1, nx=True, ex=_MARK_S):
            self._redis.lpush(_WAKE_UPS, "1")

    def _once(self, execute: Execute, holder: Holder, export_id: str, target_id: str) -> RouteResponse:
        if isinstance(self._store, PostgresStore):
            execute(_LOCK, (export_id,))
        row = execute(EXPORT, (export_id, holder.account_id)).fetchone()
        if row is None:
            raise falcon.HTTPNotFound
        record = record_of(row)
        if record["target_id"] != target_id:
            self._approve(execute, holder, record, row, target_id)
        return record, {"Location": f"{self._url}/{export_id}"}

    def _approve(self, execute: Execute, holder: Holder, record: dict[str, Any], row: Row, target_id: str) -> None:
        target = execute(_TARGET_STATE, (target_id, holder.account_id)).fetchone()
        if target is None or target[0] not in {"active", "paused"} or not record["preview"]["safe"]:
            raise falcon.HTTPUnprocessableEntity
        at_ms = now_ms()
        at, export_id = time_text(at_ms), record["id"]
        frozen = {"id": export_id, "type": "ticket.export", "version": 1, "created_at": at, "ticket": record["ticket"]}
        frozen["export"] = {"id": export_id, "target_id": target_id, "source": record["source"]}
        changed = (target_id, canonical(frozen), at_ms, at_ms, at_ms, holder.user_id, target[1], export_id, row[12])
        if not execute(_APPROVE, changed).rowcount:
            raise falcon.HTTPConflict
        decided = bytes.fromhex(record["ticket_digest"].removeprefix("sha256:"))
        audit(execute, [(at_ms, holder.key, "approve", export_id, "prepared", "approved", decided, holder.account_id)])
        record |= {"status": "approved", "target_id": target_id, "next_attempt_at": at, "approved_at": at}
        record["approved_by"] = {"kind": "user", "id": holder.user_id, "name": holder.email}


class Captures:
    """Accepts captures of the browser extension."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        holder = holder_of(self._store, req, "platform", "browser-extension:evidence-upload")
        body = req.bounded_stream.read()
        capture = json.loads(body)
        once(self._store, req, resp, holder.key, 201, body, lambda execute: _record_capture(execute, holder, capture))


def _record_capture(execute: Execute, holder: Holder, capture: dict[str, Any]) -> RouteResponse:
    project_id, at_ms = capture["project_id"], now_ms()
    granted = execute(_MANAGEABLE, (holder.user_id, project_id, holder.account_id)).fetchone()
    if granted is None or not granted[0]:
        raise falcon.HTTPForbidden
    captured_at = datetime.fromisoformat(capture["captured_at"]).astimezone(UTC)
    captured_ms = round(captured_at.timestamp() * 1000)
    facts = {**{name: capture[name] for name in _CAPTURED}, "captured_at": time_text(captured_ms)}
    capture_id, handoff_id, export_id = new_id("evc", at_ms), new_id("hof", at_ms), new_id("exp", at_ms)
    execute(_CAPTURE, _capture_row(capture_id, capture, captured_ms, at_ms))
    draft = DraftExport(export_id, "evidence_capture", capture_id, None, _capture_ticket(facts))
    prepare(execute, holder.account_id, project_id, [draft], at_ms, holder.key)
    execute(_HANDOFF, (handoff_id, capture_id, project_id, holder.user_id, export_id, at_ms))
    audit(execute, [(at_ms, holder.key, "hand_off", handoff_id, None, "received", None, holder.account_id)])
    belongs = {"project_id": project_id, "report_id": None}
    handoff = {"id": handoff_id, "source": {"type": "evidence_capture", "id": capture_id}, **belongs}
    handoff |= {"ticket_export_id": export_id, "status": "received", "created_at": time_text(at_ms)}
    record = {"id": capture_id, **belongs, **facts, "created_at": time_text(at_ms)}
    return {"evidence_capture": record, "handoff": handoff}, {}


def _capture_row(capture_id: str, capture: dict[str, Any], captured_ms: int, at_ms: int) -> Row:
    text = (capture["page_url"], capture["page_title"], capture["selected_text"], capture["meta_description"])
    outline = compact(capture["heading_outline"])
    made = (capture["canonical_url"], outline, captured_ms, capture["extension_version"], at_ms)
    return (capture_id, capture["project_id"], *text, *made)


def _capture_ticket(facts: dict[str, Any]) -> dict[str, Any]:
    headings = "; ".join(f"{heading['level']} {heading['text']}" for heading in facts["heading_outline"])
    text = (
        f"Page: {facts['page_url']}\nTitle: {facts['page_title']}\nCanonical URL: {facts['canonical_url']}\n"
        f"Meta description: {facts['meta_description']}\nHeadings: {headings}\nCaptured at: {facts['captured_at']}\n"
        f"Captured with: browser extension {facts['extension_version']}"
    )
    return {
        "title": f"Evidence from {urlsplit(facts['page_url']).path}: {facts['page_title']}",
        "description": f"{facts['selected_text']}\n\n{text}",
        "severity": "info",
        "page_url": facts["page_url"],
        "labels": ["website-risk", "severity:info", "source:browser-extension"],
        "evidence": facts,
    }
