"""Validations of targets: on request, a day after the last response of a target, or sooner after a failed validation.

One worker at a time validates a target: it claims the target by compare-and-swap, and only the holder of this lease writes
the result. If the worker dies, the lease expires and the target is due again. If no worker claims a requested validation in
time, the request cancels it and records its own result. Targets that are turned off are validated only on request.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from peewee import Case, fn

from schemas.base.errors import TargetNotFound
from schemas.base.timestamps import to_ms
from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions
from schemas.targets.target import ENABLED
from schemas.targets.validations import FAILED, REVALIDATE_AT_MOST, VALID_FOR, Validation
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.leases import LeasedJobs, compare_and_swap
from storage.db.models import TargetRow
from storage.targets import targets
from storage.targets.delivery_options import options_of

#: The due time of a requested validation: due at once by any worker's clock, and before those that nobody requested.
_AT_ONCE: Final = 0

_jobs: Final = LeasedJobs(TargetRow, "validation_lease", "validation_due_at")


@dataclass(frozen=True, slots=True)
class ValidationJob:
    """A target that a worker validates under a lease."""

    target_id: str
    account_id: int
    base_url: str
    lease: str
    secret_sealed: bytes | None = None
    options: DeliveryOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class RequestedValidation:
    """The state of a requested validation."""

    has_begun: bool
    is_over: bool


def request(target_id: str, account_id: int | None, now: datetime, actor: str) -> datetime:
    """Make a validation of one of the account's targets due; return when it was requested, perhaps by an earlier request.

    Raises TargetNotFound.
    """
    with transaction():
        targets.get(target_id, None, account_id)
        # While another request waits or a worker validates, a new request gets the same result.
        first = fn.COALESCE(TargetRow.validation_asked_at, to_ms(now))
        due_at = Case(None, [(TargetRow.validation_lease.is_null(), _AT_ONCE)], TargetRow.validation_due_at)
        # A removal of the target may have won since the read.
        if not compare_and_swap(
            TargetRow, target_id, targets.IS_NOT_REMOVED, validation_asked_at=first, validation_due_at=due_at
        ):
            raise TargetNotFound
        append(now, actor, "ask_validation", target_id)
        requested_at: datetime = TargetRow.get_by_id(target_id).validation_asked_at
    return requested_at


def draft(target_id: str) -> ValidationJob:
    """Return a validation without a lease, whose result is not stored. Raises TargetNotFound."""
    return _job(targets.find_row(target_id), "")


def get(target_id: str, requested_at: datetime, now: datetime) -> RequestedValidation:
    """Return the state of the validation that was requested at `requested_at`."""
    row = TargetRow.get_by_id(target_id)
    has_begun = row.validation_lease is not None and row.validation_due_at > now
    return RequestedValidation(has_begun, is_over=row.validation_asked_at != requested_at)


def cancel_unstarted(target_id: str, requested_at: datetime, now: datetime, actor: str) -> bool:
    """Cancel a validation that no worker has begun; return whether it was cancelled in time.

    Then records the request's own result, which has found nothing against the target.
    """
    has_not_begun = TargetRow.validation_lease.is_null() | (TargetRow.validation_due_at <= now)
    return stop_waiting(target_id, requested_at, now, actor, has_not_begun)


def stop_waiting(target_id: str, requested_at: datetime, now: datetime, actor: str, *expected: Any) -> bool:
    """Cancel a validation that may have begun, if `expected` is true; a result that the worker still returns is stored.

    Returns and records the same as `cancel_unstarted`.
    """
    with transaction():
        is_same = TargetRow.validation_asked_at == requested_at
        if not compare_and_swap(TargetRow, target_id, is_same, *expected, validation_asked_at=None):
            return False
        targets.record_validation(target_id, None, Validation(is_partial=True), now, actor)
    return True


def cancel(target_id: str, requested_at: datetime) -> bool:
    """Withdraw a request and record nothing; return False if it had ended. A worker may still validate the target."""
    with transaction():
        is_same = TargetRow.validation_asked_at == requested_at
        return compare_and_swap(TargetRow, target_id, is_same, validation_asked_at=None)


def claim_next(now: datetime, lease_s: float, excluded: Collection[int | None] = ()) -> ValidationJob | None:
    """Claim the target whose validation has been due longest, requested ones first; None if none is due.

    Skips targets of the accounts `excluded`. The claim expires `lease_s` seconds after `now`. If nobody requested the
    validation of a target and it is not needed yet, it is postponed.
    """
    due = TargetRow.select().where(TargetRow.validation_due_at <= now).order_by(TargetRow.validation_due_at)
    if excluded:
        due = due.where(TargetRow.account.not_in(list(excluded)))
    while (row := due.clone().first()) is not None:
        postponed_until = None if row.validation_asked_at is not None else _postponed_until(row, now)
        with transaction():
            if postponed_until is not None:
                unchanged = (TargetRow.validation_due_at == row.validation_due_at) & TargetRow.validation_asked_at.is_null()
                compare_and_swap(TargetRow, row.id, unchanged, validation_lease=None, validation_due_at=postponed_until)
            # Another worker, a request or its withdrawal may have won.
            elif lease := _jobs.claim(row.id, row.validation_due_at, now, lease_s):
                # The target may have been edited since the row was read.
                return _job(TargetRow.get_by_id(row.id), lease)
    return None


def finish(job: ValidationJob, validation: Validation, now: datetime, worker: str) -> bool:
    """Store the result of a validation; return False if its lease expired and another worker has claimed the target."""
    with transaction():
        if not _jobs.finish(job.target_id, job.lease, due_at=now + VALID_FOR, validation_asked_at=None):
            return False
        targets.record_validation(job.target_id, None, validation, now, worker)
    return True


def postpone(job: ValidationJob, until: datetime) -> None:
    """Give a claimed target back without a validation, due again at `until`; a client that waits for it keeps waiting."""
    with transaction():
        _jobs.finish(job.target_id, job.lease, due_at=until)


def _job(row: TargetRow, lease: str) -> ValidationJob:
    return ValidationJob(row.id, targets.account_of(row), row.base_url, lease, row.secret_sealed, options_of(row))


def _postponed_until(row: TargetRow, now: datetime) -> datetime | None:
    """Return until when a target needs no validation unless one is requested; None if it must be validated now."""
    has_failed = row.validation_status == FAILED
    held_until: datetime | None = row.held_until
    if held_until is not None and held_until > now:
        return held_until
    if row.status not in ENABLED:
        return now + (REVALIDATE_AT_MOST if has_failed else VALID_FOR)
    if has_failed:
        return None
    valid_until = None if row.last_success_at is None else row.last_success_at + VALID_FOR
    return valid_until if valid_until is not None and valid_until > now else None
