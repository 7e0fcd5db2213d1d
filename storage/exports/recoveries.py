"""Recoveries: what failed at a target, put back on its way a batch at a time, by whoever holds the lease.

A batch, the place behind it and the count commit together, so that whoever takes a recovery up goes on where it stopped and
no export is put back twice. A target has one recovery at a time. While the target is turned off nothing is put back, since
workers would end it at once; the recovery waits until the target is resumed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from schemas.base.errors import Conflict, NotFound, TargetNotFound
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.recoveries import Recovery, RecoveryStatus
from schemas.targets.target import APPROVABLE, TargetStatus
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.engine import execute, is_sqlite, rows, transaction
from storage.exports import queries, transitions

#: Some 40 ms of work on SQLite, 150 on PostgreSQL: other writers wait no longer, and who is killed loses no more.
BATCH_SIZE: Final = 500
#: Every batch renews it; longer than a batch that waits for another writer to the end (LOCK_WAIT_S) and then does its work.
LEASE_S: Final = 6.0
#: How soon a recovery whose target was turned off looks again whether it was resumed.
HALTED_RETRY_S: Final = 30.0

_COLUMNS: Final = "id, target_id, since, status, total, done, created_at, finished_at"
#: No limit, in a form that both databases take.
ALL: Final = 2**63 - 1
#: Sorts behind every id in any collation: the greatest ULID there is.
_AFTER_ALL: Final = f"{identifiers.RECOVERY}_7{'Z' * 25}"
#: Before every id.
_FROM_THE_FIRST: Final = ""

_BEGIN: Final = """
INSERT INTO recoveries (id, target_id, since, status, total, done, after_id, actor, lease, next_run_at, created_at)
VALUES (?, ?, ?, 'running', ?, 0, ?, ?, ?, ?, ?) ON CONFLICT (target_id) WHERE status = 'running' DO NOTHING"""

# Who holds it holds on, and learns where it is. On PostgreSQL this locks the row: nobody cancels it within a batch.
_HOLD: Final = """
UPDATE recoveries SET next_run_at = ? WHERE id = ? AND lease = ? RETURNING target_id, since, after_id, actor"""

# What fails while it runs may come to it as well, so that the total is what was found and never less than what is done.
_ADVANCE: Final = """
UPDATE recoveries SET after_id = ?, done = done + ?, total = CASE WHEN done + ? > total THEN done + ? ELSE total END
WHERE id = ?"""

_END: Final = """
UPDATE recoveries SET status = ?, lease = NULL, next_run_at = NULL, finished_at = ? WHERE id = ? AND status = 'running'"""

# From target to target, so that nobody goes through the recoveries of others to find their own. SQLite knows no LATERAL and
# keeps to the order of a CROSS JOIN; to PostgreSQL a target is bounded, not equalled, since that order only one index has.
_OF_ACCOUNT_POSTGRESQL: Final = f"""
SELECT {_COLUMNS} FROM (
    SELECT r.* FROM targets t CROSS JOIN LATERAL (
        SELECT * FROM recoveries x WHERE x.target_id >= t.id AND x.target_id <= t.id AND x.id < ?
        ORDER BY x.target_id DESC, x.id DESC LIMIT ?
    ) r WHERE t.account_id = ?
) own ORDER BY id DESC LIMIT ?"""  # noqa: S608 - our own names
_OF_ACCOUNT_SQLITE: Final = f"""
SELECT {_COLUMNS} FROM (
    SELECT r.* FROM targets t CROSS JOIN recoveries r WHERE t.account_id = ? AND r.target_id = t.id AND r.id < ?
) own ORDER BY id DESC LIMIT ?"""  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True)
class RecoveryLease:
    """A recovery and the lease under which one process works at it."""

    id: str
    lease: str


class RecoveryProgress(Enum):
    """What came of a look for the next batch."""

    #: There may be more.
    MOVED = auto()
    DONE = auto()
    #: Its target was turned off; it goes on by itself once that is resumed.
    HALTED = auto()
    #: It was cancelled, or somebody else holds it by now.
    LOST = auto()


@dataclass(frozen=True, slots=True)
class RecoveryBatch:
    """One batch: how many exports were put back with it."""

    progress: RecoveryProgress
    moved: int = 0


class AlreadyRecovering(Conflict):
    """A target has one recovery at a time; `recovery_id` is the one that runs."""

    def __init__(self, target_id: str, recovery_id: str) -> None:
        super().__init__(f"Target {target_id} has a recovery already, {recovery_id}; let it end, or cancel it.")
        self.recovery_id = recovery_id


def begin(target_id: str, since: datetime, now: datetime, actor: str) -> RecoveryLease:
    """Make a recovery of what failed at a target at `since` or later, and hold it for its first batch.

    Raises TargetNotFound, Conflict for a target that is turned off, AlreadyRecovering.
    """
    lease = identifiers.new_id(identifiers.LEASE, now)
    return RecoveryLease(_begin(target_id, None, since, now, actor, lease, _lapses_at(now)), lease)


def request(target_id: str, account_id: int, since: datetime, now: datetime, actor: str) -> Recovery:
    """Make a recovery as `begin` does, of a target of one account, that nobody holds: a worker takes it up at once.

    Notify the workers after the commit. Raises TargetNotFound, Conflict for a target that is turned off, AlreadyRecovering.
    """
    return get(_begin(target_id, account_id, since, now, actor, None, to_ms(now)), account_id)


def any_waiting(now: datetime) -> bool:
    """Tell whether a recovery may be taken up at `now`."""
    return bool(rows("SELECT 1 FROM recoveries WHERE next_run_at <= ? LIMIT 1", (to_ms(now),)))


def claim_next(now: datetime) -> RecoveryLease | None:
    """Take up the recovery that has waited longest; None if there is none. The claim lapses LEASE_S after its last batch."""
    with transaction():
        found = rows(
            "SELECT id, next_run_at FROM recoveries WHERE next_run_at <= ? ORDER BY next_run_at LIMIT 1", (to_ms(now),)
        )
        if not found:
            return None
        recovery_id, next_run_at = found[0]
        held = RecoveryLease(recovery_id, identifiers.new_id(identifiers.LEASE, now))
        # Who else might have won: another worker, its former holder that woke up, or who cancelled it.
        taken = execute(
            "UPDATE recoveries SET lease = ?, next_run_at = ? WHERE id = ? AND next_run_at = ?",
            (held.lease, _lapses_at(now), recovery_id, next_run_at),
        )
    return held if taken else None


def advance(held: RecoveryLease, now: datetime) -> RecoveryBatch:
    """Put the next batch back on its way, or end the recovery where nothing is left; who lost the lease changes nothing."""
    with transaction():
        found = rows(_HOLD, (_lapses_at(now), held.id, held.lease))
        if not found:
            return RecoveryBatch(RecoveryProgress.LOST)
        target_id, since, after_id, actor = found[0]
        if _target_status(target_id) not in APPROVABLE:
            _wait_until(now + timedelta(seconds=HALTED_RETRY_S), held)
            return RecoveryBatch(RecoveryProgress.HALTED)
        last_id, moved = transitions.recover_batch(target_id, from_ms(since), after_id, BATCH_SIZE, now, actor, held.id)
        if last_id is None:
            _end(held.id, RecoveryStatus.DONE, now, actor)
            return RecoveryBatch(RecoveryProgress.DONE)
        execute(_ADVANCE, (last_id, moved, moved, moved, held.id))
    return RecoveryBatch(RecoveryProgress.MOVED, moved)


def release(held: RecoveryLease, now: datetime) -> None:
    """Let somebody else take a recovery up at once; who holds it no more changes nothing."""
    with transaction():
        _wait_until(now, held)


def cancel(recovery_id: str, now: datetime, actor: str, account_id: int | None = None) -> Recovery:
    """End a running recovery, of a target of one account where `account_id` is given; what is put back stays so.

    Raises NotFound, Conflict where it has ended already.
    """
    with transaction():
        recovery = get(recovery_id, account_id)
        # Who else might have won: its holder, with the last batch.
        if not _end(recovery_id, RecoveryStatus.CANCELLED, now, actor):
            ended = get(recovery_id).status
            raise Conflict(f"Recovery {recovery.id} is {ended}; only a running one can be cancelled.")
        return get(recovery_id)


def get(recovery_id: str, account_id: int | None = None) -> Recovery:
    """Return a recovery, of a target of one account where `account_id` is given. Raises NotFound."""
    known = identifiers.is_id(identifiers.RECOVERY, recovery_id)
    asked = f"SELECT {_COLUMNS} FROM recoveries WHERE id = ?"  # noqa: S608 - our own names
    found = rows(f"{asked}{_of(account_id)}", (recovery_id, *_given(account_id))) if known else []
    if not found:
        raise NotFound("There is no such recovery.")
    return _recovery(found[0])


def list_page(limit: int = ALL, target_id: str | None = None) -> list[Recovery]:
    """Return up to `limit` recoveries of one target or of all, the newest first."""
    of_target = "" if target_id is None else "WHERE target_id = ?"
    asked = f"SELECT {_COLUMNS} FROM recoveries {of_target} ORDER BY id DESC LIMIT ?"  # noqa: S608 - our own names
    return [_recovery(row) for row in rows(asked, (*_given(target_id), limit))]


def list_account_page(account_id: int, limit: int, before: str | None = None) -> list[Recovery]:
    """Return up to `limit` recoveries of an account's targets, the newest first, after the one with the id `before`."""
    until = before or _AFTER_ALL
    if is_sqlite():
        found = rows(_OF_ACCOUNT_SQLITE, (account_id, until, limit))
    else:
        found = rows(_OF_ACCOUNT_POSTGRESQL, (until, limit, account_id, limit))
    return [_recovery(row) for row in found]


def _begin(
    target_id: str, account_id: int | None, since: datetime, now: datetime, actor: str, lease: str | None, next_run_at: int
) -> str:
    """Make a recovery and return its id."""
    status = _target_status(target_id, account_id)
    if status not in APPROVABLE:
        raise Conflict(f"Target {target_id} is {status}; run `target resume {target_id}`, then recover its exports.")
    recovery_id = identifiers.new_id(identifiers.RECOVERY, now)
    total = queries.count_recoverable(target_id, since)
    row = (recovery_id, target_id, to_ms(since), total, _FROM_THE_FIRST, actor, lease, next_run_at, to_ms(now))
    with transaction():
        while not execute(_BEGIN, row):
            # One that ends between the two looks is in nobody's way any more.
            if (running := _running(target_id)) is not None:
                raise AlreadyRecovering(target_id, running)
        append(now, actor, "begin_recovery", recovery_id, target_id)
    return recovery_id


def _target_status(target_id: str, account_id: int | None = None) -> TargetStatus:
    is_id = identifiers.is_id(identifiers.TARGET, target_id)
    found = rows("SELECT status, account_id FROM targets WHERE id = ?", (target_id,)) if is_id else []
    if not found or account_id not in {None, found[0][1]}:
        raise TargetNotFound
    return TargetStatus(found[0][0])


def _of(account_id: int | None) -> str:
    return "" if account_id is None else " AND target_id IN (SELECT id FROM targets WHERE account_id = ?)"


def _given(value: int | str | None) -> tuple[int | str, ...]:
    return () if value is None else (value,)


def _running(target_id: str) -> str | None:
    found = rows("SELECT id FROM recoveries WHERE target_id = ? AND status = 'running'", (target_id,))
    return str(found[0][0]) if found else None


def _wait_until(moment: datetime, held: RecoveryLease) -> None:
    given = "UPDATE recoveries SET lease = NULL, next_run_at = ? WHERE id = ? AND lease = ?"
    execute(given, (to_ms(moment), held.id, held.lease))


def _end(recovery_id: str, status: RecoveryStatus, now: datetime, actor: str) -> bool:
    """Close a recovery, unless it is closed; tell whether it was open."""
    ended = execute(_END, (status.value, to_ms(now), recovery_id))
    if ended:
        append(now, actor, "finish_recovery" if status is RecoveryStatus.DONE else "cancel_recovery", recovery_id)
    return bool(ended)


def _lapses_at(now: datetime) -> int:
    return to_ms(now + timedelta(seconds=LEASE_S))


def _recovery(row: tuple[Any, ...]) -> Recovery:
    return Recovery(
        id=row[0],
        target_id=row[1],
        since=from_ms(row[2]),
        status=RecoveryStatus(row[3]),
        total=row[4],
        done=row[5],
        created_at=from_ms(row[6]),
        finished_at=from_ms(row[7]),
    )
