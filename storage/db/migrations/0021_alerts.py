"""Alerts, their messages until they are sent, and the time of the last backup."""

from typing import Any

from peewee import Database

STATEMENTS = """
CREATE TABLE alerts (
    id TEXT NOT NULL PRIMARY KEY,
    cause TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'recovered')),
    account_id INTEGER REFERENCES accounts (id),
    subject_id TEXT,
    details TEXT NOT NULL,
    first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    count INTEGER NOT NULL,
    sent_at BIGINT,
    sent_state TEXT CHECK (sent_state IN ('open', 'recovered')),
    acknowledged_at BIGINT,
    acknowledged_by TEXT
);
CREATE INDEX alerts_account ON alerts (account_id, id);
CREATE INDEX alerts_state ON alerts (state, last_at);
CREATE INDEX alerts_sent ON alerts (state, sent_state);
CREATE TABLE alert_messages (
    id TEXT NOT NULL PRIMARY KEY,
    channel TEXT NOT NULL,
    body TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    lease TEXT,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX alert_messages_due ON alert_messages (next_run_at) WHERE next_run_at IS NOT NULL;
ALTER TABLE installation ADD COLUMN backup_at BIGINT;
-- The exports that failed recently. Delivered exports are never in this index.
CREATE INDEX exports_failed ON exports (finished_at) WHERE status = 'failed' AND finished_at IS NOT NULL;
-- Few rules ever stop, so this index is small.
CREATE INDEX approval_rules_stopped ON approval_rules (id) WHERE stopped_reason IS NOT NULL
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the tables, the column and the indexes."""
    for statement in STATEMENTS.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
