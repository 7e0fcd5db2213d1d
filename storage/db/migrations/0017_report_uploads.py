"""Scanners' report files that users upload at the console, until a worker has imported them."""

from typing import Any

from peewee import Database, SqliteDatabase

STATEMENTS = """
CREATE TABLE report_uploads (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    project_id INTEGER NOT NULL REFERENCES projects (id),
    user_id INTEGER NOT NULL REFERENCES users (id),
    file_name TEXT NOT NULL,
    format TEXT NOT NULL,
    scan_run_id BIGINT NOT NULL,
    status TEXT NOT NULL,
    total INTEGER,
    done INTEGER NOT NULL,
    new_findings INTEGER NOT NULL,
    seen_findings INTEGER NOT NULL,
    tickets INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    left_out TEXT NOT NULL,
    error TEXT,
    actor TEXT NOT NULL,
    lease TEXT,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    content_sealed {blob}
);
CREATE INDEX report_uploads_account ON report_uploads (account_id, id);
CREATE INDEX report_uploads_project ON report_uploads (project_id);
CREATE INDEX report_uploads_user ON report_uploads (user_id);
CREATE INDEX report_uploads_due ON report_uploads (next_run_at) WHERE next_run_at IS NOT NULL
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the table."""
    blob = "BLOB" if isinstance(db, SqliteDatabase) else "BYTEA"
    for statement in STATEMENTS.format(blob=blob).split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
