"""Records the SQL statements that code runs, and reads their query plans."""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from storage.db.engine import database, is_sqlite, rows, transaction
from tests.support.fakes import Rollback

#: Tables that grow with every delivery.
GROWING: Final = frozenset({"exports", "attempts", "audit_entries"})
#: The first column of indexes that are scanned completely unless a condition is on this column.
FIRST_COLUMNS: Final = {"exports_waiting": "target_id", "exports_recoverable": "target_id"}
_SQLITE_INDEXES: Final = "SELECT name, name FROM sqlite_master WHERE type = 'index'"
_INDEXES: Final = """
    SELECT i.relname, coalesce(whole.relname, i.relname) FROM pg_class i
    LEFT JOIN pg_inherits ON inhrelid = i.oid LEFT JOIN pg_class whole ON whole.oid = inhparent WHERE i.relkind = 'i'"""
#: The suffix of a partition's name. The default partition does not match; it is empty, and PostgreSQL may scan it.
_MONTH: Final = re.compile(r"_(first|\d{4}_\d\d)$")
#: A name in quotes, as Peewee writes it.
_QUOTED: Final = re.compile(r'"(\w+)"')
#: A table in a statement, and its alias if it has one.
_NAMED: Final = re.compile(r'(?:FROM|JOIN|UPDATE|INTO)\s+"?(\w+)"?(?:\s+(?:AS\s+)?"?(\w+)"?)?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """A statement as the driver received it, without the quotes that Peewee puts around names."""

    sql: str
    parameters: Sequence[Any]


class _StatementRecorder(logging.Handler):
    """Collects the statements that Peewee logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.received: list[SqlStatement] = []

    def emit(self, record: logging.LogRecord) -> None:
        reported: Any = record.msg
        if isinstance(reported, tuple):
            self.received.append(SqlStatement(_QUOTED.sub(r"\1", reported[0]), reported[1] or ()))


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back the writes of the block, so that it can be measured again."""
    with suppress(Rollback), transaction():
        yield
        raise Rollback


@contextmanager
def statements() -> Iterator[list[SqlStatement]]:
    """Collect the statements that run in the block, except those that begin and end transactions."""
    logger, recorder = logging.getLogger("peewee"), _StatementRecorder()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    found: list[SqlStatement] = []
    try:
        yield found
    finally:
        logger.removeHandler(recorder)
        logger.setLevel(level)
        logger.propagate = propagates
        found += [each for each in recorder.received if re.match(r"[\s(]*(SELECT|WITH|UPDATE|INSERT|DELETE)\b", each.sql)]


def plan_of(statement: SqlStatement) -> list[str]:
    """Return the steps of a statement's plan, one line each."""
    if is_sqlite():
        cursor = database.execute_sql(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters)
        return [str(row[3]) for row in cursor.fetchall()]
    cursor = database.execute_sql(f"EXPLAIN {statement.sql}", statement.parameters)
    return [str(row[0]) for row in cursor.fetchall()]


def full_scans(statement: SqlStatement, growing: Collection[str] = GROWING) -> list[str]:
    """Return the plan's steps that scan a complete growing table, or a complete index of one."""
    if is_sqlite():
        return _scans_of_sqlite(statement, growing)
    cursor = database.execute_sql(f"EXPLAIN (FORMAT JSON) {statement.sql}", statement.parameters)
    return list(_scans_of_postgresql(cursor.fetchone()[0][0]["Plan"], growing))


def indexes_read(statement: SqlStatement) -> set[str]:
    """Return the names of the indexes that a statement's plan reads. A partition's index counts as its parent's index."""
    plan = " ".join(plan_of(statement))
    return {whole for name, whole in rows(_SQLITE_INDEXES if is_sqlite() else _INDEXES) if re.search(rf"\b{name}\b", plan)}


def _scans_of_sqlite(statement: SqlStatement, growing: Collection[str]) -> list[str]:
    tables = {alias or table: table for table, alias in _NAMED.findall(statement.sql)}
    tables |= {table: table for table in growing}
    # "(ANY(" is a skip-scan: the condition is not on the index's first column, and each of its values is a step.
    scans = [step for step in plan_of(statement) if step.startswith("SCAN ") or "(ANY(" in step]
    return [step for step in scans if tables.get(step.split()[1]) in growing]


def _scans_of_postgresql(node: Mapping[str, Any], growing: Collection[str]) -> Iterator[str]:
    if _reads_growing_table(node, growing) and not _is_bounded(node):
        yield f"{node['Node Type']} of {node.get('Relation Name', '')} {node.get('Index Name', '')}".strip()
    for child in node.get("Plans", ()):
        yield from _scans_of_postgresql(child, growing)


def _reads_growing_table(node: Mapping[str, Any], growing: Collection[str]) -> bool:
    """Return whether a step reads a growing table.

    Every "Bitmap Index Scan" counts, because only its parent step, the "Bitmap Heap Scan", names the table.
    """
    if node["Node Type"] == "Bitmap Heap Scan":
        return False
    name = node.get("Relation Name", "")
    is_scan = "Scan" in node["Node Type"] and _MONTH.sub("", name) in growing
    # A scan of an empty partition does not count: PostgreSQL rightly scans partitions of future months completely.
    return node["Node Type"] == "Bitmap Index Scan" or (is_scan and not (_MONTH.search(name) and _is_empty(name)))


def _is_empty(table: str) -> bool:
    return not rows(f"SELECT EXISTS (SELECT 1 FROM {table})")[0][0]  # noqa: S608 - a table name from the database


def _is_bounded(node: Mapping[str, Any]) -> bool:
    """Return whether a step searches an index: its condition must be on the column that the index is sorted by."""
    condition = str(node.get("Index Cond", ""))
    first = FIRST_COLUMNS.get(node.get("Index Name", ""))
    return bool(condition) and (first is None or re.search(rf"\b{first}\b", condition) is not None)
