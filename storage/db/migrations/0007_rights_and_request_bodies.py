"""Users that are disabled or removed, and compliance requests whose signed body is accepted once."""

from typing import Any

from peewee import Database

STATEMENTS = """
ALTER TABLE users ADD COLUMN disabled_at BIGINT;
ALTER TABLE users ADD COLUMN removed_at BIGINT;
-- A body that was accepted under two topics keeps its digest with the first.
UPDATE compliance_requests SET body_sha256 = body_sha256 || '|' || id WHERE EXISTS (
    SELECT 1 FROM compliance_requests o WHERE o.shop_domain = compliance_requests.shop_domain
    AND o.body_sha256 = compliance_requests.body_sha256 AND o.id < compliance_requests.id
);
CREATE UNIQUE INDEX compliance_requests_body ON compliance_requests (body_sha256)
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the columns and the index."""
    for statement in STATEMENTS.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
