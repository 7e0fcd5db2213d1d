"""The statements of a postback, hand-written because a scan of a website sends thousands of postbacks in a row."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from schemas.base.timestamps import to_ms
from schemas.intake.scanner import ScanPostback
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import JsonField, column_types
from storage.db.engine import execute, first_row, is_sqlite, rows, values_list
from storage.db.models import FindingRow, PageResultRow

_FINDING: Final = tuple(FindingRow._meta.columns)
_FINDING_TYPES: Final = column_types(FindingRow, _FINDING)
_INSERT: Final = f"""
INSERT INTO findings ({", ".join(_FINDING)}) {{rows}}
ON CONFLICT (project_id, fingerprint) DO NOTHING RETURNING fingerprint"""
#: A run counts once, however often it posts. The run that found it first may post again while a later one is under way; it
#: does not count then either.
_SEEN: Final = """
WITH r (fingerprint) AS ({rows})
UPDATE findings SET times_seen = times_seen + CASE WHEN ? IN (first_scan_run_id, last_scan_run_id) THEN 0 ELSE 1 END,
    last_scan_run_id = CASE WHEN first_scan_run_id = ? THEN last_scan_run_id ELSE ? END, last_seen_at = ?
FROM r WHERE findings.project_id = ? AND findings.fingerprint = r.fingerprint"""
#: The fingerprints that the project of a run, or else the default project, has already, as one JSON array.
_KNOWN: Final = """
SELECT {array} FROM findings
WHERE project_id = COALESCE((SELECT project_id FROM scan_runs WHERE id = ?), ?)
    AND fingerprint IN (SELECT value FROM {values})"""
_KNOWN_BY_SQLITE: Final = _KNOWN.format(array="json_group_array(fingerprint)", values="json_each(?)")
_KNOWN_BY_POSTGRESQL: Final = _KNOWN.format(
    array="COALESCE(CAST(json_agg(fingerprint) AS TEXT), '[]')", values="json_array_elements_text(CAST(? AS JSON))"
)

_PAGE: Final = tuple(name for name in PageResultRow._meta.columns if name != "id")
_UPSERT_PAGE: Final = f"""
INSERT INTO page_results ({", ".join(_PAGE)}) VALUES {values_list(len(_PAGE), 1)}
ON CONFLICT (scan_run_id, url) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _PAGE[2:])}"""  # noqa: S608 - our own names

#: Returns the project and the account too: nearly every postback belongs to a known run and needs no other look-up.
_UPDATE_RUN: Final = """
UPDATE scan_runs SET status = ?, updated_at = ? WHERE id = ?
RETURNING project_id, (SELECT account_id FROM projects WHERE projects.id = scan_runs.project_id)"""

_json: Final = JsonField()


def known_fingerprints(scan_run_id: int, default_project_id: int | None, fingerprints: Sequence[str]) -> set[str]:
    """Return those of `fingerprints` that the run's project has already; outside any transaction."""
    known = _KNOWN_BY_SQLITE if is_sqlite() else _KNOWN_BY_POSTGRESQL
    found = first_row(known, (scan_run_id, default_project_id, _json.text(fingerprints)))
    return set() if found is None else set(_json.python_value(found[0]))


def update_scan_run(postback: ScanPostback, now: datetime) -> tuple[int, int] | None:
    """Store the status of a run; return its project and account, None if the run is not registered."""
    found = rows(_UPDATE_RUN, (postback.status, to_ms(now), postback.scan_run_id))
    return (found[0][0], found[0][1]) if found else None


def upsert_page(postback: ScanPostback, now: datetime) -> None:
    """Store the page of a postback; a repeated postback replaces it."""
    page = postback.page
    record = {
        "scan_run_id": postback.scan_run_id,
        "url": page.url,
        "normalized_url": page.normalized_url,
        "status_code": page.status_code,
        "page_type": page.page_type,
        "response_headers": _json.db_value(page.response_headers),
        "screenshot_path": postback.screenshot_path,
        "received_at": to_ms(now),
    }
    execute(_UPSERT_PAGE, [record[name] for name in _PAGE])


def insert_new(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert findings unless their project has them; return the fingerprints of those inserted."""
    values = [[record[name] for name in _FINDING] for record in records]
    return {row[0] for row in rows_over(_INSERT, _FINDING_TYPES, values)}


def mark_seen(fingerprints: Sequence[str], project_id: int, scan_run_id: int, now: datetime) -> None:
    """Store that a run found findings of a project again."""
    shared = (scan_run_id, scan_run_id, scan_run_id, to_ms(now), project_id)
    execute_over(_SEEN, ["TEXT"], [(fingerprint,) for fingerprint in fingerprints], shared)
