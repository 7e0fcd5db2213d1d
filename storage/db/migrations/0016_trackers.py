"""Targets with their own settings, headers and secrets, and exports that a tracker may have received."""

from typing import Any

from peewee import Database, SqliteDatabase

STATEMENTS = """
ALTER TABLE targets ADD COLUMN provider_settings TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE targets ADD COLUMN signature TEXT NOT NULL DEFAULT 'service';
ALTER TABLE targets ADD COLUMN format TEXT NOT NULL DEFAULT 'ticket';
ALTER TABLE targets ADD COLUMN headers_sealed {blob};
ALTER TABLE targets ADD COLUMN header_fingerprints TEXT NOT NULL DEFAULT '[]';
ALTER TABLE targets ADD COLUMN standard_secret_sealed {blob};
ALTER TABLE targets ADD COLUMN standard_secret_fingerprint TEXT;
ALTER TABLE targets ADD COLUMN certificate_sealed {blob};
ALTER TABLE targets ADD COLUMN certificate_fingerprint TEXT;
ALTER TABLE exports ADD COLUMN is_outcome_unknown {boolean} NOT NULL DEFAULT {false}
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the columns."""
    is_sqlite = isinstance(db, SqliteDatabase)
    types = {"blob": "BLOB", "boolean": "INTEGER", "false": "0"} if is_sqlite else _POSTGRESQL
    for statement in STATEMENTS.format(**types).split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out


_POSTGRESQL = {"blob": "BYTEA", "boolean": "BOOLEAN", "false": "FALSE"}
