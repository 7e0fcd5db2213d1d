"""The index of the fixed findings of a page; those that are not fixed have one already."""

from typing import Any, Final

from peewee import Database

INDEXES: Final = """
CREATE INDEX findings_page_fixed ON findings (project_id, page_digest, id) WHERE fixed_at IS NOT NULL
"""


def up(_migrator: Any, db: Database) -> None:
    """Create the indexes."""
    for statement in INDEXES.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
