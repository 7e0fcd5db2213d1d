"""The SQL of a postback, hand-written because the scan of a website sends thousands of postbacks in a row."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from schemas.base.timestamps import to_ms
from schemas.intake.page_url import page_digest
from schemas.intake.scanner import Issue, ScanPostback
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import JsonField, column_types
from storage.db.engine import execute, first_row, is_sqlite, rows
from storage.db.models import NO_EXPORT, FindingRow, FindingSightingRow, PageResultRow

_FINDING: Final = tuple(FindingRow._meta.columns)
_FINDING_TYPES: Final = column_types(FindingRow, _FINDING)
_INSERT: Final = f"""
INSERT INTO findings ({", ".join(_FINDING)}) {{rows}}
ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING id, fingerprint"""
#: A run counts once, even if several of its postbacks report the finding and other runs post in between. A run whose
#: sightings were deleted ended long ago.
_SEEN: Final = """
UPDATE findings SET times_seen = times_seen + CASE WHEN ? IN (first_scan_run_id, last_scan_run_id) OR EXISTS (
        SELECT 1 FROM finding_sightings s
        WHERE s.finding_id = findings.id AND s.scan_run_id = ? AND s.outcome IN ('seen', 'reopened')
    ) THEN 0 ELSE 1 END,
    last_scan_run_id = CASE WHEN first_scan_run_id = ? THEN last_scan_run_id ELSE ? END, last_seen_at = ?, missed_runs = 0
FROM r"""
_SIGHTING: Final = ("finding_id", "scan_run_id", "seen_at")
_SIGHTING_TYPES: Final = column_types(FindingSightingRow, _SIGHTING)
_INSERT_SIGHTINGS: Final = f"INSERT INTO finding_sightings ({', '.join(_SIGHTING)})"
#: A run that posts a page in parts may report a finding in the second part that was missing in the first. A fix stays in the
#: history, because trends count it together with the reopening by another run. If the same run reports the finding,
#: `life_cycle_sql` removes the fix.
_NOT_MISSED: Final = """
ON CONFLICT (finding_id, scan_run_id) DO UPDATE SET outcome = 'seen' WHERE finding_sightings.outcome = 'missed'"""
_ADD_SIGHTINGS: Final = f"{_INSERT_SIGHTINGS} {{rows}} {_NOT_MISSED}"
# SQLite changes one table in each statement. PostgreSQL changes two, because a round trip takes longer than either change.
_INSERT_BY_POSTGRESQL: Final = f"""
WITH new AS ({_INSERT}, first_scan_run_id, first_seen_at), seen AS (
    {_INSERT_SIGHTINGS} SELECT id, first_scan_run_id, first_seen_at FROM new
)
SELECT id, fingerprint FROM new"""  # noqa: S608 - our own names
_KNOWN_FINDING: Final = (
    "findings.id, findings.fingerprint, findings.severity, findings.help_url, findings.export_id, findings.fixed_at"
)
_SEEN_BY_SQLITE: Final = f"""
WITH r (fingerprint) AS ({{rows}}) {_SEEN} WHERE findings.project_id = ? AND findings.fingerprint = r.fingerprint
RETURNING {_KNOWN_FINDING}"""
#: Pages report findings of each other. So all findings that a postback changes, including those of its page that it does not
#: report, are locked in one order, and two postbacks never deadlock.
_LOCKED: Final = """
SELECT id, fingerprint FROM findings WHERE id IN (
    SELECT f.id FROM r JOIN findings f ON f.project_id = ? AND f.fingerprint = r.fingerprint
    UNION ALL SELECT id FROM findings WHERE project_id = ? AND page_digest = ? AND fixed_at IS NULL AND last_scan_run_id <> ?
) ORDER BY id FOR NO KEY UPDATE"""
#: Another postback of the run may have fixed a finding while this statement waited for its lock. `seen` has the row after
#: that; the table has the row from when the statement began.
_SEEN_BY_POSTGRESQL: Final = f"""
WITH r (fingerprint, severity, help_url) AS ({{rows}}), locked AS ({_LOCKED}), seen AS (
    {_SEEN}, locked WHERE findings.id = locked.id AND locked.fingerprint = r.fingerprint RETURNING {_KNOWN_FINDING}
), runs AS (
    {_INSERT_SIGHTINGS} SELECT id, ?, ? FROM seen {_NOT_MISSED}
)
SELECT seen.* FROM seen JOIN r ON r.fingerprint = seen.fingerprint
WHERE seen.severity <> r.severity OR (seen.help_url IS NULL AND r.help_url IS NOT NULL) OR seen.fixed_at IS NOT NULL
    OR seen.export_id = '{NO_EXPORT}'"""  # noqa: S608 - our own names
_UPGRADE: Final = """
WITH r (id, severity, help_url) AS ({rows})
UPDATE findings SET severity = r.severity, help_url = r.help_url FROM r WHERE findings.id = r.id"""
#: Whether a known finding gets a new ticket when it is reported: it is fixed, and its ticket was deleted, or delivered
#: without covering the event of a reopening.
_IS_RENEWED: Final = """fixed_at IS NOT NULL AND COALESCE((
    SELECT e.status = 'exported' AND REPLACE(COALESCE(e.events, ''), '"ticket.reopened"', '') = COALESCE(e.events, '')
    FROM exports e WHERE e.id = findings.export_id
), TRUE)"""
#: A project, how it groups findings, and those of the given fingerprints that it already has, as one JSON array.
_KNOWN: Final = """
SELECT p.id, p.ticket_grouping, (
    SELECT {array} FROM findings WHERE project_id = p.id AND fingerprint IN (SELECT value FROM {values})
)
FROM projects p WHERE p.id = COALESCE((SELECT project_id FROM scan_runs WHERE id = ?), ?)"""
_KNOWN_BY_SQLITE: Final = _KNOWN.format(
    array=f"json_group_array(json_array(fingerprint, severity, export_id, {_IS_RENEWED}))", values="json_each(?)"
)
_KNOWN_BY_POSTGRESQL: Final = _KNOWN.format(
    array=f"COALESCE(CAST(json_agg(json_build_array(fingerprint, severity, export_id, {_IS_RENEWED})) AS TEXT), '[]')",
    values="json_array_elements_text(CAST(? AS JSON))",
)

_PAGE: Final = tuple(name for name in PageResultRow._meta.columns if name != "id")
#: Stores the page if the run is registered; a repeated postback replaces the page.
_UPSERT_PAGE: Final = f"""
INSERT INTO page_results ({", ".join(_PAGE)})
SELECT id, {", ".join("?" for _ in _PAGE[1:])} FROM scan_runs WHERE id = ?
ON CONFLICT (scan_run_id, url) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _PAGE[2:])}"""  # noqa: S608 - our own names


class PostedRun(NamedTuple):
    """The project of a scan run; `has_snoozed`: whether a snooze lasts until one of its export's findings is seen again."""

    project_id: int
    account_id: int
    ticket_grouping: str
    has_snoozed: bool


class SeenFinding(NamedTuple):
    """A finding that was seen again."""

    id: str
    fingerprint: str
    severity: str
    help_url: str | None
    export_id: str | None
    #: As it was before the postback.
    fixed_at: int | None


class KnownFinding(NamedTuple):
    """A finding that a project has already; `is_renewed`: it is fixed, and gets a new ticket if it is reported."""

    severity: str
    export_id: str | None
    is_renewed: bool


class KnownFindings(NamedTuple):
    """The project of a postback, and the findings that it has already, by fingerprint."""

    project_id: int
    ticket_grouping: str
    findings: Mapping[str, KnownFinding]


_POSTED_RUN: Final = """
SELECT r.project_id, p.account_id, p.ticket_grouping,
    EXISTS (SELECT 1 FROM exports
        WHERE exports.project_id = r.project_id AND snoozed_at IS NOT NULL AND snoozed_until IS NULL){lock}
FROM scan_runs r JOIN projects p ON p.id = r.project_id WHERE r.id = ?"""
_POSTED_RUN_BY_SQLITE: Final = _POSTED_RUN.format(lock="")
#: Until the transaction ends, nobody deletes the run, and no other postback of the page changes its findings.
_POST_PAGE_BY_POSTGRESQL: Final = f"""
WITH page AS ({_UPSERT_PAGE})
{_POSTED_RUN.format(lock=", pg_advisory_xact_lock(?)")} FOR KEY SHARE OF r"""
_UPDATE_RUN: Final = """
UPDATE scan_runs SET status = ?, updated_at = ?,
    has_changes = has_changes OR EXISTS (SELECT 1 FROM ticket_changes c WHERE c.scan_run_id = scan_runs.id)
WHERE id = ?"""

_json: Final = JsonField()


def known_findings(scan_run_id: int, default_project_id: int | None, fingerprints: Sequence[str]) -> KnownFindings | None:
    """Return those of `fingerprints` that the run's project has already; None without a project. Outside any transaction."""
    known = _KNOWN_BY_SQLITE if is_sqlite() else _KNOWN_BY_POSTGRESQL
    found = first_row(known, (_json.text(fingerprints), scan_run_id, default_project_id))
    if found is None:
        return None
    return KnownFindings(found[0], found[1], {mark: KnownFinding(*each) for mark, *each in _json.python_value(found[2])})


def post_page(postback: ScanPostback, now: datetime) -> PostedRun | None:
    """Store or replace the page of a run and return the run's project; None, without storing it, for an unregistered run.

    Until the transaction ends, other postbacks of the page wait.
    """
    run_id, page = postback.scan_run_id, postback.page
    record = {
        "url": page.url,
        "normalized_url": page.normalized_url,
        "status_code": page.status_code,
        "page_type": page.page_type,
        "response_headers": _json.db_value(page.response_headers),
        "screenshot_path": postback.screenshot_path,
        "received_at": to_ms(now),
    }
    values = [*(record[name] for name in _PAGE[1:]), run_id]
    if is_sqlite():
        execute(_UPSERT_PAGE, values)
        found = rows(_POSTED_RUN_BY_SQLITE, (run_id,))
    else:
        lock = int.from_bytes(bytes.fromhex(digest_of(postback)[:16]), signed=True)
        found = rows(_POST_PAGE_BY_POSTGRESQL, (*values, lock, run_id))
    return PostedRun._make(found[0][: len(PostedRun._fields)]) if found else None


def update_scan_run(postback: ScanPostback, now: datetime) -> None:
    """Store the status of a run, and whether it changed delivered tickets.

    This is the last statement of a postback, because other postbacks of the run then wait for the end of its transaction.
    """
    execute(_UPDATE_RUN, (postback.status, to_ms(now), postback.scan_run_id))


def insert_new(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert findings that their project does not have, each with its first sighting; return the inserted fingerprints."""
    values = [[record[name] for name in _FINDING] for record in records]
    if not is_sqlite():
        return {row[1] for row in rows_over(_INSERT_BY_POSTGRESQL, _FINDING_TYPES, values)}
    new = rows_over(_INSERT, _FINDING_TYPES, values)
    if new:
        _add_sightings([row[0] for row in new], records[0]["first_scan_run_id"], records[0]["first_seen_at"])
    return {row[1] for row in new}


def mark_seen(issues: Mapping[str, Issue], project_id: int, postback: ScanPostback, now: datetime) -> list[SeenFinding]:
    """Store that a postback reports known findings; return those that differ from `issues`, or all of them on SQLite."""
    run_id, at = postback.scan_run_id, to_ms(now)
    seen_by = (run_id, run_id, run_id, run_id, at)
    if not is_sqlite():
        values = [(mark, issue.severity, issue.help_url) for mark, issue in issues.items()]
        locked = (project_id, project_id, digest_of(postback), run_id)
        found = rows_over(_SEEN_BY_POSTGRESQL, ("TEXT", "TEXT", "TEXT"), values, (*locked, *seen_by, run_id, at))
        return [SeenFinding._make(row) for row in found]
    marks = [(mark,) for mark in issues]
    seen = [SeenFinding._make(row) for row in rows_over(_SEEN_BY_SQLITE, ("TEXT",), marks, (*seen_by, project_id))]
    _add_sightings([each.id for each in seen], run_id, at)
    return seen


def upgrade(findings: Sequence[SeenFinding]) -> None:
    """Store new severities and help links of findings."""
    execute_over(_UPGRADE, ("TEXT", "TEXT", "TEXT"), [(each.id, each.severity, each.help_url) for each in findings])


def digest_of(postback: ScanPostback) -> str:
    """Return the digest of the page of a postback."""
    return page_digest(postback.page.normalized_url or postback.page.url)


def _add_sightings(finding_ids: Sequence[str], scan_run_id: int, seen_at: int) -> None:
    execute_over(_ADD_SIGHTINGS, _SIGHTING_TYPES, [(finding_id, scan_run_id, seen_at) for finding_id in finding_ids])
