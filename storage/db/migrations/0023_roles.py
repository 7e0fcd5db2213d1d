"""The role of each user in the account, and of a grant in its project."""

from typing import Any

from peewee import Database

STATEMENTS = """
-- Before this migration, every user was allowed everything.
ALTER TABLE users ADD COLUMN role TEXT CHECK (role IN ('viewer', 'triager', 'manager', 'owner')) DEFAULT 'owner';
ALTER TABLE grants ADD COLUMN role TEXT CHECK (role IN ('viewer', 'triager', 'manager'));
"""


def up(_migrator: Any, db: Database) -> None:
    """Add the columns."""
    for statement in STATEMENTS.strip().split(";\n"):
        db.execute_sql(statement)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
