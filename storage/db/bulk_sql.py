"""Statements over many rows at once: the results of a tick, its claims, its audit entries.

A statement has `{rows}` in place of its rows, as in `WITH r (id, lease) AS ({rows}) UPDATE …`. Any number of rows needs few
different texts: if each number of rows had a VALUES list of its own, the database would parse and plan nearly every
statement anew. PostgreSQL gets an array for each column, SQLite gets lists of a few lengths. Without rows, no statement
runs.

Measured for an attempt's row of 17 values: 30 µs instead of 100 on PostgreSQL, driver and server together, and 7 instead of
12 on SQLite.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from peewee import Model

from storage.db.columns import column_types
from storage.db.engine import execute, is_sqlite, rows, values_list

#: The longest list for SQLite. To look up 256 rows, SQLite builds a Bloom filter of the other table and reads all of it: 90
#: ms with a million rows, instead of 0.3. Shorter lists have a half, a quarter and so on of this length, so that any number
#: of rows needs few statements. All of them together fit into the 128 that a connection caches.
_LONGEST: Final = 64
#: There are a few dozen statements, each with up to seven lengths of its list.
_MAX_STATEMENTS: Final = 256

Rows = Sequence[Sequence[Any]]


def insert_records(model: type[Model], records: Sequence[Mapping[str, Any]]) -> None:
    """Insert records, which map columns of `model` to stored values; all have the same columns in the same order."""
    if records:
        sql, types = _insert(model, tuple(records[0]))
        execute_over(sql, types, [tuple(record.values()) for record in records])


def insert_together(*tables: tuple[type[Model], Sequence[Mapping[str, Any]]]) -> None:
    """Insert records of different tables as `insert_records` does, in one statement on PostgreSQL: one round trip."""
    filled = [(model, records) for model, records in tables if records]
    if is_sqlite() or len(filled) < len(tables):
        for model, records in filled:
            insert_records(model, records)
        return
    texts, parameters = [], []
    for model, records in filled:
        sql, types = _insert(model, tuple(records[0]))
        [(text, arrays)] = _parts(sql, tuple(types), [tuple(record.values()) for record in records], ())
        texts.append(text)
        parameters += arrays
    execute(_as_one(tuple(texts)), parameters)


def lock_row(model: type[Model], row_id: str | int) -> None:
    """On PostgreSQL, keep others from changing a row until the transaction ends; SQLite has one writer."""
    if not is_sqlite():
        rows(f"SELECT 1 FROM {model._meta.table_name} WHERE id = ? FOR UPDATE", (row_id,))  # noqa: S608 - our own name


def execute_over(sql: str, types: Sequence[str], values: Rows, parameters: Sequence[Any] = ()) -> None:
    """Run a statement over rows whose columns have the SQL `types`; `parameters` are for each `?` after the rows.

    Returns no row count: Python's SQLite driver does not count the rows of a statement that begins with WITH.
    """
    for part in _parts(sql, tuple(types), values, parameters):
        execute(*part)


def rows_over(sql: str, types: Sequence[str], values: Rows, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement as `execute_over` does and return its rows."""
    return [row for part in _parts(sql, tuple(types), values, parameters) for row in rows(*part)]


@lru_cache(maxsize=_MAX_STATEMENTS)
def _insert(model: type[Model], names: tuple[str, ...]) -> tuple[str, list[str]]:
    return f"INSERT INTO {model._meta.table_name} ({', '.join(names)}) {{rows}}", column_types(model, names)


@lru_cache(maxsize=_MAX_STATEMENTS)
def _as_one(statements: tuple[str, ...]) -> str:
    """Return one statement that runs all of them; PostgreSQL checks their foreign keys at its end."""
    first = ", ".join(f"part{number} AS ({text})" for number, text in enumerate(statements[:-1]))
    return f"WITH {first} {statements[-1]}"


def _parts(sql: str, types: tuple[str, ...], values: Rows, parameters: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the statements to run, each with its parameters: one on PostgreSQL, a few on SQLite."""
    if not values:
        return
    if not is_sqlite():
        yield _with_arrays(sql, types), [*map(_array, zip(*values, strict=True)), *parameters]
        return
    first = 0
    while first < len(values):
        count = min(_LONGEST, 1 << ((len(values) - first).bit_length() - 1))
        chunk = values[first : first + count]
        yield _with_values(sql, len(types), count), [*chain.from_iterable(chunk), *parameters]
        first += count


@lru_cache(maxsize=_MAX_STATEMENTS)
def _with_values(sql: str, columns: int, count: int) -> str:
    return sql.format(rows=f"VALUES {values_list(columns, count)}")


@lru_cache(maxsize=_MAX_STATEMENTS)
def _with_arrays(sql: str, types: tuple[str, ...]) -> str:
    return sql.format(rows=f"SELECT * FROM unnest({', '.join(f'CAST(? AS {name}[])' for name in types)})")  # noqa: S608 - our own types


def _array(column: Sequence[Any]) -> str:
    """Return PostgreSQL's text of an array; the driver's own conversion takes three times as long."""
    return f"{{{','.join(map(_element, column))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"'
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, int | float):
        return str(value)
    raise TypeError(f"An array cannot hold {type(value).__name__}.")
