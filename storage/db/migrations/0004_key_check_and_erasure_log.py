"""A canary for the encryption keys, the ids of erased rows, and indexes for the rows that retention deletes."""

from typing import Any

from peewee import Database, SqliteDatabase

TABLES = """
-- One row: a known text, encrypted. A key that cannot decrypt it belongs to another installation.
CREATE TABLE installation (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    key_canary {blob} NOT NULL,
    created_at BIGINT NOT NULL
);
-- The ids of rows that compliance requests erased or emptied, so that a restored backup can be erased again.
CREATE TABLE redactions (
    id {bigserial},
    request_id TEXT NOT NULL,
    table_name TEXT NOT NULL,
    row_id TEXT NOT NULL,
    redacted_at BIGINT NOT NULL
);
CREATE INDEX redactions_redacted ON redactions (redacted_at);
CREATE INDEX page_results_received ON page_results (received_at);
CREATE INDEX tokens_expires ON tokens (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX tokens_revoked ON tokens (revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX compliance_requests_reports ON compliance_requests (finished_at) WHERE report_sealed IS NOT NULL;
"""

SQLITE = {"bigserial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "blob": "BLOB"}
POSTGRESQL = {"bigserial": "BIGSERIAL PRIMARY KEY", "blob": "BYTEA"}


def up(_migrator: Any, db: Database) -> None:
    """Create the tables and the indexes."""
    words = SQLITE if isinstance(db, SqliteDatabase) else POSTGRESQL
    for statement in TABLES.format(**words).split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
