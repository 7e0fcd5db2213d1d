"""Indexes of a page's fixed findings, and of what trends count: findings that were new, fixed and reported again."""

from typing import Any, Final

from peewee import Database

INDEXES: Final = """
-- Findings that are not fixed have an index already.
CREATE INDEX findings_page_fixed ON findings (project_id, page_digest, id) WHERE fixed_at IS NOT NULL;
-- Trends read only these indexes.
CREATE INDEX findings_new ON findings (account_id, first_seen_at, severity, project_id);
CREATE INDEX findings_fixes ON findings (account_id, fixed_at, first_seen_at, severity, project_id)
    WHERE fixed_at IS NOT NULL;
CREATE INDEX findings_reopened ON findings (account_id, id, severity, project_id, fixed_at, times_reopened)
    WHERE times_reopened > 0;
CREATE INDEX finding_sightings_changes ON finding_sightings (finding_id, seen_at, outcome)
    WHERE outcome IN ('fixed', 'reopened')
"""


def up(_migrator: Any, db: Database) -> None:
    """Create the indexes."""
    for statement in INDEXES.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
