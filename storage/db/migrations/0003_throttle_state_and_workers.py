"""The throttle state of targets, the heartbeats of workers, and recoveries."""

from typing import Any

from peewee import Database

TABLES = """
-- No attempt starts before this time, and the reason.
ALTER TABLE targets ADD COLUMN held_until BIGINT;
ALTER TABLE targets ADD COLUMN held_reason TEXT;
-- The target's concurrent requests over all workers, and the ramp after a pause.
ALTER TABLE targets ADD COLUMN concurrency DOUBLE PRECISION NOT NULL DEFAULT 16;
ALTER TABLE targets ADD COLUMN ramp INTEGER NOT NULL DEFAULT 4;
ALTER TABLE targets ADD COLUMN failures_in_row INTEGER NOT NULL DEFAULT 0;
ALTER TABLE targets ADD COLUMN failing_since BIGINT;
-- The rate limit, and the time in microseconds up to which it is used.
ALTER TABLE targets ADD COLUMN max_per_minute INTEGER CHECK (max_per_minute > 0);
ALTER TABLE targets ADD COLUMN paced_until BIGINT;
-- The next validation of its address and certificate, since when a request waits for it, and its lease.
ALTER TABLE targets ADD COLUMN validation_due_at BIGINT;
ALTER TABLE targets ADD COLUMN validation_asked_at BIGINT;
ALTER TABLE targets ADD COLUMN validation_lease TEXT;
-- A target validated before is validated again a day later.
UPDATE targets SET validation_due_at = COALESCE(validated_at, created_at) + 86400000;
CREATE INDEX targets_validation ON targets (validation_due_at) WHERE validation_due_at IS NOT NULL;
-- The redacted excerpt of the receiver's response; only the operator sees it.
ALTER TABLE attempts ADD COLUMN answer TEXT;
CREATE TABLE workers (
    name TEXT NOT NULL PRIMARY KEY,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);
-- The scan for targets with waiting exports, the oldest due first. Finished exports are not in the index.
CREATE INDEX exports_waiting ON exports (target_id, due_at) WHERE due_at IS NOT NULL;
DROP INDEX exports_due;
-- No query reads all exports of a target: waiting ones and recoverable ones have indexes of their own.
DROP INDEX exports_target;
-- Recoverable exports by the time they ended: counting them and skipping older ones read only the index.
CREATE INDEX exports_recoverable ON exports (target_id, id, finished_at)
    WHERE status IN ('failed', 'blocked') AND redacted_at IS NULL;
CREATE TABLE recoveries (
    id TEXT NOT NULL PRIMARY KEY,
    target_id TEXT NOT NULL REFERENCES targets (id),
    since BIGINT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'done', 'cancelled')),
    total INTEGER NOT NULL,
    done INTEGER NOT NULL,
    -- The last export that was processed.
    after_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    lease TEXT,
    next_run_at BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    CHECK ((status = 'running') = (next_run_at IS NOT NULL)),
    CHECK ((status = 'running') = (finished_at IS NULL)),
    CHECK (status = 'running' OR lease IS NULL)
);
CREATE INDEX recoveries_next ON recoveries (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX recoveries_target ON recoveries (target_id, id);
-- One at a time for a target: two would put back the same.
CREATE UNIQUE INDEX recoveries_running ON recoveries (target_id) WHERE status = 'running';
"""


def up(_migrator: Any, db: Database) -> None:
    """Make the tables, and what the first ones lack."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
