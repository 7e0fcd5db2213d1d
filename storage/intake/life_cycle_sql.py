"""The SQL of findings that a scan run did not report, or that were fixed before it did; every postback runs a statement."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from schemas.base.timestamps import to_ms
from schemas.findings.life_cycle import LifeCycle, RunOutcome
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types
from storage.db.engine import is_sqlite, rows
from storage.db.models import FindingRow, FindingSightingRow

#: Open findings of a page that the run has neither reported nor counted as missed.
_UNREPORTED: Final = """
SELECT id, code, export_id, missed_runs, times_reopened FROM findings
WHERE project_id = ? AND page_digest = ? AND fixed_at IS NULL AND last_scan_run_id <> ? AND NOT EXISTS (
    SELECT 1 FROM finding_sightings s WHERE s.finding_id = findings.id AND s.scan_run_id = ?
)
ORDER BY id"""
_LOCKED: Final = f"{_UNREPORTED} FOR NO KEY UPDATE"
_REPORTED: Final = """
WITH r (id) AS ({rows})
SELECT f.id, f.fingerprint, f.export_id, f.times_reopened, s.outcome = 'fixed' AND s.seen_at = f.fixed_at
FROM r JOIN findings f ON f.id = r.id JOIN finding_sightings s ON s.finding_id = f.id AND s.scan_run_id = ?"""
_WRITE: Final = """
WITH r (id, missed_runs, fixed_at, times_reopened) AS ({rows})
UPDATE findings SET missed_runs = r.missed_runs, fixed_at = r.fixed_at, times_reopened = r.times_reopened
FROM r WHERE findings.id = r.id"""
_WRITE_TYPES: Final = column_types(FindingRow, ("id", "missed_runs", "fixed_at", "times_reopened"))
_OUTCOME: Final = ("finding_id", "scan_run_id", "seen_at", "outcome")
_OUTCOME_TYPES: Final = column_types(FindingSightingRow, _OUTCOME)
_WRITE_OUTCOMES: Final = f"""
INSERT INTO finding_sightings ({", ".join(_OUTCOME)}) {{rows}}
ON CONFLICT (finding_id, scan_run_id) DO UPDATE SET outcome = excluded.outcome, seen_at = excluded.seen_at"""


class UnreportedFinding(NamedTuple):
    """An open finding that a run did not report."""

    id: str
    code: str
    export_id: str | None
    missed_runs: int
    times_reopened: int


class ReportedFinding(NamedTuple):
    """A fixed finding that a run reported; `has_fixed`: whether the same run had fixed it."""

    id: str
    fingerprint: str
    export_id: str | None
    times_reopened: int
    has_fixed: bool


def unreported(project_id: int, page: str, scan_run_id: int) -> list[UnreportedFinding]:
    """Return and lock a page's open findings that a run has not reported so far; none for a repeated postback."""
    found = rows(_UNREPORTED if is_sqlite() else _LOCKED, (project_id, page, scan_run_id, scan_run_id))
    return [UnreportedFinding._make(row) for row in found]


def reported(finding_ids: Sequence[str], scan_run_id: int) -> list[ReportedFinding]:
    """Return fixed findings that a run has reported."""
    found = rows_over(_REPORTED, ("TEXT",), [(each,) for each in finding_ids], (scan_run_id,))
    return [ReportedFinding._make(row) for row in found]


def write(changed: Sequence[tuple[str, tuple[LifeCycle, RunOutcome | None]]], scan_run_id: int, now: datetime) -> None:
    """Store findings by their ids, and the outcome of one run for each."""
    at = to_ms(now)
    values = [
        (finding_id, after.missed_runs, at if after.is_fixed else None, after.times_reopened)
        for finding_id, (after, _) in changed
    ]
    execute_over(_WRITE, _WRITE_TYPES, values)
    outcomes = [(finding_id, scan_run_id, at, outcome and outcome.value) for finding_id, (_, outcome) in changed]
    execute_over(_WRITE_OUTCOMES, _OUTCOME_TYPES, outcomes)
