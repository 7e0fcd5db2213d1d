"""Creates the index that finds users by email address, ignoring case."""

from typing import Any, Final

from peewee import Database

_CREATE: Final = "CREATE INDEX users_lower_email ON users (LOWER(email))"


def up(_migrator: Any, db: Database) -> None:
    """Create the index."""
    db.execute_sql(_CREATE)  # type: ignore[no-untyped-call]  # peewee's stubs leave it out
