"""Validations of targets: asked for by a request, or due by themselves a day after a target was last heard from.

One worker at a time looks at a target: it is claimed by compare-and-swap, under a lease, and who holds that lease writes
what was found. A worker that dies loses nothing: the lease lapses and the target is due again. Who asked takes back what no
worker took in time, and records what it found itself. Targets that are off are looked at only when somebody asks.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.targets.target import APPROVABLE, TargetStatus
from schemas.targets.validations import VALID_FOR, Validation
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.engine import execute, rows, transaction
from storage.targets import targets

#: When something is due that somebody waits for: at once by any worker's clock, and before whatever is due by itself.
_AT_ONCE: Final = 0

#: Who asks while another one waits, or while a worker is looking, hears what comes of that.
_ASK: Final = """
UPDATE targets SET validation_asked_at = COALESCE(validation_asked_at, ?),
    validation_due_at = CASE WHEN validation_lease IS NULL THEN ? ELSE validation_due_at END
WHERE id = ? RETURNING validation_asked_at"""

_DUE: Final = """
SELECT id, base_url, status, validation_due_at, validation_asked_at, last_success_at FROM targets
WHERE validation_due_at <= ? ORDER BY validation_due_at LIMIT 1"""

#: Who else might have won: another worker, somebody who asks, or who takes that back; each of them moves it.
_BEGIN: Final = """
UPDATE targets SET validation_lease = ?, validation_due_at = ? WHERE id = ? AND validation_due_at = ?"""
_MOVE_ON: Final = """
UPDATE targets SET validation_lease = NULL, validation_due_at = ?
WHERE id = ? AND validation_due_at = ? AND validation_asked_at IS NULL"""

_END: Final = """
UPDATE targets SET validation_lease = NULL, validation_asked_at = NULL WHERE id = ? AND validation_lease = ?"""

_TAKE_BACK: Final = "UPDATE targets SET validation_asked_at = NULL WHERE id = ? AND validation_asked_at = ?"
_HAS_NOT_BEGUN: Final = " AND (validation_lease IS NULL OR validation_due_at <= ?)"


@dataclass(frozen=True, slots=True)
class ValidationJob:
    """A target as a worker takes it for a look; `lease` is what it writes with."""

    target_id: str
    base_url: str
    lease: str


@dataclass(frozen=True, slots=True)
class RequestedValidation:
    """A look that was asked for, as its request sees it."""

    has_begun: bool
    is_over: bool


def request(target_id: str, account_id: int | None, now: datetime, actor: str) -> datetime:
    """Ask a worker to look at one of the account's targets; return since when that is asked for, perhaps by another one.

    Raises TargetNotFound.
    """
    with transaction():
        targets.get(target_id, None, account_id)
        [(asked_at,)] = rows(_ASK, (to_ms(now), _AT_ONCE, target_id))
        append(now, actor, "ask_validation", target_id)
    return from_ms(int(asked_at))


def get(target_id: str, asked_at: datetime, now: datetime) -> RequestedValidation:
    """Return what has become of the look that is asked for since `asked_at`."""
    [(asked_ms, lease, due_at)] = rows(
        "SELECT validation_asked_at, validation_lease, validation_due_at FROM targets WHERE id = ?", (target_id,)
    )
    return RequestedValidation(has_begun=lease is not None and due_at > to_ms(now), is_over=asked_ms != to_ms(asked_at))


def withdraw(target_id: str, asked_at: datetime, now: datetime, actor: str) -> bool:
    """Take back what no worker has begun, and tell whether that came in time.

    What the asker found itself is recorded then: nothing against the target.
    """
    return _take_back(_TAKE_BACK + _HAS_NOT_BEGUN, (target_id, to_ms(asked_at), to_ms(now)), now, actor)


def give_up(target_id: str, asked_at: datetime, now: datetime, actor: str) -> bool:
    """Wait no longer for a worker that has begun, as `withdraw` does; what it finds still counts should it come back."""
    return _take_back(_TAKE_BACK, (target_id, to_ms(asked_at)), now, actor)


def claim_next(now: datetime, lease_s: float) -> ValidationJob | None:
    """Take the target whose look is due longest, what is asked for first; None where none is.

    The claim lapses `lease_s` seconds after `now`. What need not be looked at by itself is moved on.
    """
    while found := rows(_DUE, (to_ms(now),)):
        target_id, base_url, status, due_at, asked_at, last_success_at = found[0]
        spared_until = None if asked_at is not None else _spared_until(status, from_ms(last_success_at), now)
        if spared_until is not None:
            _write(_MOVE_ON, (to_ms(spared_until), target_id, due_at))
            continue
        lease = identifiers.new_id(identifiers.LEASE, now)
        if _write(_BEGIN, (lease, to_ms(now + timedelta(seconds=lease_s)), target_id, due_at)):
            return ValidationJob(target_id, base_url, lease)
    return None


def finish(look: ValidationJob, validation: Validation, now: datetime, worker: str) -> bool:
    """Write what a look found; False where its lease lapsed and another worker has taken the target."""
    with transaction():
        if not execute(_END, (look.target_id, look.lease)):
            return False
        targets.record_validation(look.target_id, None, validation, now, worker)
    return True


def _spared_until(status: str, last_success_at: datetime | None, now: datetime) -> datetime | None:
    """Return until when a target need not be looked at by itself; None where it is to be looked at now."""
    if TargetStatus(status) not in APPROVABLE:
        return now + VALID_FOR
    heard_until = None if last_success_at is None else last_success_at + VALID_FOR
    return heard_until if heard_until is not None and heard_until > now else None


def _take_back(statement: str, parameters: tuple[Any, ...], now: datetime, actor: str) -> bool:
    with transaction():
        if not execute(statement, parameters):
            return False
        targets.record_validation(str(parameters[0]), None, Validation(), now, actor)
    return True


def _write(statement: str, parameters: tuple[Any, ...]) -> bool:
    with transaction():
        return bool(execute(statement, parameters))
