"""Peewee queries: rows as tuples, and the row locks of PostgreSQL."""

from typing import TypeVar

from peewee import Query

from storage.db.engine import Row, is_sqlite

Selected = TypeVar("Selected", bound=Query)


def tuples(query: Query) -> list[Row]:
    """Return the rows as tuples in the order of the query's columns."""
    return list(query.tuples())


def for_update(query: Selected, lock: str = "FOR UPDATE") -> Selected:
    """Let a SELECT lock its rows until the transaction ends; on SQLite a transaction is the only writer anyway."""
    if is_sqlite():
        return query
    locked: Selected = query.for_update(lock)  # type: ignore[attr-defined]  # every SELECT has it
    return locked
