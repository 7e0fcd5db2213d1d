"""The statements of the audit log: every tick of a dispatcher appends an entry for each export that it changed.

A worker chains the entries afterwards, so that no writer waits for the entry before its own.
"""

from collections.abc import Sequence
from typing import Final

from schemas.audit.chain import GENESIS, Anchor, ChainEntry
from storage.db.bulk_sql import execute_over
from storage.db.columns import column_types, select_list
from storage.db.engine import Row, rows
from storage.db.models import AuditEntryRow

_APPEND: Final = """
WITH r (subject_id, digest) AS ({rows})
INSERT INTO audit_entries (subject_id, digest, at, actor, action, status_before, status_after, reason)
SELECT subject_id, digest, ?, ?, ?, ?, ?, ? FROM r"""
_OWN: Final = column_types(AuditEntryRow, ("subject_id", "digest"))

#: A ChainEntry.
_COLUMNS: Final = select_list(ChainEntry, {"e": AuditEntryRow})
# By the position, too, although it is NULL: by the id alone PostgreSQL may go through all entries in search of one.
_UNCHAINED: Final = f"""
SELECT {_COLUMNS} FROM audit_entries e WHERE e.position IS NULL ORDER BY e.position, e.id LIMIT ?"""  # noqa: S608 - our own names
_HEAD: Final = "SELECT position, hash FROM audit_entries WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1"
# By the time, too: PostgreSQL looks in the partition of that month alone.
_CHAIN: Final = """
WITH r (id, at, position, hash) AS ({rows})
UPDATE audit_entries SET position = r.position, hash = r.hash
FROM r WHERE audit_entries.id = r.id AND audit_entries.at = r.at AND audit_entries.position IS NULL"""
_PLACES: Final = column_types(AuditEntryRow, ("id", "at", "position", "hash"))
# By position and id, so that a second entry of one position is not passed over.
_PAGE: Final = f"""
SELECT e.position, e.hash, {_COLUMNS} FROM audit_entries e
WHERE (e.position, e.id) > (?, ?) ORDER BY e.position, e.id LIMIT ?"""  # noqa: S608 - our own names
_OF_SUBJECT: Final = f"""
SELECT e.position, e.hash, b.hash, {_COLUMNS}
FROM audit_entries e LEFT JOIN audit_entries b ON b.position = e.position - 1
WHERE e.subject_id = ? ORDER BY e.position, e.id"""  # noqa: S608 - our own names


def append_alike(own: Sequence[tuple[str, bytes | None]], columns: Sequence[int | str | None]) -> None:
    """Insert an entry for each subject and digest.

    `columns` are at_ms, actor, action, status_before, status_after and reason.
    """
    execute_over(_APPEND, _OWN, own, columns)


def head() -> Anchor:
    """Return the last entry of the chain; at position 0 before the first."""
    found = rows(_HEAD)
    return Anchor(found[0][0], bytes(found[0][1]).hex()) if found else Anchor(0, GENESIS)


def unchained(limit: int) -> list[ChainEntry]:
    """Return up to `limit` entries that are not in the chain yet, by their ids."""
    return [ChainEntry._make(row) for row in rows(_UNCHAINED, (limit,))]


def write_places(places: Sequence[tuple[int, int, int, bytes]]) -> None:
    """Store the position and the hash of entries by their ids and times; an entry that has them keeps them."""
    execute_over(_CHAIN, _PLACES, places)


def page_after(position: int, entry_id: int, limit: int) -> list[Row]:
    """Return up to `limit` entries of the chain after one: position, hash, and the columns of a ChainEntry."""
    return rows(_PAGE, (position, entry_id, limit))


def of_subject(subject_id: str) -> list[Row]:
    """Return the entries about a record: position, hash, the hash of the entry before, and the columns of a ChainEntry."""
    return rows(_OF_SUBJECT, (subject_id,))
