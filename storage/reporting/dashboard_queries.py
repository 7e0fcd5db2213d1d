"""How an account and the whole installation fare at a glance, as the console asks whenever somebody looks.

Nothing is counted further than anybody reads: each question takes a bounded number of steps of an index, or reads targets,
of which there are thousands at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import TargetStatus
from storage.db.engine import is_sqlite, rows

#: What is more is told as `10 000+`: nobody goes through so many by hand.
MOST_COUNTED: Final = 10_000
#: The same of one account and one status: PostgreSQL may look at the page of every row that it counts.
MOST_OF_A_STATUS: Final = 1_000
#: Recoveries that run at once and are shown; a target has one at a time.
MOST_RECOVERIES: Final = 50

#: What somebody decides about, waits for or sees to; what is exported or dismissed is over.
_COUNTED: Final = (
    ExportStatus.PREPARED,
    ExportStatus.APPROVED,
    ExportStatus.DELIVERING,
    ExportStatus.RETRY_SCHEDULED,
    ExportStatus.FAILED,
    ExportStatus.BLOCKED,
)
# A status is bounded, not equalled: that order only one index has. PostgreSQL would else read every export of everybody, or
# go through the oldest of them until it has found enough of a status.
_COUNT_PART: Final = """(SELECT COUNT(*) FROM (
    SELECT 1 FROM exports WHERE account_id = ? AND status >= ? AND status <= ? ORDER BY status, id LIMIT ?) part)"""
_NUMBERS: Final = f"""
SELECT EXISTS (SELECT 1 FROM targets WHERE account_id = ?), (SELECT MAX(id) FROM exports WHERE account_id = ?),
    {", ".join([_COUNT_PART] * len(_COUNTED))}"""  # noqa: S608 - our own names

# What nobody can send to comes first, then what goes on by itself, and last what somebody has turned off.
_IN_TROUBLE: Final = """
SELECT id, name, status, status_reason, CASE WHEN held_until > ? THEN held_reason END,
    CASE WHEN held_until > ? THEN held_until END
FROM targets WHERE account_id = ? AND (status <> 'active' OR held_until > ?)
ORDER BY CASE status WHEN 'blocked' THEN 0 WHEN 'inactive' THEN 1 WHEN 'active' THEN 2 WHEN 'paused' THEN 3 ELSE 4 END,
    id DESC
LIMIT ?"""

# A step of an index for each target, and no more exports than are counted. PostgreSQL might read all exports instead where
# the limit stands outside; SQLite knows no LATERAL and keeps to the order of a CROSS JOIN.
_DUE_POSTGRESQL: Final = """
SELECT COUNT(*) FROM (
    SELECT 1 FROM targets t CROSS JOIN LATERAL (
        SELECT 1 FROM exports x WHERE x.target_id = t.id AND x.due_at <= ? LIMIT ?
    ) e WHERE {where} LIMIT ?
) part"""
_DUE_SQLITE: Final = """
SELECT COUNT(*) FROM (
    SELECT 1 FROM targets t CROSS JOIN exports x WHERE x.target_id = t.id AND x.due_at <= ? AND {where} LIMIT ?
) part"""
_OPEN: Final = "t.status = 'active' AND (t.held_until IS NULL OR t.held_until <= ?)"
# No join: SQLite might first read all exports for a filter of its own. Workers hold some thousands at most.
_LEASES: Final = """
SELECT COALESCE(SUM(held), 0) FROM (
    SELECT (SELECT COUNT(*) FROM exports x WHERE x.account_id = a.id AND x.status = 'delivering') AS held FROM accounts a
) counted"""

_RECOVERIES: Final = """
SELECT r.id, t.id, t.name, t.account_id, r.total, r.done, r.created_at FROM recoveries r JOIN targets t ON t.id = r.target_id
WHERE r.status = 'running' ORDER BY r.target_id LIMIT ?"""


@dataclass(frozen=True, slots=True)
class AccountCounts:
    """What an account has: exports by status, none counted further than MOST_OF_A_STATUS and one."""

    has_targets: bool
    has_exports: bool
    by_status: Mapping[ExportStatus, int]


@dataclass(frozen=True, slots=True)
class UnavailableTarget:
    """A target that nothing is sent to for now; `held_reason` and `held_until` where that ends by itself."""

    id: str
    name: str
    status: TargetStatus
    status_reason: str | None
    held_reason: str | None
    held_until: datetime | None


@dataclass(frozen=True, slots=True)
class DueCounts:
    """Exports that are due: how many could be sent now, and how many wait for a target that nothing is sent to."""

    could_be_sent: int
    held_back: int


@dataclass(frozen=True, slots=True)
class RunningRecovery:
    """A recovery that runs, with its target and whose that is."""

    id: str
    target_id: str
    target_name: str
    account_id: int
    total: int
    done: int
    created_at: datetime


def count_account(account_id: int) -> AccountCounts:
    """Return what an account has, in one question."""
    most = MOST_OF_A_STATUS + 1
    parts: list[Any] = [each for status in _COUNTED for each in (account_id, status.value, status.value, most)]
    [(has_targets, has_exports, *counts)] = rows(_NUMBERS, (account_id, account_id, *parts))
    return AccountCounts(bool(has_targets), bool(has_exports), dict(zip(_COUNTED, counts, strict=True)))


def list_unavailable_targets(account_id: int, now: datetime, limit: int) -> list[UnavailableTarget]:
    """Return up to `limit` of an account's targets that nothing is sent to at `now`, those that need somebody first."""
    at = to_ms(now)
    return [
        UnavailableTarget(target_id, name, TargetStatus(status), reason, held_reason, from_ms(held_until))
        for target_id, name, status, reason, held_reason, held_until in rows(_IN_TROUBLE, (at, at, account_id, at, limit))
    ]


def count_due(now: datetime) -> DueCounts:
    """Return how many exports of all accounts are due at `now`, neither number further than MOST_COUNTED and one."""
    return DueCounts(_count_due(_OPEN, to_ms(now)), _count_due(f"NOT ({_OPEN})", to_ms(now)))


def count_leases() -> int:
    """Return how many exports of all accounts workers hold."""
    return int(rows(_LEASES)[0][0])


def list_running_recoveries() -> list[RunningRecovery]:
    """Return up to MOST_RECOVERIES recoveries that run, of all accounts."""
    return [
        RunningRecovery(recovery_id, target_id, name, account_id, total, done, from_ms(created_at))
        for recovery_id, target_id, name, account_id, total, done, created_at in rows(_RECOVERIES, (MOST_RECOVERIES,))
    ]


def _count_due(where: str, at: int) -> int:
    """Count what is due at `at` for the targets that are as `where`, our own words, says."""
    most = MOST_COUNTED + 1
    if is_sqlite():
        return int(rows(_DUE_SQLITE.format(where=where), (at, at, most))[0][0])
    return int(rows(_DUE_POSTGRESQL.format(where=where), (at, most, at, most))[0][0])
