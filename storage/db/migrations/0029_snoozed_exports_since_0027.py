"""Creates the index of snoozed exports; among all exports that wait for a decision, they are few."""

from typing import Any, Final

from peewee import Database

_CREATE: Final = "CREATE INDEX exports_snoozed ON exports (account_id, id) WHERE snoozed_at IS NOT NULL"


def up(_migrator: Any, db: Database) -> None:
    """Create the index."""
    db.execute_sql(_CREATE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
