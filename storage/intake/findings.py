"""Findings: what scan runs report, deduplicated by fingerprint; each new one prepares one export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.errors import NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.ticket import Source
from schemas.exports.ticket_text import ticket_for_finding
from schemas.intake.fingerprint import PostbackResult, by_fingerprint
from schemas.intake.scanner import SEVERITIES, STATUSES_WITH_FINDINGS, Issue, Postback
from storage.db import identifiers
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import JsonField
from storage.db.engine import execute, first_row, is_sqlite, rows, transaction
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.transitions import prepare

_COLUMNS: Final = {
    "id": "TEXT",
    "project_id": "INTEGER",
    "fingerprint": "TEXT",
    "code": "TEXT",
    "title": "TEXT",
    "severity": "TEXT",
    "page_url": "TEXT",
    "location": "TEXT",
    "first_scan_run_id": "BIGINT",
    "last_scan_run_id": "BIGINT",
    "first_seen_at": "BIGINT",
    "last_seen_at": "BIGINT",
    "times_seen": "INTEGER",
}
_INSERT: Final = f"""
INSERT INTO findings ({", ".join(_COLUMNS)}) {{rows}}
ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING fingerprint"""
#: The same run counts once, however often it posts; one that found it first may post again while a later one is under way,
#: and does not count then either.
_SEEN: Final = """
WITH r (fingerprint) AS ({rows})
UPDATE findings SET times_seen = times_seen + CASE WHEN ? IN (first_scan_run_id, last_scan_run_id) THEN 0 ELSE 1 END,
    last_scan_run_id = CASE WHEN first_scan_run_id = ? THEN last_scan_run_id ELSE ? END, last_seen_at = ?
FROM r WHERE findings.project_id = ? AND findings.fingerprint = r.fingerprint"""
#: Those of some findings that the project of a run, or the default one, has already; SQLite's alone.
_KNOWN: Final = """
SELECT json_group_array(fingerprint) FROM findings
WHERE project_id = COALESCE((SELECT project_id FROM scan_runs WHERE id = ?), ?)
    AND fingerprint IN (SELECT value FROM json_each(?))"""

_PAGE: Final = """
INSERT INTO page_results
    (scan_run_id, url, normalized_url, status_code, page_type, response_headers, screenshot_path, received_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scan_run_id, url) DO UPDATE SET
    normalized_url = excluded.normalized_url, status_code = excluded.status_code, page_type = excluded.page_type,
    response_headers = excluded.response_headers, screenshot_path = excluded.screenshot_path,
    received_at = excluded.received_at"""

#: Returns the project and the account too: nearly every postback is of a run that is known, and asks for nothing else.
_NOTE_RUN: Final = """
UPDATE scan_runs SET status = ?, updated_at = ? WHERE id = ?
RETURNING project_id, (SELECT account_id FROM projects WHERE projects.id = scan_runs.project_id)"""

_SHOWN: Final = "id, code, title, severity, page_url, first_seen_at, last_seen_at, times_seen"
# A part for each severity, since an index gives the newest of one in order, not of all. A severity is bounded, not equalled:
# that order only this index gives, and PostgreSQL does not go through the newest of every project, where it may find none.
_SEEN_PART: Final = f"""
SELECT * FROM (
    SELECT {_SHOWN} FROM findings WHERE project_id = ? AND severity >= ? AND (severity, id) < (?, ?)
    ORDER BY severity DESC, id DESC LIMIT ?
) AS part"""  # noqa: S608 - our own names
_NEWEST: Final = """
SELECT f.*, e.id, e.status
FROM ({parts}) AS f LEFT JOIN exports e ON e.source_type = 'finding' AND e.source_id = f.id
ORDER BY f.id DESC LIMIT ?"""
# The end of an index for each severity and project, however many findings there are.
_LAST_PART: Final = "SELECT MAX(id) AS id FROM findings WHERE project_id = p.id AND severity = '{}'"
_PROJECTS: Final = f"""
SELECT p.id, p.name, (SELECT MAX(last.id) FROM ({" UNION ALL ".join(map(_LAST_PART.format, SEVERITIES))}) AS last)
FROM projects p WHERE p.account_id = ?"""  # noqa: S608 - our own names
#: Sorts behind every id in any collation: the greatest ULID there is.
_AFTER_ALL: Final = f"{identifiers.FINDING}_7{'Z' * 25}"

_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding as lists show it, with the export that it became."""

    id: str
    code: str
    title: str
    severity: str
    page_url: str
    first_seen_at: datetime
    last_seen_at: datetime
    times_seen: int
    export_id: str | None
    export_status: str | None


@dataclass(frozen=True, slots=True)
class ScannedProject:
    """A project with its newest finding; None where it has none."""

    id: int
    name: str
    newest_finding_id: str | None


@dataclass(frozen=True, slots=True)
class Sighting:
    """A postback, its issues by fingerprint, and the tickets of those that were new when it was looked at."""

    postback: Postback
    issues: Mapping[str, Issue]
    tickets: Mapping[str, WrittenTicket]


def look_at(postback: Postback, default_project_id: int | None) -> Sighting:
    """Do of a postback what needs no transaction: while one is open, SQLite lets nobody else write.

    A ticket takes as long to write as its rows to store. PostgreSQL keeps nobody waiting and is not asked what is new: there
    they are written with the rows. The caller holds no transaction.
    """
    if postback.status not in STATUSES_WITH_FINDINGS:
        return Sighting(postback, {}, {})
    issues = by_fingerprint(postback.page, postback.issues)
    if not issues or not is_sqlite():
        return Sighting(postback, issues, {})
    known = first_row(_KNOWN, (postback.scan_run_id, default_project_id, _json.text(list(issues))))
    found = set() if known is None else set(_json.python_value(known[0]))
    return Sighting(postback, issues, _tickets(postback, issues, [mark for mark in issues if mark not in found]))


def record(sighting: Sighting, default_project_id: int | None, now: datetime, actor: str) -> PostbackResult:
    """Store a page of a scan run with its findings, and prepare an export for each finding that is new.

    A run that nobody registered belongs to `default_project_id`. Raises ValidationFailed on `/scanRunId` without one.
    """
    postback, issues = sighting.postback, sighting.issues
    with transaction():
        project_id, account_id = _scan_run(postback, default_project_id, now)
        _record_page(postback, now)
        new = _insert_new(postback, issues, project_id, now)
        seen = [mark for mark in issues if mark not in new]
        _mark_seen(seen, project_id, postback.scan_run_id, now)
        # What somebody deleted meanwhile is new, and has no ticket yet.
        missing = _tickets(postback, issues, [mark for mark in new if mark not in sighting.tickets])
        tickets = {**sighting.tickets, **missing}
        drafts = [
            Draft(account_id, project_id, Source("finding", finding_id, postback.scan_run_id), tickets[mark])
            for mark, finding_id in new.items()
        ]
        return PostbackResult(postback.scan_run_id, len(new), len(seen), tuple(prepare(drafts, now, actor)))


def newest(project_id: int, limit: int, before: str | None = None, severity: str | None = None) -> list[Seen]:
    """Return up to `limit` findings of a project, the newest first, or those that come after the one with the id `before`.

    Of one severity or of every one. Whose project it is, the caller knows.
    """
    severities = SEVERITIES if severity is None else (severity,)
    parts = " UNION ALL ".join([_SEEN_PART] * len(severities))
    values = [value for each in severities for value in (project_id, each, each, before or _AFTER_ALL, limit)]
    return [_seen(row) for row in rows(_NEWEST.format(parts=parts), [*values, limit])]


def scanned_projects(account_id: int, limit: int) -> list[ScannedProject]:
    """Return up to `limit` projects of an account, the newest first."""
    return [ScannedProject(*row) for row in rows(f"{_PROJECTS} ORDER BY p.id DESC LIMIT ?", (account_id, limit))]


def scanned_project(project_id: int, account_id: int) -> ScannedProject:
    """Return one project of an account. Raises NotFound."""
    found = rows(f"{_PROJECTS} AND p.id = ?", (account_id, project_id))
    if not found:
        raise NotFound("There is no such project.")
    return ScannedProject(*found[0])


def _seen(row: tuple[Any, ...]) -> Seen:
    finding_id, code, title, severity, page_url, first_seen_ms, last_seen_ms, times_seen, export_id, export_status = row
    first_seen_at, last_seen_at = from_ms(first_seen_ms), from_ms(last_seen_ms)
    return Seen(
        finding_id, code, title, severity, page_url, first_seen_at, last_seen_at, times_seen, export_id, export_status
    )


def _tickets(postback: Postback, issues: Mapping[str, Issue], marks: Sequence[str]) -> dict[str, WrittenTicket]:
    tickets = [ticket_for_finding(postback.page, issues[mark], postback.scan_run_id) for mark in marks]
    return dict(zip(marks, written(tickets), strict=True)) if marks else {}


def _scan_run(postback: Postback, default_project_id: int | None, now: datetime) -> tuple[int, int]:
    """Return the project and account of the run, after noting its status; make the run where it is not registered."""
    noted = rows(_NOTE_RUN, (postback.status, to_ms(now), postback.scan_run_id))
    if noted:
        return noted[0][0], noted[0][1]
    if default_project_id is None:
        raise ValidationFailed(problem("/scanRunId", "unknown_scan_run"))
    # Another postback of the same run may be first by a moment; the run is the same either way.
    execute(
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) SELECT ?, id, ?, ?, ? FROM projects "
        "WHERE id = ? ON CONFLICT (id) DO NOTHING",
        (postback.scan_run_id, postback.status, to_ms(now), to_ms(now), default_project_id),
    )
    made = _project_of_run(postback.scan_run_id)
    if made is None:
        raise ValidationFailed(problem("/scanRunId", "unknown_scan_run"))
    return made


def _project_of_run(scan_run_id: int) -> tuple[int, int] | None:
    found = rows(
        "SELECT p.id, p.account_id FROM scan_runs s JOIN projects p ON p.id = s.project_id WHERE s.id = ?", (scan_run_id,)
    )
    return (found[0][0], found[0][1]) if found else None


def _record_page(postback: Postback, now: datetime) -> None:
    page = postback.page
    headers = _json.db_value(page.response_headers)
    execute(
        _PAGE,
        (
            postback.scan_run_id,
            page.url,
            page.normalized_url,
            page.status_code,
            page.page_type,
            headers,
            postback.screenshot_path,
            to_ms(now),
        ),
    )


def _insert_new(postback: Postback, issues: Mapping[str, Issue], project_id: int, now: datetime) -> dict[str, str]:
    """Insert what the project has not seen and return fingerprint → id of those; a racing postback may win any of them."""
    if not issues:
        return {}
    ids = {mark: identifiers.new_id(identifiers.FINDING, now) for mark in issues}
    # Sorted, so that two postbacks with the same new findings wait for each other in one direction.
    found = [_finding_row(ids[mark], mark, issues[mark], postback, project_id, now) for mark in sorted(issues)]
    new = {row[0] for row in rows_over(_INSERT, [*_COLUMNS.values()], found)}
    return {mark: ids[mark] for mark in issues if mark in new}


def _mark_seen(marks: Sequence[str], project_id: int, scan_run_id: int, now: datetime) -> None:
    """Note that findings were seen again."""
    told = (scan_run_id, scan_run_id, scan_run_id, to_ms(now), project_id)
    execute_over(_SEEN, ["TEXT"], [(mark,) for mark in marks], told)


def _finding_row(
    finding_id: str, mark: str, issue: Issue, postback: Postback, project_id: int, now: datetime
) -> tuple[Any, ...]:
    return (
        finding_id,
        project_id,
        mark,
        issue.code,
        issue.title,
        issue.severity,
        issue.url or postback.page.url,
        issue.location,
        postback.scan_run_id,
        postback.scan_run_id,
        to_ms(now),
        to_ms(now),
        1,
    )
