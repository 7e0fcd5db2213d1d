"""Validations of targets: requested, due a day after the last response of a target, or sooner after a failed one.

One worker at a time validates a target: it claims it by compare-and-swap, under a lease, and the holder of that lease writes
the result. If a worker dies, the lease lapses and the target is due again. A request takes back what no worker claimed in
time, and records its own finding. Targets that are turned off are validated only on request.
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

#: When a requested validation is due: at once by any worker's clock, and before those that are due by themselves.
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
    """A requested validation, as its request sees it."""

    has_begun: bool
    is_over: bool


def request(target_id: str, account_id: int | None, now: datetime, actor: str) -> datetime:
    """Let a worker validate one of the account's targets; return since when that is requested, perhaps by another request.

    Raises TargetNotFound.
    """
    with transaction():
        targets.get(target_id, None, account_id)
        # A request while another one waits, or while a worker validates, gets the same result.
        first = fn.COALESCE(TargetRow.validation_asked_at, to_ms(now))
        due_at = Case(None, [(TargetRow.validation_lease.is_null(), _AT_ONCE)], TargetRow.validation_due_at)
        # A removal may have won since the read.
        if not compare_and_swap(
            TargetRow, target_id, targets.IS_PRESENT, validation_asked_at=first, validation_due_at=due_at
        ):
            raise TargetNotFound
        append(now, actor, "ask_validation", target_id)
        requested_at: datetime = TargetRow.get_by_id(target_id).validation_asked_at
    return requested_at


def draft(target_id: str) -> ValidationJob:
    """Return a validation under no lease, whose result is not stored. Raises TargetNotFound."""
    return _job(targets.find_row(target_id), "")


def get(target_id: str, requested_at: datetime, now: datetime) -> RequestedValidation:
    """Return the state of the validation that is requested since `requested_at`."""
    row = TargetRow.get_by_id(target_id)
    has_begun = row.validation_lease is not None and row.validation_due_at > now
    return RequestedValidation(has_begun, is_over=row.validation_asked_at != requested_at)


def cancel_unstarted(target_id: str, requested_at: datetime, now: datetime, actor: str) -> bool:
    """Take back a validation that no worker has begun; return whether that was in time.

    The request's own finding is recorded then: nothing against the target.
    """
    has_not_begun = TargetRow.validation_lease.is_null() | (TargetRow.validation_due_at <= now)
    return stop_waiting(target_id, requested_at, now, actor, has_not_begun)


def stop_waiting(target_id: str, requested_at: datetime, now: datetime, actor: str, *expected: Any) -> bool:
    """Take back a validation that may have begun, if `expected` holds; the worker's result still counts if it returns.

    What is returned and recorded is as in `cancel_unstarted`.
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
    """Claim the target whose validation is due longest, requested ones first; None where none is due.

    Targets of the accounts `excluded` are left alone. The claim lapses `lease_s` seconds after `now`. Targets that need no
    validation by themselves are postponed.
    """
    due = TargetRow.select().where(TargetRow.validation_due_at <= now).order_by(TargetRow.validation_due_at)
    if excluded:
        due = due.where(TargetRow.account.not_in(list(excluded)))
    while (row := due.clone().first()) is not None:
        spared_until = None if row.validation_asked_at is not None else _spared_until(row, now)
        with transaction():
            if spared_until is not None:
                unchanged = (TargetRow.validation_due_at == row.validation_due_at) & TargetRow.validation_asked_at.is_null()
                compare_and_swap(TargetRow, row.id, unchanged, validation_lease=None, validation_due_at=spared_until)
            # Another worker, a request or its withdrawal may have won.
            elif lease := _jobs.claim(row.id, row.validation_due_at, now, lease_s):
                # Somebody may have edited it since it was read.
                return _job(TargetRow.get_by_id(row.id), lease)
    return None


def finish(job: ValidationJob, validation: Validation, now: datetime, worker: str) -> bool:
    """Store the result of a validation; False where its lease lapsed and another worker has claimed the target."""
    with transaction():
        if not _jobs.finish(job.target_id, job.lease, due_at=now + VALID_FOR, validation_asked_at=None):
            return False
        targets.record_validation(job.target_id, None, validation, now, worker)
    return True


def postpone(job: ValidationJob, until: datetime) -> None:
    """Give a claimed target back unvalidated, due again at `until`; a client that waits for it goes on waiting."""
    with transaction():
        _jobs.finish(job.target_id, job.lease, due_at=until)


def _job(row: TargetRow, lease: str) -> ValidationJob:
    return ValidationJob(row.id, targets.account_of(row), row.base_url, lease, row.secret_sealed, options_of(row))


def _spared_until(row: TargetRow, now: datetime) -> datetime | None:
    """Return until when a target needs no validation by itself; None where it is to be validated now."""
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
