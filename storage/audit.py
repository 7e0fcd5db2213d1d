"""The append-only ledger: who did what to which record, and from which status to which."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.times import to_ms
from storage.row_sets import execute_over

_APPEND: Final = """
WITH r (subject_id) AS ({rows})
INSERT INTO audit_entries (subject_id, at, actor, action, status_before, status_after, reason)
SELECT subject_id, ?, ?, ?, ?, ?, ? FROM r"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger; `at_ms` is milliseconds since 1970."""

    at_ms: int
    actor: str
    action: str
    subject_id: str
    status_before: str | None = None
    status_after: str | None = None
    reason: str | None = None


def append(now: datetime, actor: str, action: str, subject_id: str, reason: str | None = None) -> None:
    """Write one entry within the caller's transaction."""
    append_all([Entry(to_ms(now), actor, action, subject_id, reason=reason)])


def append_all(entries: Sequence[Entry]) -> None:
    """Write many entries within the caller's transaction: those that say the same of many in order, in one statement.

    All that a tick claims is said in one, and most of what it delivers; each row would take seven values instead of one.
    """
    subjects: dict[tuple[int | str | None, ...], list[tuple[str]]] = {}
    for entry in entries:
        subjects.setdefault(_said(entry), []).append((entry.subject_id,))
    for said, of_whom in subjects.items():
        execute_over(_APPEND, ("TEXT",), of_whom, said)


def _said(entry: Entry) -> tuple[int | str | None, ...]:
    # By name: dataclasses.astuple copies deeply, which made it the dearest line of a delivery's bookkeeping.
    return (entry.at_ms, entry.actor, entry.action, entry.status_before, entry.status_after, entry.reason)
