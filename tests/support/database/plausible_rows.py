"""Rows for every table of a database of any schema version, generated from its columns and CHECK constraints.

The tables are read from the database, so that none can be missing. Foreign keys refer to existing rows. Values that satisfy
the CHECKs are found by trial, with a fixed seed, so that every run makes the same rows. Each word that a CHECK lists is in
at least one row.
"""

import random
import re
from collections.abc import Container, Mapping
from typing import Any, Final

from peewee import BooleanField, IntegrityError

from schemas.base.timestamps import to_ms
from storage.db.columns import JsonField
from storage.db.engine import database, execute, is_sqlite, rows
from storage.db.models import ALL
from tests.support.factories import NOW

#: The strictest table accepts one random row in 64.
MAX_TRIES: Final = 3000
#: Minimum for each table; a CHECK that lists more words needs more.
MIN_ROWS: Final = 3
#: Tables that hold one row, in which every column has a value.
ONE_ROW_TABLES: Final = {"installation"}

_TICKET: Final = '{"title":"T","description":"","severity":"high","page_url":null,"labels":[],"evidence":{}}'

#: Values of columns that the product parses, by table and column; % is replaced by the row's number.
FORMS: Final[dict[tuple[str, str], str]] = {
    ("alerts", "details"): '{"name":"T","host":"tracker.example","status":"failing","reason":"connect_refused"}',
    ("alerts", "id"): f"alr_01J{'0' * 19}%",
    ("alerts", "kind"): "target",
    ("alert_messages", "channel"): "slack",
    ("approval_rules", "action"): '{"type":"dismiss","reason":"wont_fix"}',
    ("approval_rules", "conditions"): '{"severity_at_least":"high"}',
    ("approval_rules", "stopped_reason"): "target_removed",
    ("approval_rules", "id"): f"rul_01J{'0' * 19}%",
    ("attempts", "outcome"): "retryable",
    ("bulk_jobs", "action"): "dismiss",
    ("bulk_jobs", "errors"): "{}",
    ("bulk_jobs", "id"): f"blk_01J{'0' * 19}%",
    ("bulk_jobs", "options"): "{}",
    ("bulk_jobs", "status"): "done",
    ("compliance_requests", "result"): "redacted",
    ("exports", "dismissal_reason"): "wont_fix",
    ("exports", "events"): '["ticket.fixed"]',
    ("exports", "id"): f"exp_01J{'0' * 19}%",
    ("exports", "original_ticket"): _TICKET,
    ("exports", "severity_rank"): "3",
    ("exports", "siblings"): "[]",
    ("exports", "ticket"): _TICKET,
    ("exports", "preview_problems"): "[]",
    ("exports", "source_type"): "manual",
    ("findings", "id"): f"fnd_01J{'0' * 19}%",
    ("findings", "severity"): "high",
    ("findings", "page_url"): "https://shop%.example/cart?utm_source=x",
    ("finding_sightings", "outcome"): "missed",
    ("inbound_refusals", "problems"): "[]",
    ("inbound_refusals", "source"): "scanner",
    ("projects", "shop_domain"): "Shop%.Example",
    ("projects", "ticket_grouping"): "rule",
    ("recoveries", "id"): f"rec_01J{'0' * 19}%",
    ("targets", "id"): f"tgt_01J{'0' * 19}%",
    ("report_uploads", "error"): "unreadable_report",
    ("report_uploads", "id"): f"rpt_01J{'0' * 19}%",
    ("report_uploads", "left_out"): "[]",
    ("report_uploads", "status"): "done",
    ("report_uploads", "format"): "zap",
    ("ticket_changes", "change"): "fixed",
    ("ticket_events", "attempt_records"): "[]",
    ("ticket_events", "id"): f"evt_01J{'0' * 19}%",
    ("ticket_events", "result"): "commented",
    ("ticket_events", "status"): "delivered",
    ("ticket_events", "type"): "ticket.updated",
    ("targets", "events"): '["ticket.fixed"]',
    ("targets", "base_url"): "https://tracker%.example/hook",
    ("targets", "format"): "ticket",
    ("targets", "provider_key"): "generic_webhook",
    ("targets", "header_fingerprints"): '[{"name":"X-Api-Key","fingerprint":"fp:000000000000"}]',
    ("targets", "provider_settings"): "{}",
    ("targets", "signature"): "service",
    ("targets", "deployment_mode"): "self-hosted",
    ("tokens", "abilities"): '["ticket-exports:read"]',
}

_FIELDS: Final = {
    (str(model._meta.table_name), field.column_name): field for model in ALL for field in model._meta.sorted_fields
}


def tables() -> list[str]:
    """Return the names of the tables to fill."""
    # Triggers write SQLite's text index. Partitions (`attempts_`, `audit_entries_`) contain the rows of their parent table.
    others = ("schema_migrations", "sqlite_", "export_words", "attempts_", "audit_entries_")
    return sorted(name for name in database.get_tables() if not name.startswith(others))


def fill() -> None:
    """Put rows into every table of the open database; tables that foreign keys refer to are filled first."""
    keys = {table: database.get_foreign_keys(table) for table in tables()}
    while keys:
        ready = [name for name, found in keys.items() if not {key.dest_table for key in found} & keys.keys() - {name}]
        assert ready, f"A circle of foreign keys: {[*keys]}"
        for table in ready:
            _Filler(table, keys.pop(table)).fill()


def content(columns: dict[str, list[str]] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table, ordered by primary key. `columns` selects tables and their columns."""
    found = {}
    for table, names in (columns or {table: column_names(table) for table in tables()}).items():
        # A table that is partitioned by month has no primary key.
        key = ", ".join(database.get_primary_keys(table)) or "id"
        stored = rows(f"SELECT {', '.join(names)} FROM {table} ORDER BY {key}")  # noqa: S608 - our own names
        found[table] = [dict(zip(names, map(_plain, row), strict=True)) for row in stored]
    return found


def column_names(table: str) -> list[str]:
    return [column.name for column in database.get_columns(table)]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


class _Filler:
    """Fills one table."""

    def __init__(self, table: str, keys: list[Any]) -> None:
        self._table = table
        self._random = random.Random(table)
        self._checks = _checks(table)
        generated = _auto_increment_columns(table)
        self._columns = [column for column in database.get_columns(table) if column.name not in generated]
        self._parents = {
            key.column: [value for (value,) in rows(f"SELECT {key.dest_column} FROM {key.dest_table} ORDER BY 1")]  # noqa: S608 - our own names
            for key in keys
        }
        self._words = {column.name: words for column in self._columns if (words := self._listed(column.name))}

    def fill(self) -> None:
        count = max([MIN_ROWS, *map(len, self._words.values())])
        for n in range(1, count + 1):
            # Each row has the next word of the longest list.
            fixed = {name: words[n - 1] for name, words in self._words.items() if len(words) == count}
            # Tables that hold only one row reject the second.
            assert self._make(n, fixed) or n > 1, f"No row of {self._table} could be made."
        for n, name in enumerate(self._empty(), count + 1):
            assert self._make(n, {name: None}), f"No row of {self._table} with a {name} could be made."

    def _empty(self) -> list[str]:
        """Return the columns that are NULL in every row so far."""
        names = [column.name for column in self._columns]
        [counts] = rows(f"SELECT {', '.join(f'COUNT({name})' for name in names)} FROM {self._table}")  # noqa: S608 - our own names
        return [name for name, values in zip(names, counts, strict=True) if values == 0]

    def _make(self, n: int, fixed: Mapping[str, str | None]) -> bool:
        """Insert random rows until the database accepts one. Return False if it accepts none.

        A column in `fixed` has the value there; if that is None, it has any value except NULL.
        """
        names = [column.name for column in self._columns]
        places = ", ".join("?" * len(names))
        insert = f"INSERT INTO {self._table} ({', '.join(names)}) VALUES ({places})"  # noqa: S608 - our own names
        for _ in range(MAX_TRIES if n == 1 or self._checks else 1):
            try:
                execute(insert, [fixed.get(column.name) or self._value(column, n, fixed) for column in self._columns])
            except IntegrityError:
                continue
            return True
        return False

    def _value(self, column: Any, n: int, fixed: Container[str]) -> Any:
        may_be_empty = column.null and column.name not in fixed and self._table not in ONE_ROW_TABLES
        if may_be_empty and self._random.random() < 0.5:
            return None
        if column.name in self._parents:
            return self._parents[column.name][(n - 1) % len(self._parents[column.name])]
        if column.name in self._words:
            return self._random.choice(self._words[column.name])
        return self._made_up(column, n)

    def _made_up(self, column: Any, n: int) -> Any:
        place = (self._table, column.name)
        field, kind = _FIELDS.get(place), column.data_type.lower()
        if place in FORMS:
            return FORMS[place].replace("%", f"{n:04}")
        if isinstance(field, JsonField):
            return f'{{"n":{n}}}'
        if isinstance(field, BooleanField) or kind == "boolean":
            return bool(n % 2)
        if kind in {"blob", "bytea"}:
            return f"{column.name}-{n}".encode()
        if kind == "bigint" and not column.primary_key:
            return to_ms(NOW) - n
        if kind in {"integer", "bigint"}:
            return n
        return n + 0.5 if kind.startswith("double") else f"{column.name}-{n:020}"

    def _listed(self, column: str) -> list[str]:
        """Return the words that the CHECKs allow in a column."""
        literal = r"'([^']*)'(?:::text)?"
        before = rf"\b{column}\)?(?:::text)?\s*(?:=|IN)\s*(?:ANY\s*)?\(*\s*(?:ARRAY\[)?"
        lists = re.findall(rf"{before}((?:{literal},?\s*)+)", self._checks)
        return sorted({word for found in lists for word in re.findall(literal, found[0])})


def _checks(table: str) -> str:
    """Return the text of a table's CHECK constraints."""
    if is_sqlite():
        [(made,)] = rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        return "\n".join(re.findall(r"CHECK.*", made, re.DOTALL))
    found = rows(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' AND conrelid = ?::regclass", (table,)
    )
    return "\n".join(check for (check,) in found)


def _auto_increment_columns(table: str) -> set[str]:
    """Return the columns that the database numbers automatically."""
    if not is_sqlite():
        return {column.name for column in database.get_columns(table) if str(column.default).startswith("nextval")}
    [(made,)] = rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    return {*re.findall(r"(\w+) INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", made)}
