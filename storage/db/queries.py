"""Typed results of Peewee queries, and the row locks of PostgreSQL."""

from collections.abc import Callable
from typing import TypeVar

from peewee import Query

from storage.db.engine import Row, is_sqlite

Record = TypeVar("Record")
Selected = TypeVar("Selected", bound=Query)


def records(query: Query, kind: Callable[..., Record]) -> list[Record]:
    """Return a record for each row; the query's columns or their aliases are named like the record's fields."""
    return [kind(**row) for row in query.dicts()]


def first_record(query: Query, kind: Callable[..., Record]) -> Record | None:
    """Return the record of the first row; None if there is no row."""
    found = records(query, kind)
    return found[0] if found else None


def tuples(query: Query) -> list[Row]:
    """Return the rows as tuples in the order of the query's columns."""
    return list(query.tuples())


def for_update(query: Selected, lock: str = "FOR UPDATE") -> Selected:
    """Let a SELECT lock its rows until the transaction ends; on SQLite a transaction is the only writer anyway."""
    if is_sqlite():
        return query
    locked: Selected = query.for_update(lock)  # type: ignore[attr-defined]  # every SELECT has it
    return locked
