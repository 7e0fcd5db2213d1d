"""Uploads and their handoffs, emails, compliance requests, and pings."""

from typing import Any

from peewee import Database, SqliteDatabase

TABLES = """
CREATE TABLE evidence_captures (
    id TEXT NOT NULL PRIMARY KEY,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    report_id INTEGER REFERENCES reports (id),
    page_url TEXT NOT NULL,
    page_title TEXT,
    selected_text TEXT,
    meta_description TEXT,
    canonical_url TEXT,
    heading_outline TEXT,
    captured_at BIGINT,
    extension_version TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX evidence_captures_project ON evidence_captures (project_id, id);
CREATE INDEX evidence_captures_report ON evidence_captures (report_id);
CREATE TABLE diagnostics (
    id TEXT NOT NULL PRIMARY KEY,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    report_id INTEGER REFERENCES reports (id),
    platform TEXT NOT NULL CHECK (platform IN ('cms_commerce', 'storefront')),
    site_url TEXT,
    shop_domain TEXT,
    shop_name TEXT,
    granted_scopes TEXT,
    client_version TEXT,
    diagnostics TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- A plugin names its site, the storefront app its shop.
    CHECK ((platform = 'cms_commerce') = (site_url IS NOT NULL)),
    CHECK ((platform = 'storefront') = (shop_domain IS NOT NULL))
);
CREATE INDEX diagnostics_project ON diagnostics (project_id, id);
CREATE INDEX diagnostics_report ON diagnostics (report_id);
CREATE INDEX diagnostics_shop ON diagnostics (shop_domain) WHERE shop_domain IS NOT NULL;
CREATE TABLE handoffs (
    id TEXT NOT NULL PRIMARY KEY,
    source_type TEXT NOT NULL CHECK (source_type IN ('evidence_capture', 'diagnostics')),
    source_id TEXT NOT NULL UNIQUE,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    report_id INTEGER REFERENCES reports (id),
    user_id INTEGER NOT NULL REFERENCES users (id),
    export_id TEXT NOT NULL UNIQUE REFERENCES exports (id),
    status TEXT NOT NULL CHECK (status IN ('received')),
    created_at BIGINT NOT NULL
);
CREATE INDEX handoffs_project ON handoffs (project_id, id);
CREATE INDEX handoffs_report ON handoffs (report_id);
CREATE INDEX handoffs_user ON handoffs (user_id);
CREATE TABLE inbound_emails (
    id TEXT NOT NULL PRIMARY KEY,
    project_id INTEGER NOT NULL REFERENCES projects (id),
    message_sha256 TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    attachments TEXT NOT NULL,
    sent_at BIGINT,
    export_id TEXT NOT NULL UNIQUE REFERENCES exports (id),
    created_at BIGINT NOT NULL,
    -- A message is stored once per project, even if its provider posts it again.
    UNIQUE (project_id, message_sha256)
);
CREATE TABLE compliance_requests (
    id TEXT NOT NULL PRIMARY KEY,
    topic TEXT NOT NULL CHECK (topic IN ('customers/data_request', 'customers/redact', 'shop/redact')),
    shop_domain TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    subject_pseudonym TEXT,
    subject_sealed {blob},
    status TEXT NOT NULL CHECK (status IN ('received', 'done')),
    result TEXT,
    counts TEXT NOT NULL,
    report_sealed {blob},
    attempts INTEGER NOT NULL,
    last_error TEXT,
    lease TEXT,
    due_at BIGINT NOT NULL,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    UNIQUE (topic, shop_domain, body_sha256),
    -- A finished request has no lease and no personal data.
    CHECK ((status = 'done') = (finished_at IS NOT NULL)),
    CHECK ((status = 'received') = (next_run_at IS NOT NULL)),
    CHECK (status = 'received' OR (subject_sealed IS NULL AND lease IS NULL))
);
CREATE INDEX compliance_requests_next ON compliance_requests (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX compliance_requests_subject ON compliance_requests (subject_pseudonym);
CREATE INDEX compliance_requests_shop ON compliance_requests (shop_domain, id);
CREATE TABLE pings (
    id TEXT NOT NULL PRIMARY KEY,
    target_id TEXT NOT NULL REFERENCES targets (id),
    request_sha256 TEXT UNIQUE,
    requested_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    delivered {boolean},
    response_status INTEGER,
    error_code TEXT,
    duration_ms INTEGER,
    CHECK ((finished_at IS NOT NULL) = (delivered IS NOT NULL))
);
CREATE INDEX pings_waiting ON pings (requested_at) WHERE started_at IS NULL AND finished_at IS NULL;
CREATE INDEX pings_target ON pings (target_id);
-- When an export was redacted for a compliance request: its ticket is empty and is never sent again.
ALTER TABLE exports ADD COLUMN redacted_at BIGINT;
CREATE INDEX exports_account_status ON exports (account_id, status, id);
CREATE INDEX exports_account_source ON exports (account_id, source_type, id);
CREATE INDEX projects_shop ON projects (shop_domain) WHERE shop_domain IS NOT NULL;
-- Shop domains are compared in lower case; earlier versions stored them as entered.
UPDATE projects SET shop_domain = LOWER(shop_domain) WHERE shop_domain IS NOT NULL;
"""

SQLITE = {"boolean": "INTEGER", "blob": "BLOB"}
POSTGRESQL = {"boolean": "BOOLEAN", "blob": "BYTEA"}


def up(_migrator: Any, db: Database) -> None:
    """Create the tables, and add the columns and indexes to the first ones."""
    words = SQLITE if isinstance(db, SqliteDatabase) else POSTGRESQL
    for statement in TABLES.format(**words).split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
