"""The erasure log: the rows that compliance requests erased or emptied, identified only by their ids.

An entry is written in the transaction of the erasure and is never deleted: by it, a row that an old backup brings back is
erased again. Row ids are our own and identify nobody. Handoffs, tickets and attempts are erased again with the logged rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.timestamps import from_ms
from storage.db.columns import read
from storage.db.models import RedactionRow
from storage.db.queries import tuples

#: Stands in place of a table's name for a stored response whose client's key was erased as well.
CLIENT_KEYS: Final = "idempotency_keys.key"

#: How many rows are read at once.
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class ErasedRow:
    """A row that a request erased or emptied."""

    request_id: str
    table: str
    row_id: str
    erased_at_ms: int


def add(request_id: str, table: str, row_ids: Sequence[str | int], now: datetime) -> None:
    """Log the rows that a request erases or empties, in one statement and in the transaction of the erasure."""
    if row_ids:
        RedactionRow.insert_many(
            [
                {"request_id": request_id, "table_name": table, "row_id": str(row_id), "redacted_at": now}
                for row_id in row_ids
            ]
        ).execute()


def pages() -> Iterator[list[ErasedRow]]:
    """Read the whole log page by page, the oldest entry first."""
    after = 0
    while page := tuples(_entries(RedactionRow.id).where(RedactionRow.id > after).order_by(RedactionRow.id).limit(_PAGE)):
        after = page[-1][-1]
        yield [ErasedRow(*entry) for *entry, _ in page]


def missing(entries: Sequence[ErasedRow]) -> list[ErasedRow]:
    """Return the entries of another log that this log does not have."""
    moments = [from_ms(at_ms) for at_ms in sorted({entry.erased_at_ms for entry in entries})]
    here = {*read(ErasedRow, _entries().where(RedactionRow.redacted_at.in_(moments)))}
    return [entry for entry in entries if entry not in here]


def _entries(*further: Any) -> Any:
    row = RedactionRow
    return row.select(row.request_id, row.table_name, row.row_id, row.redacted_at.coerce(False), *further)
