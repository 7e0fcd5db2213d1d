"""The throttle state of targets, the heartbeats of workers, and recoveries."""

from typing import Any

from peewee import Database

TABLES = """
-- No attempt starts before this time, for this reason.
ALTER TABLE targets ADD COLUMN held_until BIGINT;
ALTER TABLE targets ADD COLUMN held_reason TEXT;
-- The limit of the target's concurrent requests over all workers, and the limit during the ramp after a pause.
ALTER TABLE targets ADD COLUMN concurrency DOUBLE PRECISION NOT NULL DEFAULT 16;
ALTER TABLE targets ADD COLUMN ramp INTEGER NOT NULL DEFAULT 4;
ALTER TABLE targets ADD COLUMN failures_in_row INTEGER NOT NULL DEFAULT 0;
ALTER TABLE targets ADD COLUMN failing_since BIGINT;
-- The rate limit, and the time in microseconds until which it is used up.
ALTER TABLE targets ADD COLUMN max_per_minute INTEGER CHECK (max_per_minute > 0);
ALTER TABLE targets ADD COLUMN paced_until BIGINT;
-- When the target is validated next, since when a client request waits for the validation, and its lease.
ALTER TABLE targets ADD COLUMN validation_due_at BIGINT;
ALTER TABLE targets ADD COLUMN validation_asked_at BIGINT;
ALTER TABLE targets ADD COLUMN validation_lease TEXT;
-- A target that was validated before is validated again a day later.
UPDATE targets SET validation_due_at = COALESCE(validated_at, created_at) + 86400000;
CREATE INDEX targets_validation ON targets (validation_due_at) WHERE validation_due_at IS NOT NULL;
-- The redacted excerpt of the receiver's response; only the operator sees it.
ALTER TABLE attempts ADD COLUMN answer TEXT;
CREATE TABLE workers (
    name TEXT NOT NULL PRIMARY KEY,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);
-- For the scan of targets with waiting exports, the oldest due first. Finished exports are not in the index.
CREATE INDEX exports_waiting ON exports (target_id, due_at) WHERE due_at IS NOT NULL;
DROP INDEX exports_due;
-- No query reads all exports of a target: waiting and recoverable exports have their own indexes.
DROP INDEX exports_target;
-- Recoverable exports by the time at which they ended: counting them and skipping older ones read only the index.
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
-- One running recovery for each target: two would make the same exports due.
CREATE UNIQUE INDEX recoveries_running ON recoveries (target_id) WHERE status = 'running';
"""


def up(_migrator: Any, db: Database) -> None:
    """Create the tables and indexes, and add the columns to the first ones."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
