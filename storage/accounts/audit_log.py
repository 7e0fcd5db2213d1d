"""The append-only ledger: who did what to which record, and from which status to which."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.timestamps import to_ms
from storage.db.bulk_sql import execute_over
from storage.db.engine import rows

_APPEND: Final = """
WITH r (subject_id) AS ({rows})
INSERT INTO audit_entries (subject_id, at, actor, action, status_before, status_after, reason)
SELECT subject_id, ?, ?, ?, ?, ?, ? FROM r"""

_OF_SUBJECT: Final = """
SELECT at, actor, action, subject_id, status_before, status_after, reason FROM audit_entries
WHERE subject_id = ? ORDER BY id DESC LIMIT ?"""

_LINES: Final = """
SELECT id, at, actor, action, subject_id, status_before, status_after, reason FROM audit_entries
WHERE {where} ORDER BY id DESC LIMIT ?"""

#: The records that have a page of their own, each by its primary key.
_OF_ACCOUNT: Final = """
SELECT id FROM exports WHERE account_id = ? AND id IN ({ids})
UNION ALL SELECT id FROM targets WHERE account_id = ? AND id IN ({ids})
UNION ALL SELECT r.id FROM recoveries r JOIN targets t ON t.id = r.target_id WHERE t.account_id = ? AND r.id IN ({ids})"""


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


@dataclass(frozen=True, slots=True)
class Line:
    """An entry as it stands in the ledger; `id` counts up."""

    id: int
    entry: Entry


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


def of_subject(subject_id: str, limit: int) -> list[Entry]:
    """Return up to `limit` entries about one record, the newest first; whether the reader may see it, the caller knows."""
    return [Entry(*row) for row in rows(_OF_SUBJECT, (subject_id, limit))]


def newest(limit: int, before: int | None, subject_id: str | None) -> list[Line]:
    """Return up to `limit` lines of the whole ledger or about one record, the newest first, of those before a line."""
    wanted = {"id < ?": before, "subject_id = ?": subject_id}
    given = {condition: value for condition, value in wanted.items() if value is not None}
    statement = _LINES.format(where=" AND ".join(given) or "TRUE")
    return [Line(row[0], Entry(*row[1:])) for row in rows(statement, (*given.values(), limit))]


def of_account(account_id: int, subject_ids: Collection[str]) -> set[str]:
    """Return which of some records are exports, targets or recoveries of an account."""
    if not subject_ids:
        return set()
    statement = _OF_ACCOUNT.format(ids=", ".join("?" * len(subject_ids)))
    return {row[0] for row in rows(statement, (account_id, *subject_ids) * 3)}


def _said(entry: Entry) -> tuple[int | str | None, ...]:
    # By name: dataclasses.astuple copies deeply, which made it the dearest line of a delivery's bookkeeping.
    return (entry.at_ms, entry.actor, entry.action, entry.status_before, entry.status_after, entry.reason)
