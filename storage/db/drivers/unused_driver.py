"""Keeps PostgreSQL's driver out of a process whose database is SQLite, where it would take 7 MB.

Peewee imports the driver wherever it is installed.
"""

import sys


def leave_out_postgresql(database_url: str) -> None:
    """Make imports of the driver fail from now on if `database_url` is SQLite's. Has no effect once Peewee is imported."""
    if database_url.startswith("sqlite:") and "peewee" not in sys.modules:
        # Python's marker for a module that cannot be imported.
        sys.modules["psycopg"] = None  # type: ignore[assignment]  # the annotation allows only modules
