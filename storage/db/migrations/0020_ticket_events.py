"""Events of delivered tickets: the events that targets receive and approvals cover, and the changes of scan runs."""

from typing import Any

from peewee import Database, SqliteDatabase

STATEMENTS = """
ALTER TABLE targets ADD COLUMN events TEXT NOT NULL DEFAULT '[]';
UPDATE targets SET events = '["ticket.fixed","ticket.reopened","ticket.updated","ticket.redact"]'
    WHERE provider_key <> 'generic_webhook';
ALTER TABLE exports ADD COLUMN events TEXT;
ALTER TABLE scan_runs ADD COLUMN has_changes {boolean} NOT NULL DEFAULT {false};
ALTER TABLE scan_runs ADD COLUMN changes_read_at BIGINT;
-- Scan runs whose changes must become events.
CREATE INDEX scan_runs_changed ON scan_runs (id) WHERE has_changes;
-- Shows whether a later run of the project has posted.
DROP INDEX scan_runs_project;
CREATE INDEX scan_runs_project ON scan_runs (project_id, created_at);
CREATE TABLE ticket_changes (
    scan_run_id BIGINT NOT NULL REFERENCES scan_runs (id) ON DELETE CASCADE,
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    finding_id TEXT NOT NULL,
    change TEXT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (scan_run_id, export_id, finding_id)
);
CREATE INDEX ticket_changes_export ON ticket_changes (export_id);
CREATE TABLE ticket_events (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    export_id TEXT NOT NULL REFERENCES exports (id) ON DELETE CASCADE,
    target_id TEXT NOT NULL REFERENCES targets (id),
    number INTEGER NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    body {blob},
    attempts INTEGER NOT NULL,
    attempt_records TEXT NOT NULL,
    error_code TEXT,
    result TEXT,
    is_outcome_unknown {boolean} NOT NULL,
    due_at BIGINT,
    lease TEXT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT
);
CREATE UNIQUE INDEX ticket_events_export ON ticket_events (export_id, number);
CREATE INDEX ticket_events_due ON ticket_events (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ticket_events_target ON ticket_events (target_id, due_at);
-- Shows what a compliance request redacted, and so which targets had received it.
CREATE INDEX redactions_request ON redactions (request_id);
CREATE INDEX ticket_events_account ON ticket_events (account_id)
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the columns, tables and indexes; a tracker gets all events, a webhook none."""
    is_sqlite = isinstance(db, SqliteDatabase)
    types = {
        "boolean": "INTEGER" if is_sqlite else "BOOLEAN",
        "false": "0" if is_sqlite else "FALSE",
        "blob": "BLOB" if is_sqlite else "BYTEA",
    }
    for statement in STATEMENTS.format(**types).split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
