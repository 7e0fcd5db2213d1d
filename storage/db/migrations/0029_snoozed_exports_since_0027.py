"""Creates the index of snoozed exports, which are few beside those that wait for a decision."""

from typing import Any, Final

from peewee import Database

_CREATE: Final = "CREATE INDEX exports_snoozed ON exports (account_id, id) WHERE snoozed_at IS NOT NULL"


def up(_migrator: Any, db: Database) -> None:
    """Create it."""
    db.execute_sql(_CREATE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
