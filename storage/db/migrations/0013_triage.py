"""Groups of findings, decisions on many exports at once, approval rules, and targets that are removed.

An export of a project that groups its findings by rule has many findings. So a finding now names its export, instead of the
other way round. Existing projects keep one export for each finding.
"""

from typing import Any

from peewee import Database, SqliteDatabase

STATEMENTS = """
ALTER TABLE projects ADD COLUMN ticket_grouping TEXT NOT NULL DEFAULT 'finding';
ALTER TABLE targets ADD COLUMN deleted_at BIGINT;
ALTER TABLE exports ADD COLUMN severity_rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE exports ADD COLUMN rule TEXT;
ALTER TABLE exports ADD COLUMN open_group TEXT;
ALTER TABLE exports ADD COLUMN findings_total INTEGER;
ALTER TABLE exports ADD COLUMN findings_fixed INTEGER;
ALTER TABLE exports ADD COLUMN original_ticket TEXT;
ALTER TABLE exports ADD COLUMN dismissal_reason TEXT;
ALTER TABLE exports ADD COLUMN dismissal_note TEXT;
ALTER TABLE exports ADD COLUMN snoozed_at BIGINT;
ALTER TABLE exports ADD COLUMN snoozed_until BIGINT;
ALTER TABLE exports ADD COLUMN approved_by_user_id INTEGER;
ALTER TABLE exports ADD COLUMN approved_by_rule_id TEXT;
ALTER TABLE exports ADD COLUMN siblings TEXT;
ALTER TABLE findings ADD COLUMN export_id TEXT;
ALTER TABLE findings ADD COLUMN help_url TEXT;
UPDATE findings SET export_id =
    (SELECT id FROM exports WHERE source_type = 'finding' AND source_id = findings.id);
UPDATE exports SET findings_total = 1, findings_fixed = 0,
    rule = (SELECT code FROM findings WHERE findings.id = exports.source_id)
WHERE source_type = 'finding';
-- Several exports may have the ticket of one finding, one for each target.
DROP INDEX exports_finding;
CREATE INDEX exports_finding ON exports (source_id) WHERE source_type = 'finding';
CREATE UNIQUE INDEX exports_open_group ON exports (project_id, open_group) WHERE open_group IS NOT NULL;
-- The exports whose snooze ends when one of their findings is seen again.
CREATE INDEX exports_until_seen ON exports (project_id) WHERE snoozed_at IS NOT NULL AND snoozed_until IS NULL;
CREATE INDEX findings_export ON findings (export_id, page_url);
-- The scan runs that reported a finding.
CREATE TABLE finding_sightings (
    finding_id TEXT NOT NULL REFERENCES findings (id),
    scan_run_id BIGINT NOT NULL REFERENCES scan_runs (id),
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (finding_id, scan_run_id)
);
CREATE INDEX finding_sightings_run ON finding_sightings (scan_run_id);
CREATE TABLE approval_rules (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    name TEXT NOT NULL,
    enabled {boolean} NOT NULL,
    conditions TEXT NOT NULL,
    action TEXT NOT NULL,
    author_id INTEGER NOT NULL REFERENCES users (id),
    stopped_reason TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX approval_rules_account ON approval_rules (account_id, id);
CREATE INDEX approval_rules_author ON approval_rules (author_id);
-- Prepared exports that wait for the target of a rule.
CREATE INDEX exports_waiting_for_rule ON exports (approved_by_rule_id, id)
    WHERE status = 'prepared' AND approved_by_rule_id IS NOT NULL;
CREATE TABLE bulk_jobs (
    id TEXT NOT NULL PRIMARY KEY,
    account_id INTEGER NOT NULL REFERENCES accounts (id),
    user_id INTEGER REFERENCES users (id),
    action TEXT NOT NULL,
    options TEXT NOT NULL,
    status TEXT NOT NULL,
    total INTEGER NOT NULL,
    done INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    errors TEXT NOT NULL,
    actor TEXT NOT NULL,
    lease TEXT,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT
);
CREATE INDEX bulk_jobs_account ON bulk_jobs (account_id, id);
CREATE INDEX bulk_jobs_user ON bulk_jobs (user_id);
CREATE INDEX bulk_jobs_due ON bulk_jobs (next_run_at) WHERE next_run_at IS NOT NULL;
-- The exports that matched when a job was created, and their versions then.
CREATE TABLE bulk_job_items (
    job_id TEXT NOT NULL REFERENCES bulk_jobs (id),
    position INTEGER NOT NULL,
    export_id TEXT NOT NULL REFERENCES exports (id),
    version INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
);
CREATE INDEX bulk_job_items_export ON bulk_job_items (export_id)
"""
_RANKS = "CASE {severity} WHEN 'critical' THEN 4 WHEN 'high' THEN 3 WHEN 'medium' THEN 2 WHEN 'low' THEN 1 ELSE 0 END"


def up(_migrator: Any, db: Database) -> None:
    """Add the columns, tables and indexes."""
    is_sqlite = isinstance(db, SqliteDatabase)
    for statement in STATEMENTS.format(boolean="INTEGER" if is_sqlite else "BOOLEAN").split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
    severity = "json_extract(ticket, '$.severity')" if is_sqlite else "CAST(ticket AS json) ->> 'severity'"
    ranks = _RANKS.format(severity=severity)
    db.execute_sql(f"UPDATE exports SET severity_rank = {ranks}")  # type: ignore[no-untyped-call]  # noqa: S608 - our own words
