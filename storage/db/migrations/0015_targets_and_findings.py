"""The number of attempts in a row with which a target received nothing, and an index of the findings of a page."""

from typing import Any

from peewee import Database

STATEMENTS = """
ALTER TABLE targets ADD COLUMN undelivered_in_row INTEGER NOT NULL DEFAULT 0;
CREATE INDEX findings_page ON findings (project_id, page_url, id)
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the column and the index."""
    for statement in STATEMENTS.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
