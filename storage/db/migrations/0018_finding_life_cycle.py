"""The life cycle of findings, the outcome of each scan run for a finding, and columns and indexes for lists of findings."""

from collections.abc import Iterator
from typing import Any, Final

from peewee import Database, SqliteDatabase

from schemas.intake.page_url import page_digest
from schemas.triage.search_words import host_of

COLUMNS: Final = """
ALTER TABLE findings ADD COLUMN account_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE findings ADD COLUMN page_digest TEXT NOT NULL DEFAULT '';
ALTER TABLE findings ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE findings ADD COLUMN missed_runs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE findings ADD COLUMN fixed_at BIGINT;
ALTER TABLE findings ADD COLUMN times_reopened INTEGER NOT NULL DEFAULT 0;
ALTER TABLE finding_sightings ADD COLUMN outcome TEXT NOT NULL DEFAULT 'seen';
UPDATE findings SET account_id = (SELECT account_id FROM projects WHERE projects.id = findings.project_id)
"""
#: Created after the rows are updated: building an index at once is faster than changing it row by row.
INDEXES: Final = """
DROP INDEX findings_page;
-- The findings that a scan run of this page may not have reported.
CREATE INDEX findings_page ON findings (project_id, page_digest, id) WHERE fixed_at IS NULL;
CREATE INDEX findings_open ON findings (account_id, id) WHERE fixed_at IS NULL;
CREATE INDEX findings_fixed ON findings (account_id, id) WHERE fixed_at IS NOT NULL;
CREATE INDEX findings_rule ON findings (account_id, code, id);
CREATE INDEX findings_host ON findings (account_id, host, id)
"""
#: How many findings are read and written at once.
BATCH: Final = 1_000

_PAGE: Final = "SELECT id, page_url FROM findings WHERE id > {p} ORDER BY id LIMIT {p}"
_FILL: Final = "UPDATE findings SET page_digest = {p}, host = {p} WHERE id = {p}"


def up(_migrator: Any, db: Database) -> None:
    """Add the columns, fill them from the URLs, and create the indexes."""
    _run(db, COLUMNS)
    cursor = db.cursor()  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
    place = "?" if isinstance(db, SqliteDatabase) else "%s"
    for findings in _batches(cursor, _PAGE.format(p=place)):
        filled = [(page_digest(url), host_of(url) or "", finding_id) for finding_id, url in findings]
        cursor.executemany(_FILL.format(p=place), filled)
    _run(db, INDEXES)


def _batches(cursor: Any, page: str) -> Iterator[list[tuple[Any, ...]]]:
    last = ""
    while found := cursor.execute(page, (last, BATCH)).fetchall():
        yield found
        last = found[-1][0]


def _run(db: Database, statements: str) -> None:
    for statement in statements.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
