"""Findings: what scan runs report, deduplicated by fingerprint; each new one prepares one export."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from schemas.errors import ValidationFailed
from schemas.fields import problem
from schemas.findings import PostbackResult, by_fingerprint
from schemas.scanner import STATUSES_WITH_FINDINGS, Issue, Page, Postback
from schemas.ticket import Source
from schemas.ticket_wording import ticket_for_finding
from schemas.times import to_ms
from storage import identifiers
from storage.columns import JsonField
from storage.database import execute, rows, transaction, values_list
from storage.export_rows import Draft
from storage.exports import prepare

_COLUMNS: Final = (
    "id",
    "project_id",
    "fingerprint",
    "code",
    "title",
    "severity",
    "page_url",
    "location",
    "first_scan_run_id",
    "last_scan_run_id",
    "first_seen_at",
    "last_seen_at",
    "times_seen",
)

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

_json: Final = JsonField()


def record_postback(postback: Postback, default_project_id: int | None, now: datetime, actor: str) -> PostbackResult:
    """Store a page of a scan run with its findings, and prepare an export for each finding that is new.

    A run that nobody registered belongs to `default_project_id`. Raises ValidationFailed on `/scanRunId` without one.
    """
    with transaction():
        project_id, account_id = _scan_run(postback, default_project_id, now)
        _record_page(postback, now)
        if postback.status not in STATUSES_WITH_FINDINGS:
            return PostbackResult(postback.scan_run_id, 0, 0, ())
        issues = by_fingerprint(postback.page, postback.issues)
        new = _insert_new(postback, issues, project_id, now)
        seen = [mark for mark in issues if mark not in new]
        _mark_seen(seen, project_id, postback.scan_run_id, now)
        drafts = [
            _draft(finding_id, issues[mark], postback.page, postback.scan_run_id, account_id, project_id)
            for mark, finding_id in new.items()
        ]
        return PostbackResult(postback.scan_run_id, len(new), len(seen), tuple(prepare(drafts, now, actor)))


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
    parameters: list[Any] = []
    # Sorted, so that two postbacks with the same new findings wait for each other in one direction.
    for mark, issue in sorted(issues.items()):
        parameters += _finding_row(ids[mark], mark, issue, postback, project_id, now)
    inserted = rows(
        f"INSERT INTO findings ({', '.join(_COLUMNS)}) VALUES {values_list(len(_COLUMNS), len(issues))} "  # noqa: S608 - our own names
        "ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING fingerprint",
        parameters,
    )
    new = {row[0] for row in inserted}
    return {mark: ids[mark] for mark in issues if mark in new}


def _mark_seen(marks: Sequence[str], project_id: int, scan_run_id: int, now: datetime) -> None:
    """Note that findings were seen again; the same run counts once, however often it posts.

    A run that found it first may post again while a later one is under way: it does not count then either.
    """
    if not marks:
        return
    execute(
        "UPDATE findings SET "  # noqa: S608 - our own names
        "times_seen = times_seen + CASE WHEN ? IN (first_scan_run_id, last_scan_run_id) THEN 0 ELSE 1 END, "
        "last_scan_run_id = CASE WHEN first_scan_run_id = ? THEN last_scan_run_id ELSE ? END, last_seen_at = ? "
        f"WHERE project_id = ? AND fingerprint IN {values_list(len(marks), 1)}",
        (scan_run_id, scan_run_id, scan_run_id, to_ms(now), project_id, *marks),
    )


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


def _draft(finding_id: str, issue: Issue, page: Page, scan_run_id: int, account_id: int, project_id: int) -> Draft:
    source = Source("finding", finding_id, scan_run_id)
    return Draft(account_id, project_id, source, ticket_for_finding(page, issue, scan_run_id))
