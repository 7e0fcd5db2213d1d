"""Indexes for lists of the exports of one project or one target, newest first."""

from typing import Any

from peewee import Database

STATEMENTS = """
DROP INDEX exports_project;
CREATE INDEX exports_project ON exports (project_id, id);
-- Begins with the account: otherwise PostgreSQL might use it for workers' queries, which filter by target only, and read
-- finished exports.
CREATE INDEX exports_account_target ON exports (account_id, target_id, id) WHERE target_id IS NOT NULL
"""


def up(_migrator: Any, db: Database) -> None:
    """Create the indexes."""
    for statement in STATEMENTS.split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
