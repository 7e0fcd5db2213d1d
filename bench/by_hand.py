"""The product's two hot routes written by hand: bare SQL in Falcon responders, through sqlite3 and psycopg themselves.

The same statements in the same transactions on the same tables, with the same durability, and the same answers. What it
leaves out is what the product is for: checks of what was sent, rate limits, request ids, logs, a common error body.
Whatever it does not expect becomes a 500.
"""

import hashlib
import hmac
import json
import os
import secrets
import time
from typing import Any, Final
from urllib.parse import urlsplit

import falcon

from bench.stores import Execute, Row, Store, open_store

_SEVERITIES: Final = {"serious": "high", "minor": "low", "moderate": "medium", "critical": "critical"}

_PRINCIPAL: Final = """
SELECT t.user_id, u.account_id, t.abilities FROM tokens t JOIN users u ON u.id = t.user_id
WHERE t.token_sha256 = ? AND t.kind = 'api' AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?)"""
_EXPORT: Final = """
SELECT id, status, status_reason, target_id, source_type, source_id, scan_run_id, ticket, ticket_digest, preview_problems,
    attempts, due_at, version, last_attempt_at, last_response_status, last_error_code, last_duration_ms,
    provider_ticket_id, provider_ticket_url, created_at, approved_at, finished_at
FROM exports WHERE id = ? AND account_id = ?"""
_ROTATED: Final = "SELECT secret_sealed FROM integration_secrets WHERE name = 'scanner'"
_CLAIM_KEY: Final = """
INSERT INTO idempotency_keys (principal, method, route, key, payload_sha256, created_at)
VALUES ('scanner', 'POST', '/api/scanner/results', ?, ?, ?) ON CONFLICT (principal, method, route, key) DO NOTHING"""
_RECALL: Final = """
SELECT payload_sha256, response_body FROM idempotency_keys
WHERE principal = 'scanner' AND method = 'POST' AND route = '/api/scanner/results' AND key = ?"""
_ANSWER: Final = """
UPDATE idempotency_keys SET response_status = 202, response_headers = '{}', response_body = ?
WHERE principal = 'scanner' AND method = 'POST' AND route = '/api/scanner/results' AND key = ?"""
_RUN: Final = "SELECT p.id, p.account_id FROM scan_runs s JOIN projects p ON p.id = s.project_id WHERE s.id = ?"
_MAKE_RUN: Final = """
INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""
_NOTE_RUN: Final = """
UPDATE scan_runs SET status = ?, updated_at = ? WHERE id = ?
RETURNING project_id, (SELECT account_id FROM projects WHERE projects.id = scan_runs.project_id)"""
_PAGE: Final = """
INSERT INTO page_results
    (scan_run_id, url, normalized_url, status_code, page_type, response_headers, screenshot_path, received_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scan_run_id, url) DO UPDATE SET
    normalized_url = excluded.normalized_url, status_code = excluded.status_code, page_type = excluded.page_type,
    response_headers = excluded.response_headers, screenshot_path = excluded.screenshot_path,
    received_at = excluded.received_at"""
_FINDING: Final = """
INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, first_scan_run_id,
    last_scan_run_id, first_seen_at, last_seen_at, times_seen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING id"""
_SEEN: Final = """
UPDATE findings SET times_seen = times_seen + CASE WHEN last_scan_run_id = ? THEN 0 ELSE 1 END, last_scan_run_id = ?,
    last_seen_at = ? WHERE project_id = ? AND fingerprint = ?"""
_PREPARE: Final = """
INSERT INTO exports (id, account_id, project_id, source_type, source_id, scan_run_id, status, ticket, ticket_digest,
    preview_problems, attempts, attempts_before, version, created_at)
VALUES (?, ?, ?, 'finding', ?, ?, 'prepared', ?, ?, '[]', 0, 0, 1, ?)"""
_AUDIT: Final = """
INSERT INTO audit_entries (at, actor, action, subject_id, status_before, status_after, reason)
VALUES (?, 'scanner', 'prepare', ?, NULL, 'prepared', NULL)"""


class TicketExport:
    """Answers polls."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        token = (req.get_header("Authorization") or "").removeprefix("Bearer ")
        holder = self._store.row(_PRINCIPAL, (hashlib.sha256(token.encode()).hexdigest(), _now_ms()))
        if holder is None or "ticket-exports:read" not in json.loads(holder[2]):
            raise falcon.HTTPUnauthorized
        row = self._store.row(_EXPORT, (export_id, holder[1]))
        if row is None:
            raise falcon.HTTPNotFound
        resp.set_header("ETag", f'"v{row[12]}"')
        resp.data = json.dumps(_record(row), ensure_ascii=False).encode()


class ScannerResults:
    """Takes postbacks."""

    def __init__(self, store: Store, secret: str, project_id: int) -> None:
        self._store = store
        self._secret = secret.encode()
        self._project_id = project_id

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        if self._store.row(_ROTATED) is not None or not hmac.compare_digest(_secret_of(req), self._secret):
            raise falcon.HTTPUnauthorized
        body = req.bounded_stream.read()
        postback = json.loads(body)
        key, digest = req.get_header("Idempotency-Key"), hashlib.sha256(body).hexdigest()
        now_ms = _now_ms()
        with self._store.transaction() as execute:
            if execute(_CLAIM_KEY, (key, digest, now_ms)).rowcount:
                answer = json.dumps(self._record(execute, postback, now_ms))
                execute(_ANSWER, (answer, key))
            else:
                known_digest, answer = execute(_RECALL, (key,)).fetchone()
                if known_digest != digest:
                    raise falcon.HTTPConflict
        resp.status = falcon.HTTP_202
        resp.data = answer.encode()

    def _record(self, execute: Execute, postback: dict[str, Any], now_ms: int) -> dict[str, Any]:
        run_id, page = postback["scanRunId"], postback["page"]
        project_id, account_id = self._run(execute, run_id, postback["status"], now_ms)
        execute(_PAGE, _page_row(postback, now_ms))
        exports = []
        for issue in postback["issues"]:
            finding_id, mark = _new_id("fnd", now_ms), _fingerprint(page, issue)
            if not execute(_FINDING, _finding_row(finding_id, project_id, mark, issue, page, run_id, now_ms)).fetchone():
                execute(_SEEN, (run_id, run_id, now_ms, project_id, mark))
                continue
            export_id, ticket = _new_id("exp", now_ms), _ticket(page, issue, run_id)
            text = json.dumps(ticket, ensure_ascii=False, separators=(",", ":"))
            digest = json.dumps(ticket, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
            mark = f"sha256:{hashlib.sha256(digest).hexdigest()}"
            execute(_PREPARE, (export_id, account_id, project_id, finding_id, run_id, text, mark, now_ms))
            execute(_AUDIT, (now_ms, export_id))
            exports.append(export_id)
        counts = {"new": len(exports), "seen": len(postback["issues"]) - len(exports)}
        return {"scan_run_id": run_id, "status": "accepted", "findings": counts, "ticket_exports": exports}

    def _run(self, execute: Execute, run_id: int, status: str, now_ms: int) -> Row:
        noted: Row | None = execute(_NOTE_RUN, (status, now_ms, run_id)).fetchone()
        if noted is not None:
            return noted
        execute(_MAKE_RUN, (run_id, self._project_id, status, now_ms, now_ms))
        made: Row = execute(_RUN, (run_id,)).fetchone()
        return made


def _secret_of(req: falcon.Request) -> bytes:
    return (req.get_header("X-Scanner-Secret") or "").encode()


def _page_row(postback: dict[str, Any], now_ms: int) -> Row:
    page = postback["page"]
    headers = json.dumps(page["responseHeaders"])
    screenshot = postback["artifacts"]["screenshotPath"]
    about = (page["normalizedUrl"], page["statusCode"], page["pageType"])
    return (postback["scanRunId"], page["url"], *about, headers, screenshot, now_ms)


def _finding_row(
    finding_id: str, project_id: int, mark: str, issue: dict[str, Any], page: dict[str, Any], run_id: int, now_ms: int
) -> Row:
    told = (issue["code"], issue["title"], _SEVERITIES[issue["severity"]], page["url"], issue["location"])
    return (finding_id, project_id, mark, *told, run_id, run_id, now_ms, now_ms)


def _fingerprint(page: dict[str, Any], issue: dict[str, Any]) -> str:
    return hashlib.sha256("\0".join((page["normalizedUrl"], issue["code"], issue["location"])).encode()).hexdigest()


def _ticket(page: dict[str, Any], issue: dict[str, Any], run_id: int) -> dict[str, Any]:
    severity = _SEVERITIES[issue["severity"]]
    facts = (
        f"Page: {page['url']}\nWhere: {issue['location']}\nSeverity: {severity}\nRule: {issue['code']}\n"
        f"Found by: scan run {run_id}"
    )
    return {
        "title": f"{issue['title']} on {urlsplit(page['url']).path}",
        "description": f"{issue['description']}\n\n{facts}",
        "severity": severity,
        "page_url": page["url"],
        "labels": ["website-risk", f"severity:{severity}", f"page:{page['pageType']}"],
        "evidence": {"rule": issue["code"], "location": issue["location"]},
    }


def _record(row: Row) -> dict[str, Any]:
    (id_, status, reason, target_id, source_type, source_id, run_id, ticket, digest, problems, attempts, due_at) = row[:12]
    (_, last_at, last_status, last_error, last_ms, ticket_id, ticket_url, created_at, approved_at, finished_at) = row[12:]
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
        "next_attempt_at": _time(due_at) if status in {"approved", "retry_scheduled"} else None,
        "created_at": _time(created_at),
        "approved_at": _time(approved_at),
        "finished_at": _time(finished_at),
    }
    if last_at is not None:
        known = {"response_status": last_status, "error_code": last_error, "duration_ms": last_ms}
        record["last_attempt"] = {"at": _time(last_at), **known}
    if ticket_id or ticket_url:
        record["provider_ticket"] = {"id": ticket_id, "url": ticket_url}
    return record


def _time(ms: int | None) -> str | None:
    return None if ms is None else f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ms // 1000))}.{ms % 1000:03d}Z"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _new_id(prefix: str, now_ms: int) -> str:
    return f"{prefix}_{now_ms:012x}{secrets.token_hex(7)}"


def create_app() -> "falcon.App[falcon.Request, falcon.Response]":
    """Return the application of an installation whose database is migrated."""
    app: falcon.App[falcon.Request, falcon.Response] = falcon.App()
    store = open_store(os.environ["DATABASE_URL"])
    app.add_route("/api/ticket-exports/{export_id}", TicketExport(store))
    secret, project_id = os.environ["SCANNER_SHARED_SECRET"], int(os.environ["DEFAULT_PROJECT_ID"])
    app.add_route("/api/scanner/results", ScannerResults(store, secret, project_id))
    return app
