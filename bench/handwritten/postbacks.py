"""The hand-written postback: the page, its findings, and an export of each new one."""

import hashlib
import hmac
import json
from typing import Any, Final
from urllib.parse import urlsplit

import falcon

from bench.handwritten.rows import DraftExport, RouteResponse, new_id, now_ms, once, prepare
from bench.handwritten.stores import Execute, Row, SqlStore

_SEVERITIES: Final = {"serious": "high", "minor": "low", "moderate": "medium", "critical": "critical"}

_ROTATED: Final = "SELECT secret_sealed FROM integration_secrets WHERE name = 'scanner'"
_RUN: Final = "SELECT p.id, p.account_id FROM scan_runs s JOIN projects p ON p.id = s.project_id WHERE s.id = ?"
_MAKE_RUN: Final = """
INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""
_UPDATE_RUN: Final = """
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
_FINDINGS: Final = """
INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, first_scan_run_id,
    last_scan_run_id, first_seen_at, last_seen_at, times_seen, export_id, help_url, account_id, page_digest, host)
VALUES {} ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING fingerprint"""
_FINDING: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, NULL, ?, ?, ?)"
_SEEN: Final = """
UPDATE findings SET
    times_seen = times_seen + CASE WHEN ? IN (first_scan_run_id, last_scan_run_id) THEN 0 ELSE 1 END,
    last_scan_run_id = CASE WHEN first_scan_run_id = ? THEN last_scan_run_id ELSE ? END, last_seen_at = ?, missed_runs = 0
WHERE project_id = ? AND fingerprint IN ({}) RETURNING id"""
_SIGHTINGS: Final = "INSERT INTO finding_sightings (finding_id, scan_run_id, seen_at) VALUES "
_MISSED: Final = """
UPDATE findings SET missed_runs = missed_runs + 1, fixed_at = CASE WHEN missed_runs > 0 THEN CAST(? AS BIGINT) END
WHERE project_id = ? AND page_digest = ? AND fixed_at IS NULL AND last_scan_run_id <> ? AND NOT EXISTS (
    SELECT 1 FROM finding_sightings s WHERE s.finding_id = findings.id AND s.scan_run_id = ?
) RETURNING fixed_at"""
_NO_REPEAT: Final = " ON CONFLICT (finding_id, scan_run_id) DO NOTHING"

_Issues = dict[str, dict[str, Any]]


class ScannerResults:
    """Accepts postbacks."""

    def __init__(self, store: SqlStore, secret: str, project_id: int) -> None:
        self._store = store
        self._secret = secret.encode()
        self._project_id = project_id

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        submitted = (req.get_header("X-Scanner-Secret") or "").encode()
        if self._store.row(_ROTATED) is not None or not hmac.compare_digest(submitted, self._secret):
            raise falcon.HTTPUnauthorized
        body = req.bounded_stream.read()
        postback = json.loads(body)
        once(self._store, req, resp, "scanner", 202, body, lambda execute: self._record(execute, postback))

    def _record(self, execute: Execute, postback: dict[str, Any]) -> RouteResponse:
        run_id, page, at_ms = postback["scanRunId"], postback["page"], now_ms()
        project_id, account_id = self._run(execute, run_id, postback["status"], at_ms)
        execute(_PAGE, _page_row(postback, at_ms))
        issues = {_fingerprint(page, issue): issue for issue in postback["issues"]}
        export_ids = {mark: new_id("exp", at_ms) for mark in issues}
        new = _insert_new(execute, issues, export_ids, page, run_id, (project_id, account_id), at_ms)
        seen = [mark for mark in issues if mark not in new]
        found = [*new.values()]
        if seen:
            values = (run_id, run_id, run_id, at_ms, project_id, *seen)
            found += [row[0] for row in execute(_SEEN.format(", ".join("?" * len(seen))), values).fetchall()]
        sightings = ", ".join(["(?, ?, ?)"] * len(found))
        execute(_SIGHTINGS + sightings + _NO_REPEAT, [value for each in found for value in (each, run_id, at_ms)])
        missed = execute(_MISSED, (at_ms, project_id, _page_digest(page), run_id, run_id)).fetchall()
        screenshot = postback["artifacts"]["screenshotPath"]
        drafts = [
            DraftExport(
                export_ids[mark],
                "finding",
                finding_id,
                run_id,
                _ticket(page, issues[mark], run_id, screenshot),
                issues[mark]["code"],
            )
            for mark, finding_id in new.items()
        ]
        prepare(execute, account_id, project_id, drafts, at_ms, "scanner")
        counts = {"new": len(new), "seen": len(seen), "fixed": sum(row[0] is not None for row in missed), "reopened": 0}
        exports = [export_ids[mark] for mark in new]
        return {"scan_run_id": run_id, "status": "accepted", "findings": counts, "ticket_exports": exports}, {}

    def _run(self, execute: Execute, run_id: int, status: str, at_ms: int) -> Row:
        updated: Row | None = execute(_UPDATE_RUN, (status, at_ms, run_id)).fetchone()
        if updated is not None:
            return updated
        execute(_MAKE_RUN, (run_id, self._project_id, status, at_ms, at_ms))
        made: Row = execute(_RUN, (run_id,)).fetchone()
        return made


def _insert_new(
    execute: Execute,
    issues: _Issues,
    export_ids: dict[str, str],
    page: dict[str, Any],
    run_id: int,
    owner: tuple[int, int],
    at_ms: int,
) -> dict[str, str]:
    """Insert the findings that are not stored yet; return their ids by fingerprint."""
    ids = {mark: new_id("fnd", at_ms) for mark in issues}
    project_id, account_id = owner
    where, parameters = (account_id, _page_digest(page), urlsplit(page["url"]).hostname), list[Any]()
    for mark, issue in sorted(issues.items()):
        text = (issue["code"], issue["title"], _SEVERITIES[issue["severity"]], page["url"], issue["location"])
        parameters += (ids[mark], project_id, mark, *text, run_id, run_id, at_ms, at_ms, export_ids[mark], *where)
    inserted = execute(_FINDINGS.format(", ".join([_FINDING] * len(issues))), parameters).fetchall()
    new = {row[0] for row in inserted}
    return {mark: ids[mark] for mark in issues if mark in new}


def _page_row(postback: dict[str, Any], at_ms: int) -> Row:
    page = postback["page"]
    headers = json.dumps(page["responseHeaders"])
    screenshot = postback["artifacts"]["screenshotPath"]
    about = (page["normalizedUrl"], page["statusCode"], page["pageType"])
    return (postback["scanRunId"], page["url"], *about, headers, screenshot, at_ms)


def _page_digest(page: dict[str, Any]) -> str:
    return hashlib.sha256(page["normalizedUrl"].encode()).hexdigest()[:32]


def _fingerprint(page: dict[str, Any], issue: dict[str, Any]) -> str:
    return hashlib.sha256("\0".join((page["normalizedUrl"], issue["code"], issue["location"])).encode()).hexdigest()


def _ticket(page: dict[str, Any], issue: dict[str, Any], run_id: int, screenshot: str) -> dict[str, Any]:
    severity, where = _SEVERITIES[issue["severity"]], urlsplit(page["url"])
    element = issue["location"].rpartition(">")[2].strip()
    facts = (
        f"Page: {page['url']}\nWhere: {issue['location']}\nSeverity: {severity}\nRule: {issue['code']}\n"
        f"Found by: scan run {run_id}"
    )
    return {
        "title": f"{issue['title']} on {where.hostname}{where.path} ({element})",
        "description": f"{issue['description']}\n\n{facts}",
        "severity": severity,
        "page_url": page["url"],
        "labels": ["website-risk", f"severity:{severity}", f"page:{page['pageType']}"],
        "evidence": {"rule": issue["code"], "location": issue["location"], "screenshot": screenshot},
    }
