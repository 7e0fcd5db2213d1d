"""Markers for tests that need one kind of database (tests without a marker run on both), and PostgresEmptier."""

from typing import Final

import psycopg
import pytest

from storage.db.models import ALL
from tests.support.database import kept_sessions

#: For tests of code that does not depend on the kind of database, or that only this kind of database runs.
on_sqlite: Final = pytest.mark.database("sqlite")
on_postgresql: Final = pytest.mark.database("postgresql")

#: Connections that the previous test left open could hold locks or write during the next test.
_DISCONNECT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL(%s)"
)
_TABLES: Final = ", ".join(model._meta.table_name for model in ALL)
#: Tables over 1 MB are truncated. TRUNCATE takes some milliseconds for each table, so small ones are emptied with DELETE.
_LARGE: Final = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    " AND pg_relation_size(oid) > 1000000"
)
_EMPTY: Final = "; ".join(f"DELETE FROM {model._meta.table_name}" for model in reversed(ALL))  # noqa: S608 - our own names
_RESTART_IDS: Final = "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"
#: Until VACUUM, deleted rows remain in the table, and every scan of the table reads them.
_VACUUM: Final = f"VACUUM {_TABLES}"
_EMPTIED_UNTIL_VACUUM: Final = 50


class PostgresEmptier:
    """Removes every row of a PostgreSQL database.

    It keeps its connection open: in a new session, reading the catalog of all tables takes ten times as long as emptying
    them.

    It runs VACUUM because autovacuum is off. Autovacuum could run between two tests and record that the tables are empty;
    PostgreSQL would then plan queries for empty tables.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: psycopg.Connection | None = None
        self._emptied = 0

    def empty(self) -> None:
        """Disconnect all other clients, except kept sessions, and empty every table."""
        try:
            self._empty()
        except psycopg.OperationalError:
            # A test has stopped the server, or ended all sessions.
            self.close()
            self._empty()

    def close(self) -> None:
        """Disconnect."""
        if self._session:
            self._session.close()
            self._session = None

    def _empty(self) -> None:
        self._session = self._session or psycopg.connect(self._url, autocommit=True)
        self._emptied += 1
        self._session.execute(_DISCONNECT, [kept_sessions.process_ids()])
        large = [name for (name,) in self._session.execute(_LARGE)]
        truncated = [f"TRUNCATE {', '.join(large)} CASCADE"] if large else []
        statements = [*truncated, _EMPTY, _RESTART_IDS, *([_VACUUM] if self._emptied % _EMPTIED_UNTIL_VACUUM == 0 else [])]
        for statement in statements:
            self._session.execute(statement)
