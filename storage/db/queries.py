"""Peewee queries: rows as tuples or scalars, and the row locks of PostgreSQL."""

from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final, TypeVar

from peewee import Expression, Field, Query

from storage.db.drivers.shared import Row
from storage.db.engine import is_sqlite

#: For `str.translate`: lowers the case of ASCII letters only, as SQLite does.
ASCII_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)

Selected = TypeVar("Selected", bound=Query)


def tuples(query: Query) -> list[Row]:
    """Return the rows as tuples in the order of the query's columns."""
    return list(query.tuples())


def scalars(query: Query) -> list[Any]:
    """Return the values of the first column."""
    return [row[0] for row in query.tuples()]


def where_given(query: Any, *pairs: tuple[Field, Any]) -> Any:
    """Restrict a SELECT to rows with these values of columns; None as a value restricts nothing."""
    for column, wanted in pairs:
        if wanted is not None:
            query = query.where(column == wanted)
    return query


def in_query(column: Any, query: Query) -> Expression:
    """Return the condition that a column has one of the values that a query returns.

    For its own IN, peewee builds the text of the query twice, the first time to see whether it is empty.
    """
    return Expression(column, "IN ", query)


def newest_first(query: Any, key: Field, limit: int | None = None, before: str | int | None = None) -> Any:
    """Return up to `limit` rows of a SELECT, the greatest `key` first; with `before`, only rows with a lesser key."""
    query = query.order_by(key.desc()).limit(limit)
    return query if before is None else query.where(key < before)


def for_update(query: Selected, lock: str = "FOR UPDATE") -> Selected:
    """Make a SELECT lock its rows until the transaction ends; on SQLite a transaction is the only writer anyway."""
    if is_sqlite():
        return query
    locked: Selected = query.for_update(lock)  # type: ignore[attr-defined]  # every SELECT has it
    return locked
