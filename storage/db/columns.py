"""Column types that mean the same on both databases, and column lists that are derived from the models.

Types: timestamps are integer milliseconds, JSON and enumerations are text. Lists: a shape is a dataclass or named tuple
whose fields have the names of columns. `columns` selects them with Peewee and `read` builds the records; `select_list`
writes them into hand-written SQL, and the shape reads its rows. A field without a column raises an error at import.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from peewee import BigIntegerField, Field, ForeignKeyField, Model, TextField

from schemas.base.errors import NotFound
from schemas.base.timestamps import from_ms
from storage.db import identifiers
from storage.db.drivers.shared import Row

#: The greatest possible ULID: after a prefix and an underscore, it sorts behind every identifier in any collation.
LAST_ULID: Final = f"7{'Z' * 25}"

#: PostgreSQL's names for Peewee's field types.
_SQL_TYPES: Final = {
    "AUTO": "INTEGER",
    "BIGAUTO": "BIGINT",
    "BIGINT": "BIGINT",
    "BLOB": "BYTEA",
    "BOOL": "BOOLEAN",
    "DOUBLE": "DOUBLE PRECISION",
    "INT": "INTEGER",
    "TEXT": "TEXT",
}
_EPOCH: Final = from_ms(0)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: json.dumps would build a new encoder for every value.
_compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Record = TypeVar("Record")


class TimestampField(BigIntegerField):
    """A timestamp in whole milliseconds since 1970: exact on both databases, comparable in SQL, readable by any client.

    `unit` is another unit than the millisecond.
    """

    def __init__(self, unit: timedelta = _MILLISECOND, **options: Any) -> None:
        super().__init__(**options)
        self._unit = unit

    def db_value(self, value: datetime | int | None) -> int | None:
        return (value - _EPOCH) // self._unit if isinstance(value, datetime) else value

    def python_value(self, value: int | None) -> datetime | None:
        return None if value is None else _EPOCH + value * self._unit


class JsonField(TextField):
    """A JSON value as text: stored and read back unchanged, and the same on both databases.

    `read` converts the parsed value to a record.
    """

    def __init__(self, read: Callable[[Any], Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._read = read

    def db_value(self, value: Any) -> str | None:
        return None if value is None else self.text(value)

    @staticmethod
    def text(value: Any) -> str:
        """Return a value as the JSON text that is stored."""
        return _compact(value)

    def python_value(self, value: str | None) -> Any:
        if value is None:
            return None
        return json.loads(value) if self._read is None else self._read(json.loads(value))


class EnumField(TextField):
    """A member of an enumeration of text, stored as its value."""

    def __init__(self, members: type[Enum], **options: Any) -> None:
        super().__init__(**options)
        self._members = members

    def python_value(self, value: str | None) -> Enum | None:
        return None if value is None else self._members(value)


#: The fields whose Python values differ from those that the drivers return.
_CONVERTED: Final = (TimestampField, JsonField, EnumField)


@cache
def field_names(shape: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or named tuple, in order."""
    return tuple(field.name for field in fields(shape)) if is_dataclass(shape) else shape._fields


def columns(shape: type, model: Any, **others: Any) -> list[Any]:
    """Return what a query selects for the fields of `shape`, in order: columns of `model` or of its alias, and `others`."""
    return [others[name] if name in others else getattr(model, _column(model, name).name) for name in field_names(shape)]


def read(shape: Callable[..., Record], query: Any) -> list[Record]:
    """Run a query of `columns` and return its rows as records of `shape`."""
    return [shape(*row) for row in query.tuples()]


def read_first(shape: Callable[..., Record], query: Any) -> Record | None:
    """Run a query of `columns` and return its first row as a record of `shape`; None if it finds no row."""
    return next(iter(read(shape, query.limit(1))), None)


def get_by_id(shape: Callable[..., Record], query: Any, prefix: str, row_id: str, missing: str) -> Record:
    """Run a query of `columns` for the row with an id and return its record. Raises NotFound with the text `missing`.

    If `row_id` does not have the form of an id with this prefix, no query runs.
    """
    found = read_first(shape, query) if identifiers.is_id(prefix, row_id) else None
    if found is None:
        raise NotFound(missing)
    return found


def record_of(shape: Callable[..., Record], row: Any, **others: Any) -> Record:
    """Return a record of `shape`: each field is taken from `others`, or from the attribute of the row with the same name."""
    return shape(**{name: getattr(row, name) for name in field_names(shape) if name not in others}, **others)


def reader(shape: Callable[..., Record], model: type[Model], **others: Any) -> Callable[[Row], Record]:
    """Return a function from a row of `select_list` to a record of `shape`; it converts JSON, timestamps and enumerations.

    `others` are columns of `model` for fields with other names.
    """
    fields_of_model = [others.get(name) or _column(model, name) for name in field_names(shape)]
    converted = [(at, field) for at, field in enumerate(fields_of_model) if isinstance(field, _CONVERTED)]

    def read_row(row: Row) -> Record:
        values = list(row)
        for at, field in converted:
            values[at] = field.python_value(values[at])
        return shape(*values)

    return read_row


def values_of(model: type[Model], record: Any, **others: Any) -> dict[str, Any]:
    """Return the values of a new row of `model`: the fields of a record that are columns, and `others`."""
    known = model._meta.columns
    return {name: getattr(record, name) for name in field_names(record.__class__) if name in known} | others


def select_list(shape: type, tables: Mapping[str, type[Model]], **others: str) -> str:
    """Return the select list of hand-written SQL for the fields of `shape`, in order.

    `tables` maps aliases in the statement to models: the first model that has a column provides it. `others` are expressions
    for fields without a column.
    """
    return ", ".join(others.get(name) or _qualified_name(name, tables) for name in field_names(shape))


def column_types(model: type[Model], names: Iterable[str]) -> list[str]:
    """Return the SQL types of columns of `model`."""
    return [_sql_type(_column(model, name)) for name in names]


def _qualified_name(name: str, tables: Mapping[str, type[Model]]) -> str:
    for alias, model in tables.items():
        if name in model._meta.columns:
            return f"{alias}.{name}"
    raise ValueError(f"No column is called {name}")


def _column(model: Any, name: str) -> Field:
    known: Mapping[str, Field] = model._meta.columns
    return known[name]


def _sql_type(field: Field) -> str:
    return _sql_type(field.rel_field) if isinstance(field, ForeignKeyField) else _SQL_TYPES[field.field_type]
