"""The append-only ledger: who did what to which record, and from which status to which."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.times import to_ms
from storage.database import execute, values_list

_COLUMNS: Final = ("at", "actor", "action", "subject_id", "status_before", "status_after", "reason")


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
    """Write many entries in one statement, within the caller's transaction."""
    if not entries:
        return
    values = values_list(len(_COLUMNS), len(entries))
    parameters = [value for entry in entries for value in _row(entry)]
    execute(f"INSERT INTO audit_entries ({', '.join(_COLUMNS)}) VALUES {values}", parameters)  # noqa: S608 - our own names


def _row(entry: Entry) -> tuple[int | str | None, ...]:
    # By name: dataclasses.astuple copies deeply, which made it the dearest line of a delivery's bookkeeping.
    return (entry.at_ms, entry.actor, entry.action, entry.subject_id, entry.status_before, entry.status_after, entry.reason)
