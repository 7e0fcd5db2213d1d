"""The account of each audit entry; earlier entries have none."""

from typing import Any

from peewee import Database

STATEMENTS = """
ALTER TABLE audit_entries ADD COLUMN account_id INTEGER;
CREATE INDEX audit_entries_account ON audit_entries (account_id, at, id)
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the column and the index."""
    for statement in STATEMENTS.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
