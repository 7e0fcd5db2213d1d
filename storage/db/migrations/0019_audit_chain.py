"""The hash chain of the audit log, and the columns of attempts that receipts show."""

from typing import Any

from peewee import Database, SqliteDatabase

STATEMENTS = """
ALTER TABLE audit_entries ADD COLUMN digest {blob};
ALTER TABLE audit_entries ADD COLUMN position BIGINT;
ALTER TABLE audit_entries ADD COLUMN hash {blob};
-- The chain in its order, and the entries that are not in the chain yet.
CREATE INDEX audit_entries_chain ON audit_entries (position, id);
ALTER TABLE attempts ADD COLUMN address_class TEXT;
ALTER TABLE attempts ADD COLUMN signature TEXT;
ALTER TABLE attempts ADD COLUMN body_sha256 TEXT;
ALTER TABLE attempts ADD COLUMN response_sha256 TEXT
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the columns and the index."""
    blob = "BLOB" if isinstance(db, SqliteDatabase) else "BYTEA"
    for statement in STATEMENTS.format(blob=blob).split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
