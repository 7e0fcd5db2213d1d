"""Creates the index by which a user is found however an address is written."""

from typing import Any, Final

from peewee import Database

_CREATE: Final = "CREATE INDEX users_lower_email ON users (LOWER(email))"


def up(_migrator: Any, db: Database) -> None:
    """Create it."""
    db.execute_sql(_CREATE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
