"""The journal of redactions: which rows compliance requests erased or emptied, by their ids alone.

It is written in the transaction of the erasure and is never pruned: what an old backup brings back is erased again by it.
Row ids are our own and say nothing of anybody; what handoffs, tickets or attempts lose goes with the rows that are named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.timestamps import to_ms
from storage.db.engine import execute, rows, values_list

#: Stands for a table: a stored answer whose client's key was forgotten as well.
KEYS: Final = "idempotency_keys.key"

#: Rows that are read at once.
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Redacted:
    """A row that a request erased or emptied."""

    request_id: str
    table: str
    row_id: str
    redacted_at_ms: int


def note(request_id: str, table: str, row_ids: Sequence[str | int], now: datetime) -> None:
    """Write what a request erases or empties, in one statement and in the transaction of the erasure."""
    if not row_ids:
        return
    at = to_ms(now)
    parameters = [value for row_id in row_ids for value in (request_id, table, str(row_id), at)]
    execute(
        f"INSERT INTO redactions (request_id, table_name, row_id, redacted_at) VALUES {values_list(4, len(row_ids))}",  # noqa: S608 - our own names
        parameters,
    )


def pages() -> Iterator[list[Redacted]]:
    """Read the whole journal, the oldest first, page by page."""
    after = 0
    statement = "SELECT id, request_id, table_name, row_id, redacted_at FROM redactions WHERE id > ? ORDER BY id LIMIT ?"
    while page := rows(statement, (after, _PAGE)):
        after = page[-1][0]
        yield [Redacted(*row[1:]) for row in page]


def missing(lines: Sequence[Redacted]) -> list[Redacted]:
    """Return which of these lines of another journal this one has not."""
    moments = sorted({line.redacted_at_ms for line in lines})
    if not moments:
        return []
    known = rows(
        "SELECT request_id, table_name, row_id, redacted_at FROM redactions "  # noqa: S608 - our own names
        f"WHERE redacted_at IN {values_list(len(moments), 1)}",
        moments,
    )
    here = {Redacted(*row) for row in known}
    return [line for line in lines if line not in here]
