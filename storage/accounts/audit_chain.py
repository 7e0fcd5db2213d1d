"""The hash chain of the audit log: appends new entries to it, and reads it.

Entries are written without a position, so their writers neither wait for each other nor read the end of the chain. One
process at a time, which holds Lock.AUDIT, chains them in the order of their ids. An entry that commits later than one with a
higher id gets a later position.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from schemas.audit.chain import Anchor, BrokenChain, ChainEntry, ChainVerification, line_of
from storage.accounts import audit_log_sql
from storage.db import locks
from storage.db.engine import transaction
from storage.db.locks import Lock
from storage.db.models import AuditEntryRow

#: How many entries one transaction chains: some 10 ms of SQLite's one writer.
BATCH: Final = 500
#: How many entries are read at once.
_PAGE: Final = 1_000
#: Less than every position, even than positions that no valid entry can have.
_BEFORE_ALL: Final = -(2**63)


def extend(limit: int = BATCH) -> int:
    """Chain up to `limit` entries that are not chained yet; return how many. The caller holds Lock.AUDIT."""
    with transaction():
        entries, chained = audit_log_sql.unchained(limit), []
        position, previous = audit_log_sql.head()
        for entry in entries:
            position += 1
            previous = line_of(entry, position, previous)["hash"]
            chained.append((entry.id, entry.at, position, bytes.fromhex(previous)))
        audit_log_sql.write_positions(chained)
    return len(entries)


def extend_to_end() -> int:
    """Chain all entries, unless another process is doing so; return how many are not chained yet."""
    with suppress(locks.LockBusy), locks.exclusive(Lock.AUDIT):
        while extend() == BATCH:
            pass
    return count_unchained()


def has_unchained() -> bool:
    """Return whether any entry is not chained yet."""
    return bool(audit_log_sql.unchained(1))


def count_unchained() -> int:
    """Return how many entries are not chained yet."""
    return int(AuditEntryRow.select().where(AuditEntryRow.position.is_null()).count())


def head() -> Anchor:
    """Return the last entry of the chain, or position 0 if the chain is empty."""
    return audit_log_sql.head()


def lines(verification: ChainVerification) -> Iterator[dict[str, Any]]:
    """Yield the stored chain line by line, and verify it. Raises BrokenChain."""
    last = (_BEFORE_ALL, _BEFORE_ALL)
    while page := audit_log_sql.page_after(*last, _PAGE):
        for position, stored_hash, *columns in page:
            line = _line(position, stored_hash, columns, verification.before(position).hash)
            verification.add(line)
            yield line
        last = (page[-1][0], page[-1][2])
    verification.finish()


def _line(position: Any, stored_hash: Any, columns: list[Any], previous: str) -> dict[str, Any]:
    try:
        return {**line_of(ChainEntry._make(columns), position, previous), "hash": bytes(stored_hash).hex()}
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise BrokenChain(f"Position {position}: a column holds what no entry can.") from None
