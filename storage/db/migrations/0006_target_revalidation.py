"""Targets whose validation failed are validated again automatically, later with each failure in a row."""

from typing import Any

from peewee import Database

STATEMENTS = (
    "ALTER TABLE targets ADD COLUMN validation_failures INTEGER NOT NULL DEFAULT 0",
    # A failed validation now forbids approvals, so targets with an earlier failure are validated again at once. A validation
    # that is requested or running keeps its due time.
    "UPDATE targets SET validation_failures = 1 WHERE validation_status = 'failed'",
    """UPDATE targets SET validation_due_at = 1
    WHERE validation_status = 'failed' AND validation_lease IS NULL AND validation_asked_at IS NULL""",
)


def up(_migrator: Any, db: Database) -> None:
    """Add the column, and make the failed validations due."""
    for statement in STATEMENTS:
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
