"""Tables for the console: sessions, hourly counts for charts, each source's last rejection; and indexes for its lists."""

from typing import Any

from peewee import Database

TABLES = """
-- Console sessions; only digests of the browser's secrets.
CREATE TABLE console_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    token_id INTEGER NOT NULL REFERENCES tokens (id),
    secret_sha256 TEXT NOT NULL UNIQUE,
    browser_sha256 TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    ended_at BIGINT,
    ended_reason TEXT,
    CHECK ((ended_at IS NULL) = (ended_reason IS NULL))
);
CREATE INDEX console_sessions_token ON console_sessions (token_id, id);
-- A token has at most ten open sessions, but a script that signs in leaves thousands of ended ones.
CREATE INDEX console_sessions_open ON console_sessions (token_id, id) WHERE ended_at IS NULL;
CREATE INDEX console_sessions_seen ON console_sessions (seen_at);
-- Outcomes of attempts by hour: a day of a target is a few rows, with any number of attempts.
CREATE TABLE delivery_hours (
    target_id TEXT NOT NULL REFERENCES targets (id),
    hour_at BIGINT NOT NULL,
    worker TEXT NOT NULL,
    delivered INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (target_id, hour_at, worker)
);
CREATE INDEX delivery_hours_hour ON delivery_hours (hour_at);
-- One row per source.
CREATE TABLE inbound_refusals (
    source TEXT NOT NULL PRIMARY KEY,
    refused_at BIGINT NOT NULL,
    status INTEGER NOT NULL,
    code TEXT NOT NULL,
    problems TEXT NOT NULL,
    request_id TEXT NOT NULL
);
CREATE INDEX findings_severity ON findings (project_id, severity, id);
CREATE INDEX compliance_requests_status ON compliance_requests (status, id);
CREATE INDEX compliance_requests_topic ON compliance_requests (topic, id);
CREATE INDEX diagnostics_platform ON diagnostics (platform, id);
-- A target's page shows only its newest ping, and a monitor may send tens of thousands to a target.
DROP INDEX pings_target;
CREATE INDEX pings_target ON pings (target_id, id);
CREATE INDEX tokens_platform ON tokens (abilities) WHERE kind = 'platform' AND revoked_at IS NULL;
"""


def up(_migrator: Any, db: Database) -> None:
    """Create the tables and the indexes."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
