"""How many attempts of a target in a row delivered nothing."""

from typing import Any

from peewee import Database


def up(_migrator: Any, db: Database) -> None:
    """Add the column."""
    db.execute_sql("ALTER TABLE targets ADD COLUMN undelivered_in_row INTEGER NOT NULL DEFAULT 0")  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
