"""The first tables: accounts with their users, projects and targets, findings, and exports."""

from typing import Any

from peewee import Database, SqliteDatabase

TABLES = """
CREATE TABLE accounts (
    id {serial},
    name TEXT NOT NULL,
    may_use_webhooks {boolean} NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE TABLE users (
    id {serial},
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    email TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);
CREATE INDEX users_account ON users (account_id);
CREATE TABLE projects (
    id {serial},
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    name TEXT NOT NULL,
    shop_domain TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX projects_account ON projects (account_id);
CREATE TABLE reports (
    id {serial},
    project_id INTEGER NOT NULL REFERENCES projects (id),
    title TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX reports_project ON reports (project_id);
CREATE TABLE grants (
    id {serial},
    user_id INTEGER NOT NULL REFERENCES users (id),
    project_id INTEGER REFERENCES projects (id),
    report_id INTEGER REFERENCES reports (id),
    created_at BIGINT NOT NULL,
    CHECK ((project_id IS NULL) <> (report_id IS NULL))
);
CREATE UNIQUE INDEX grants_user_project ON grants (user_id, project_id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX grants_user_report ON grants (user_id, report_id) WHERE report_id IS NOT NULL;
CREATE INDEX grants_user ON grants (user_id);
CREATE INDEX grants_project ON grants (project_id);
CREATE INDEX grants_report ON grants (report_id);
CREATE TABLE tokens (
    id {serial},
    user_id INTEGER NOT NULL REFERENCES users (id),
    kind TEXT NOT NULL CHECK (kind IN ('api', 'platform')),
    name TEXT NOT NULL,
    abilities TEXT NOT NULL,
    token_sha256 TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
CREATE INDEX tokens_user ON tokens (user_id);
CREATE TABLE integration_secrets (
    name TEXT NOT NULL PRIMARY KEY,
    secret_sealed {blob} NOT NULL,
    secret_fingerprint TEXT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE TABLE scan_runs (
    id BIGINT NOT NULL PRIMARY KEY,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    status TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX scan_runs_project ON scan_runs (project_id);
CREATE TABLE page_results (
    id {bigserial},
    scan_run_id BIGINT NOT NULL REFERENCES scan_runs (id),
    url TEXT NOT NULL,
    normalized_url TEXT,
    status_code INTEGER,
    page_type TEXT,
    response_headers TEXT NOT NULL,
    screenshot_path TEXT,
    received_at BIGINT NOT NULL,
    UNIQUE (scan_run_id, url)
);
CREATE TABLE findings (
    id TEXT NOT NULL PRIMARY KEY,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    fingerprint TEXT NOT NULL,
    code TEXT NOT NULL,
    title TEXT NOT NULL,
    severity TEXT NOT NULL,
    page_url TEXT NOT NULL,
    location TEXT NOT NULL,
    first_scan_run_id BIGINT NOT NULL REFERENCES scan_runs (id),
    last_scan_run_id BIGINT NOT NULL REFERENCES scan_runs (id),
    first_seen_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL,
    times_seen INTEGER NOT NULL,
    UNIQUE (project_id, fingerprint)
);
CREATE INDEX findings_first_scan_run ON findings (first_scan_run_id);
CREATE INDEX findings_last_scan_run ON findings (last_scan_run_id);
CREATE TABLE targets (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    provider_key TEXT NOT NULL,
    base_url TEXT NOT NULL,
    deployment_mode TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'inactive', 'paused', 'blocked', 'disabled')),
    status_reason TEXT,
    secret_sealed {blob},
    secret_fingerprint TEXT,
    connected_status TEXT NOT NULL CHECK (connected_status IN ('unknown', 'connected', 'failing')),
    last_success_at BIGINT,
    validation_status TEXT CHECK (validation_status IN ('passed', 'failed')),
    validation_reason TEXT,
    validated_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX targets_account ON targets (account_id, id);
CREATE TABLE exports (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    project_id INTEGER REFERENCES projects (id),
    source_type TEXT NOT NULL,
    source_id TEXT NOT NULL,
    scan_run_id BIGINT,
    status TEXT NOT NULL CHECK (status IN (
        'prepared', 'approved', 'delivering', 'exported', 'retry_scheduled', 'failed', 'blocked', 'dismissed')),
    status_reason TEXT,
    target_id TEXT REFERENCES targets (id),
    ticket TEXT NOT NULL,
    ticket_digest TEXT NOT NULL,
    preview_problems TEXT NOT NULL,
    body {blob},
    attempts INTEGER NOT NULL,
    attempts_before INTEGER NOT NULL,
    schedule_began_at BIGINT,
    due_at BIGINT,
    lease TEXT,
    version INTEGER NOT NULL,
    last_attempt_at BIGINT,
    last_response_status INTEGER,
    last_error_code TEXT,
    last_duration_ms INTEGER,
    provider_ticket_id TEXT,
    provider_ticket_url TEXT,
    created_at BIGINT NOT NULL,
    approved_at BIGINT,
    finished_at BIGINT,
    -- Only a waiting or claimed export has a due time, and only a claimed one has a lease.
    CHECK ((due_at IS NOT NULL) = (status IN ('approved', 'retry_scheduled', 'delivering'))),
    CHECK ((lease IS NOT NULL) = (status = 'delivering')),
    -- An export with a target has its frozen body.
    CHECK (status IN ('prepared', 'dismissed') OR (target_id IS NOT NULL AND body IS NOT NULL))
);
-- A finding is prepared once, even if several postbacks report it at the same time.
CREATE UNIQUE INDEX exports_finding ON exports (source_id) WHERE source_type = 'finding';
-- The workers' scan: due exports, oldest first. Finished exports are not in the index.
CREATE INDEX exports_due ON exports (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX exports_account ON exports (account_id, id);
CREATE INDEX exports_project ON exports (project_id);
CREATE INDEX exports_target ON exports (target_id);
CREATE TABLE attempts (
    id TEXT NOT NULL PRIMARY KEY,
    export_id TEXT NOT NULL REFERENCES exports (id),
    number INTEGER NOT NULL,
    started_at BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    response_status INTEGER,
    error_code TEXT,
    retry_after_s INTEGER,
    address TEXT,
    dns_ms INTEGER,
    connect_ms INTEGER,
    tls_ms INTEGER,
    first_byte_ms INTEGER,
    total_ms INTEGER NOT NULL,
    nonce TEXT,
    worker TEXT NOT NULL,
    UNIQUE (export_id, number)
);
-- The database ensures that an export has one successful attempt at most.
CREATE UNIQUE INDEX attempts_delivered ON attempts (export_id) WHERE outcome = 'delivered';
CREATE TABLE idempotency_keys (
    id {bigserial},
    principal TEXT NOT NULL,
    method TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    payload_sha256 TEXT NOT NULL,
    response_status INTEGER,
    response_headers TEXT,
    response_body TEXT,
    created_at BIGINT NOT NULL,
    UNIQUE (principal, method, route, key)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at);
CREATE TABLE audit_entries (
    id {bigserial},
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    status_before TEXT,
    status_after TEXT,
    reason TEXT
);
CREATE INDEX audit_entries_subject ON audit_entries (subject_id, id);
"""

SQLITE = {
    "serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
    "bigserial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
    "boolean": "INTEGER",
    "blob": "BLOB",
}
POSTGRESQL = {"serial": "SERIAL PRIMARY KEY", "bigserial": "BIGSERIAL PRIMARY KEY", "boolean": "BOOLEAN", "blob": "BYTEA"}


def up(_migrator: Any, db: Database) -> None:
    """Create the tables."""
    words = SQLITE if isinstance(db, SqliteDatabase) else POSTGRESQL
    for statement in TABLES.format(**words).split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
