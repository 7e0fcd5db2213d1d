"""Partitions by month of attempts and audit entries on PostgreSQL: creates those of the next months, drops empty ones.

A row that fits no month is stored in the default partition, where queries find it too: no write waits for this module or
fails without it. SQLite has no partitions. The statements lock both tables for milliseconds. If they do not get the lock
within a tenth of a second, they fail, and the next run tries again.
"""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Final

from peewee import DatabaseError

from schemas.base.timestamps import to_ms
from storage.db import identifiers
from storage.db.engine import execute, is_sqlite, rows, transaction

#: How many months ahead partitions are created: workers may be stopped for as long.
MONTHS_AHEAD: Final = 3
#: Deliveries wait meanwhile. A second for the statement, because a query reads all pages of a partition that was just
#: emptied, until PostgreSQL has vacuumed it.
_LIMITS: Final = ("SET LOCAL lock_timeout = '100ms'", "SET LOCAL statement_timeout = '1s'")

_PARTITIONS: Final = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(?) ORDER BY 1"""
# The tables that a tick locks, in the same order: otherwise these statements and a tick could deadlock.
_LOCKS: Final = ("LOCK TABLE exports IN SHARE ROW EXCLUSIVE MODE", "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
_CREATE: Final = "CREATE TABLE {name} PARTITION OF {table} (PRIMARY KEY (id)) FOR VALUES FROM ('{first}') TO ('{end}')"
#: PostgreSQL's text of the bounds of a partition; the default partition has `DEFAULT` instead.
_RANGE: Final = re.compile(r"\('?(.*?)'?\) TO \('?(.*?)'?\)")
#: The lower bound of the first partition.
_NO_BOUND: Final = "MINVALUE"
_HAS_ROWS: Final = "SELECT EXISTS (SELECT 1 FROM {name})"
_DROP: Final = "DROP TABLE {name}"

_log: Final = logging.getLogger(__name__)


#: The tables with a partition for each month, and the function for the text of a bound. The texts of one table sort by time.
BY_MONTH: Final[dict[str, Callable[[datetime], str]]] = {
    "attempts": partial(identifiers.first_id, identifiers.EXPORT),
    "audit_entries": lambda moment: str(to_ms(moment)),
}


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table: the first value of its range and the first behind it; the default partition has no range."""

    name: str
    first: str = ""
    end: str = ""


def maintain(now: datetime, over: datetime) -> None:
    """Create the partitions of the months after `now`; drop partitions of attempts that are empty and end before `over`.

    The caller holds a connection and Lock.PRUNE. If the database refuses a statement, it is logged, and the next run tries
    again.
    """
    if is_sqlite():
        return
    for table, bound in BY_MONTH.items():
        ranges = partitions(table)
        for month, next_month in _months_after(now):
            if not any(each.first <= bound(month) < each.end for each in ranges):
                name = f"{table}_{month:%Y_%m}"
                _run(table, _CREATE.format(name=name, table=table, first=bound(month), end=bound(next_month)))
    for each in partitions("attempts"):
        if each.end and each.end <= BY_MONTH["attempts"](over) and not _has_rows(each.name):
            _run("attempts", _DROP.format(name=each.name), empty=each.name)


def partitions(table: str) -> list[Partition]:
    """Return the partitions of a table; none on SQLite."""
    return [] if is_sqlite() else [_partition(*row) for row in rows(_PARTITIONS, (table,))]


def _partition(name: str, bounds: str) -> Partition:
    found = _RANGE.search(bounds)
    return Partition(name, found[1].replace(_NO_BOUND, ""), found[2]) if found else Partition(name)


def _months_after(now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start of the present month and of the months ahead, each with the start of the following month."""
    months = [now.year * 12 + now.month - 1 + ahead for ahead in range(MONTHS_AHEAD + 2)]
    firsts = [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in months]
    yield from pairwise(firsts)


def _run(table: str, statement: str, empty: str | None = None) -> None:
    """Run a statement under locks. If it drops a partition, run it only if the partition `empty` is still empty."""
    try:
        with transaction():
            for each in (*_LIMITS, *_LOCKS):
                execute(each.format(table=table))
            if empty is None or not _has_rows(empty):
                execute(statement)
    except DatabaseError as refused:
        reason = str(refused).strip().partition("\n")[0]
        _log.warning("partition not changed: %s", table, extra={"reason": reason})


def _has_rows(name: str) -> bool:
    return bool(rows(_HAS_ROWS.format(name=name))[0][0])
