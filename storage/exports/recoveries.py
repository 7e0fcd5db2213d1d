"""Recoveries: the failed exports of a target, made due again a batch at a time, by the holder of a lease.

A batch, its last id and the count commit together: the next holder continues after the last batch, and no export is made due
twice. A target has one recovery at a time. While the target is turned off, no export is made due, because workers would end
it at once; the recovery waits until the target is resumed.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from peewee import SQL

from schemas.base.errors import Conflict, TargetNotFound
from schemas.exports.recoveries import Recovery, RecoveryStatus
from schemas.targets.target import ENABLED, TargetStatus
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.columns import columns, get_by_id, read
from storage.db.engine import transacted, transaction
from storage.db.leases import BatchProgress, JobBatch, JobLease, LeasedJobs, compare_and_swap
from storage.db.models import RecoveryRow, TargetRow
from storage.db.queries import newest_first, tuples, where_given
from storage.exports import transitions
from storage.exports.queries import count_recoverable_since
from storage.exports.transitions_sql import lock_targets
from storage.targets import targets

#: A batch takes some 40 ms on SQLite, 150 on PostgreSQL: other writers wait no longer, and a killed worker loses no more.
BATCH_SIZE: Final = 500
#: Every batch renews the lease. Longer than the longest wait of a batch for another writer (LOCK_WAIT_S) and its work.
LEASE_S: Final = 6.0
#: A recovery counts its exports when it begins, among this many of the target's newest failed exports: 10 ms, in a request.
COUNTED_AT_FIRST: Final = 10_000
#: After this time, a recovery whose target was turned off checks whether it was resumed.
HALTED_RETRY_S: Final = 30.0

#: Less than every id.
_FROM_THE_FIRST: Final = ""
_IS_RUNNING: Final = RecoveryRow.status == RecoveryStatus.RUNNING.value

_jobs: Final = LeasedJobs(RecoveryRow)
#: Gives the lease of a job back, so that another worker can continue it.
release: Final = _jobs.release


class AlreadyRecovering(Conflict):
    """A target has one recovery at a time; `recovery_id` is the running one."""

    def __init__(self, target_id: str, recovery_id: str) -> None:
        super().__init__(f"Target {target_id} has a recovery already, {recovery_id}; let it end, or cancel it.")
        self.recovery_id = recovery_id


def begin(target_id: str, since: datetime, now: datetime, actor: str) -> JobLease:
    """Create a recovery of a target's exports that failed at `since` or later, and claim it for its first batch.

    Raises TargetNotFound, Conflict for a target that is turned off, AlreadyRecovering.
    """
    lease = identifiers.new_id(identifiers.LEASE, now)
    return JobLease(_create(target_id, None, since, now, actor, lease), lease)


def request(target_id: str, account_id: int, since: datetime, now: datetime, actor: str) -> Recovery:
    """Create a recovery as `begin` does, for an account's target; any worker may claim it at once.

    The caller notifies the workers after the commit. Raises TargetNotFound, Conflict for a target that is turned off,
    AlreadyRecovering.
    """
    return get(_create(target_id, account_id, since, now, actor), account_id)


def claim_next(now: datetime) -> JobLease | None:
    """Claim the recovery that has waited longest; None if none waits. The claim expires LEASE_S after its last batch."""
    return _jobs.claim_oldest(now, LEASE_S)


@transacted
def advance(held: JobLease, now: datetime) -> JobBatch:
    """Make the next batch due again, or end the recovery if no export is left; a stale lease changes nothing."""
    if not _jobs.renew(held.id, held.lease, now, LEASE_S):
        return JobBatch(BatchProgress.LEASE_LOST)
    r = RecoveryRow
    held_row = r.select(r.target, r.since, r.after_id, r.actor, r.done, r.total).where(r.id == held.id)
    [(target_id, since, after_id, actor, done, total)] = tuples(held_row)
    if targets.find_row(target_id).status not in ENABLED:
        _jobs.finish(held.id, held.lease, due_at=now + timedelta(seconds=HALTED_RETRY_S))
        return JobBatch(BatchProgress.WAITING_FOR_TARGET)
    last_id, moved = transitions.recover_batch(target_id, since, after_id, BATCH_SIZE, now, actor, held.id)
    if last_id is None:
        _end(held.id, RecoveryStatus.DONE, now, actor)
        return JobBatch(BatchProgress.FINISHED)
    done += moved
    # At the beginning not all exports were counted, and more may fail meanwhile: the total is at least the number done.
    compare_and_swap(RecoveryRow, held.id, after_id=last_id, done=done, total=max(total, done))
    return JobBatch(BatchProgress.MORE, processed=moved, due=moved)


def cancel(recovery_id: str, now: datetime, actor: str, account_id: int | None = None) -> Recovery:
    """End a running recovery; with `account_id`, only of a target of that account. Exports that were made due stay due.

    Raises NotFound, and Conflict if the recovery has ended already.
    """
    with transaction():
        recovery = get(recovery_id, account_id)
        # The recovery's holder may have won and processed the last batch.
        if not _end(recovery_id, RecoveryStatus.CANCELLED, now, actor):
            ended = get(recovery_id).status
            raise Conflict(f"Recovery {recovery.id} is {ended}; only a running one can be cancelled.")
        return get(recovery_id)


def get(recovery_id: str, account_id: int | None = None) -> Recovery:
    """Return a recovery; with `account_id`, only of a target of that account. Raises NotFound."""
    query = where_given(_recoveries().join(TargetRow), (RecoveryRow.id, recovery_id), (TargetRow.account, account_id))
    return get_by_id(Recovery, query, identifiers.RECOVERY, recovery_id, "There is no such recovery.")


def list_page(limit: int | None = None, target_id: str | None = None) -> list[Recovery]:
    """Return up to `limit` recoveries of one target or of all, the newest first."""
    query = where_given(_recoveries(), (RecoveryRow.target, target_id))
    return read(Recovery, newest_first(query, RecoveryRow.id, limit))


def list_account_page(account_id: int, limit: int, before: str | None = None) -> list[Recovery]:
    """Return up to `limit` recoveries of an account's targets, newest first, older than the one with the id `before`."""
    own = TargetRow.select(TargetRow.id).where(TargetRow.account == account_id)
    return read(Recovery, newest_first(_recoveries().where(RecoveryRow.target.in_(own)), RecoveryRow.id, limit, before))


def _create(
    target_id: str, account_id: int | None, since: datetime, now: datetime, actor: str, lease: str | None = None
) -> str:
    """Store a recovery and return its id; without a lease, any worker may claim it at once."""
    status = TargetStatus(targets.find_row(target_id, account_id).status)
    if status not in ENABLED:
        raise Conflict(f"Target {target_id} is {status}; run `target resume {target_id}`, then recover its exports.")
    recovery_id = identifiers.new_id(identifiers.RECOVERY, now)
    [total] = count_recoverable_since(target_id, [since], COUNTED_AT_FIRST)
    of_target = {"id": recovery_id, "target": target_id, "since": since, "actor": actor, "created_at": now}
    progress = {"status": RecoveryStatus.RUNNING.value, "total": total, "done": 0, "after_id": _FROM_THE_FIRST}
    due_at = now if lease is None else now + timedelta(seconds=LEASE_S)
    row = RecoveryRow.insert(**of_target, **progress, lease=lease, next_run_at=due_at)
    # Exactly the condition of the table's unique index.
    once = row.on_conflict(action="NOTHING", conflict_target=[RecoveryRow.target], conflict_where=SQL("status = 'running'"))
    with transaction():
        while not once.as_rowcount().execute():
            # If the running recovery ends between the two statements, the loop inserts again.
            running = tuples(RecoveryRow.select(RecoveryRow.id).where(RecoveryRow.target == target_id, _IS_RUNNING))
            if running:
                raise AlreadyRecovering(target_id, running[0][0])
        # A removal of the target may have won since the first read; otherwise it now waits. After the recovery, as in a
        # removal, which ends recoveries first: another order could deadlock.
        if not lock_targets([target_id]):
            raise TargetNotFound
        append(now, actor, "begin_recovery", recovery_id, target_id)
    return recovery_id


def _recoveries() -> Any:
    return RecoveryRow.select(*columns(Recovery, RecoveryRow))


def _end(recovery_id: str, status: RecoveryStatus, now: datetime, actor: str) -> bool:
    """End a running recovery; return whether it was running."""
    ended = _jobs.end(recovery_id, _IS_RUNNING, status.value, now)
    if ended:
        append(now, actor, "finish_recovery" if status is RecoveryStatus.DONE else "cancel_recovery", recovery_id)
    return ended
