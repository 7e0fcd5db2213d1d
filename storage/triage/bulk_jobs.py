"""Bulk jobs: one decision on the exports that matched a filter, made a batch at a time by the holder of a lease.

When a job is created, it stores the matching exports with their versions; an export that has changed since is skipped. A
batch, its decisions, the counts and the deletion of its items commit together: the next holder continues after the last
batch, and nothing is decided twice. A job acts for its user: it stops when the user is disabled, or, if it delivers, when
the account may no longer use webhooks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, role_abilities
from schemas.exports.decisions import DismissalReason
from schemas.triage.bulk_decisions import DELIVERING_ACTIONS, BulkAction, BulkDecision, DecisionResult, ExportReference
from schemas.triage.bulk_jobs import (
    USER_DISABLED,
    USER_LOST_ABILITY,
    WEBHOOKS_FORBIDDEN,
    BulkJob,
    BulkJobStatus,
    CountDiffers,
)
from schemas.triage.export_filter import ExportQuery
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.bulk_sql import insert_records
from storage.db.columns import columns, get_by_id, read, values_of
from storage.db.engine import savepoint, transacted, transaction
from storage.db.leases import BatchProgress, JobBatch, JobLease, LeasedJobs, compare_and_swap
from storage.db.models import AccountRow, BulkJobItemRow, BulkJobRow, UserRow
from storage.db.queries import newest_first, tuples, where_given
from storage.exports import transitions
from storage.exports.search import export_list
from storage.triage.decisions import decide

#: The most exports of a job: one statement finds and stores this many within a second.
MAX_MATCHES: Final = 10_000
#: A batch takes some 40 ms on SQLite, 150 on PostgreSQL: other writers wait no longer, and a killed worker loses no more.
BATCH_SIZE: Final = 200
#: Every batch renews the lease. Longer than the longest wait of a batch for another writer (LOCK_WAIT_S) and its work.
LEASE_S: Final = 6.0
#: The most running jobs of an account: the tables contain at most this many times MAX_MATCHES items for it.
MAX_RUNNING: Final = 20

_IS_RUNNING: Final = BulkJobRow.status == BulkJobStatus.RUNNING.value

_jobs: Final = LeasedJobs(BulkJobRow)
#: Gives the lease of a job back, so that another worker can continue it.
release: Final = _jobs.release


@dataclass(frozen=True, slots=True)
class NewBulkJob:
    """A decision on all exports of an account that match a filter; `user_id` is None for the operator."""

    decision: BulkDecision
    query: ExportQuery
    expected_count: int
    account_id: int
    user_id: int | None
    actor: str


@dataclass(frozen=True, slots=True)
class _JobState:
    """The columns of a job that a batch needs."""

    account_id: int
    user_id: int | None
    action: BulkAction
    options: Mapping[str, Any]
    actor: str
    total: int
    done: int
    changed: int
    skipped: int
    errors: Mapping[str, int]

    @property
    def decision(self) -> BulkDecision:
        reason = self.options.get("reason")
        return BulkDecision(
            self.action,
            self.options.get("target_id"),
            None if reason is None else DismissalReason(reason),
            self.options.get("note"),
        )


def begin(new: NewBulkJob, now: datetime, policy: TargetPolicy) -> JobLease:
    """Create a job and claim it for its first batch. Raises the same errors as `request`."""
    lease = identifiers.new_id(identifiers.LEASE, now)
    return JobLease(_create(new, now, policy, lease), lease)


def request(new: NewBulkJob, now: datetime, policy: TargetPolicy) -> BulkJob:
    """Create a job that any worker may claim at once. The caller notifies the workers after the commit.

    Raises CountDiffers, Conflict for an account with MAX_RUNNING jobs, ValidationFailed for more than MAX_MATCHES exports or
    for the target, TargetUrlRefused if `policy` refuses its URL.
    """
    return get(_create(new, now, policy), new.account_id)


def claim_next(now: datetime) -> JobLease | None:
    """Claim the job that has waited longest; None if none waits. The claim expires LEASE_S after its last batch."""
    return _jobs.claim_oldest(now, LEASE_S)


@transacted
def advance(held: JobLease, now: datetime, policy: TargetPolicy, limits: AccountLimits) -> JobBatch:
    """Decide on the next batch, and end the job after the last one; a stale lease changes nothing."""
    if not _jobs.renew(held.id, held.lease, now, LEASE_S):
        return JobBatch(BatchProgress.LEASE_LOST)
    [job] = read(_JobState, BulkJobRow.select(*columns(_JobState, BulkJobRow)).where(BulkJobRow.id == held.id))
    stopped = _stop_reason(job)
    if stopped is not None:
        rest = job.total - job.done
        errors = {**job.errors, stopped: rest}
        compare_and_swap(BulkJobRow, held.id, done=job.total, errors=errors)
        _end(held.id, BulkJobStatus.CANCELLED, now, job.actor, stopped)
        return JobBatch(BatchProgress.FINISHED, rest)
    items = BulkJobItemRow.select(BulkJobItemRow.position, BulkJobItemRow.export, BulkJobItemRow.version)
    batch = tuples(items.where(BulkJobItemRow.job == held.id).order_by(BulkJobItemRow.position).limit(BATCH_SIZE))
    if batch:
        wanted = [ExportReference(export_id, version=version) for _, export_id, version in batch]
        results = _decided(job, wanted, now, policy, limits, held.id)
        errors = Counter(each.error_code for each in results if each.error_code is not None)
        compare_and_swap(
            BulkJobRow,
            held.id,
            done=job.done + len(results),
            changed=job.changed + sum(each.is_changed for each in results),
            skipped=job.skipped + sum(each.is_skipped for each in results),
            errors=dict(Counter(job.errors) + errors),
        )
        is_done = (BulkJobItemRow.job == held.id) & (BulkJobItemRow.position <= batch[-1][0])
        BulkJobItemRow.delete().where(is_done).execute()
    else:
        results = []
    due = sum(each.is_changed for each in results) if job.action in DELIVERING_ACTIONS else 0
    if job.done + len(batch) < job.total:
        return JobBatch(BatchProgress.MORE, len(batch), due)
    _end(held.id, BulkJobStatus.DONE, now, job.actor)
    return JobBatch(BatchProgress.FINISHED, len(batch), due)


def cancel(job_id: str, now: datetime, actor: str, account_id: int | None = None) -> BulkJob:
    """End a running job; with `account_id`, only of that account. Decisions that were made stay.

    A job that has ended is returned unchanged. Raises NotFound.
    """
    with transaction():
        get(job_id, account_id)
        _end(job_id, BulkJobStatus.CANCELLED, now, actor)
        # Read again, even if the job has ended: it may have been running until its holder committed the last batch.
        return get(job_id)


def get(job_id: str, account_id: int | None = None) -> BulkJob:
    """Return a job; with `account_id`, only of that account. Raises NotFound."""
    query = where_given(_all_jobs(), (BulkJobRow.id, job_id), (BulkJobRow.account, account_id))
    return get_by_id(BulkJob, query, identifiers.BULK_JOB, job_id, "There is no such bulk job.")


def list_page(account_id: int | None = None, limit: int | None = None, before: str | None = None) -> list[BulkJob]:
    """Return up to `limit` jobs of one account or of all, newest first, older than the one with the id `before`."""
    own = where_given(_all_jobs(), (BulkJobRow.account, account_id))
    return read(BulkJob, newest_first(own, BulkJobRow.id, limit, before))


def _create(new: NewBulkJob, now: datetime, policy: TargetPolicy, lease: str | None = None) -> str:
    """Store a job with its items and return its id; without a lease, any worker may claim it at once."""
    decision, job_id = new.decision, identifiers.new_id(identifiers.BULK_JOB, now)
    options = {"target_id": decision.target_id, "reason": decision.reason, "note": decision.note}
    with transaction():
        if decision.target_id is not None:
            errors = transitions.approval_errors([decision.target_id], new.account_id, policy)
            if refused := errors.get(decision.target_id):
                raise refused
        if _jobs.count_unfinished(BulkJobRow.account == new.account_id) >= MAX_RUNNING:
            raise Conflict(
                f"The account already has {MAX_RUNNING} running bulk jobs; wait until one has finished, or cancel one."
            )
        found = _expected_matches(new)
        counts = {"total": len(found), "done": 0, "changed": 0, "skipped": 0, "errors": {}}
        given = {name: value for name, value in options.items() if value is not None}
        state = {"id": job_id, "action": decision.action.value, "options": given, "status": BulkJobStatus.RUNNING.value}
        due_at = now if lease is None else now + timedelta(seconds=LEASE_S)
        times = {"lease": lease, "next_run_at": due_at, "created_at": now}
        BulkJobRow.insert(values_of(BulkJobRow, new, **state, **counts, **times)).execute()
        items = [
            {"job_id": job_id, "position": position, "export_id": export_id, "version": version}
            for position, (export_id, version) in enumerate(found)
        ]
        # In the order of ids, in which other transactions lock exports: the foreign key locks each export too.
        insert_records(BulkJobItemRow, sorted(items, key=lambda item: str(item["export_id"])))
        append(now, new.actor, f"begin_bulk_{decision.action.value}", job_id)
    return job_id


def _expected_matches(new: NewBulkJob) -> Sequence[tuple[str, int]]:
    """Return the matches of the filter. Raises ValidationFailed for too many, CountDiffers for an unexpected number."""
    found = export_list.ids_matching(new.query, MAX_MATCHES + 1)
    if len(found) > MAX_MATCHES:
        raise ValidationFailed(problem("/filter", "too_many_matches", f"{MAX_MATCHES:,}"))
    if len(found) != new.expected_count:
        raise CountDiffers(len(found), new.expected_count)
    return found


def _stop_reason(job: _JobState) -> str | None:
    """Return why a job must stop; None if it need not."""
    for disabled_at, role in tuples(UserRow.select(UserRow.disabled_at, UserRow.role).where(UserRow.id == job.user_id)):
        if disabled_at is not None:
            return USER_DISABLED
        if Ability.APPROVE_EXPORTS not in role_abilities(role):
            return USER_LOST_ABILITY
    forbidden = AccountRow.select().where(AccountRow.id == job.account_id, ~AccountRow.may_use_webhooks)
    return WEBHOOKS_FORBIDDEN if job.action in DELIVERING_ACTIONS and forbidden.exists() else None


def _decided(
    job: _JobState, wanted: list[ExportReference], now: datetime, policy: TargetPolicy, limits: AccountLimits, job_id: str
) -> list[DecisionResult]:
    try:
        with savepoint():
            return decide(job.decision, wanted, job.account_id, now, job.actor, policy, limits, job_id)
    except ValidationFailed as refused:
        # The account's limit was reached.
        return [DecisionResult(each.id, error=refused) for each in wanted]


def _all_jobs() -> Any:
    return BulkJobRow.select(*columns(BulkJob, BulkJobRow))


def _end(job_id: str, status: BulkJobStatus, now: datetime, actor: str, reason: str | None = None) -> bool:
    """End a running job, and delete its items and options; return whether it was running."""
    # The exports have the note of a dismissal. Here it would remain after the exports are erased.
    ended = _jobs.end(job_id, _IS_RUNNING, status.value, now, options={})
    if ended:
        BulkJobItemRow.delete().where(BulkJobItemRow.job == job_id).execute()
        append(now, actor, "finish_bulk_job" if status is BulkJobStatus.DONE else "cancel_bulk_job", job_id, reason)
    return ended
