"""Pings: requested by a client, sent by one worker, ended once.

A ping is sent at most once: its start and its end are each a compare-and-swap. If no worker started a ping in time, the
request cancels it, so that nothing is sent after the client has its response.
"""

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.errors import Conflict
from schemas.targets.pings import NO_WORKER, STALE_AFTER_S, WORKER_LOST, Ping, PingJob, PingResult
from schemas.targets.target import PINGABLE
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.engine import transaction
from storage.db.leases import compare_and_swap
from storage.db.models import PingRow, TargetRow
from storage.db.queries import tuples
from storage.targets import targets
from storage.targets.delivery_options import job_columns, options_of, read_job

#: How long a repeated keyed request gets the same ping. Afterwards the stored response is enough.
_SHARED_FOR: Final = timedelta(hours=1)

_IS_UNFINISHED: Final = PingRow.finished_at.is_null()
#: A write that expects this may lose to another worker, or to the request that cancels the ping.
_IS_WAITING: Final = PingRow.started_at.is_null() & _IS_UNFINISHED


def request(target_id: str, account_id: int, now: datetime, actor: str, request_sha256: str | None = None) -> str:
    """Store a ping of one of the account's targets for a worker and return its id.

    If the same keyed request, identified by its digest, comes again, returns the id of its first ping.
    Raises TargetNotFound, Conflict for a target that is disabled or has no secret to sign with.
    """
    ping_id = identifiers.new_id(identifiers.PING, now)
    with transaction():
        _require_pingable(target_id, account_id)
        same_request = PingRow.request_sha256 == request_sha256
        if request_sha256 is not None:
            PingRow.update(request_sha256=None).where(same_request, PingRow.requested_at < now - _SHARED_FOR).execute()
        new = PingRow.insert(id=ping_id, target=target_id, request_sha256=request_sha256, requested_at=now)
        if not new.on_conflict(action="NOTHING", conflict_target=[PingRow.request_sha256]).as_rowcount().execute():
            return str(PingRow.get(same_request).id)
        append(now, actor, "ping_target", target_id)
    return ping_id


def draft(target_id: str, now: datetime) -> PingJob:
    """Return a ping that is not stored, so that no worker sends it. Raises TargetNotFound, Conflict as `request` does."""
    _require_pingable(target_id, None)
    row, ping_id = TargetRow.get_by_id(target_id), identifiers.new_id(identifiers.PING, now)
    return PingJob(ping_id, now, row.id, row.__data__["account"], row.name, row.base_url, row.secret_sealed, options_of(row))


def get(ping_id: str) -> Ping:
    """Return a stored ping."""
    row = PingRow.get_by_id(ping_id)
    return Ping(ping_id, row.started_at is not None, None if row.finished_at is None else _result(row))


def latest(target_id: str) -> tuple[datetime, PingResult] | None:
    """Return when a target's newest finished ping ended, and its result; None if no finished ping is stored."""
    finished = PingRow.select().where(PingRow.target == target_id, PingRow.finished_at.is_null(False))
    row = finished.order_by(PingRow.id.desc()).first()
    return None if row is None else (row.finished_at, _result(row))


def cancel_unstarted(ping_id: str, now: datetime) -> bool:
    """Cancel a ping that no worker has started; return whether it was cancelled in time."""
    return _end(ping_id, PingResult(False, error_code=NO_WORKER), now, _IS_WAITING)


def stop_waiting(ping_id: str, now: datetime) -> bool:
    """Stop waiting for a ping that a worker has started; return whether the ping had not ended yet."""
    return finish(ping_id, PingResult(False, error_code=WORKER_LOST), now)


def claim_next(now: datetime, excluded: Collection[int | None] = ()) -> PingJob | None:
    """Claim the ping that has waited longest; None if none waits. Ends pings that are too old without sending them.

    Skips pings of the accounts `excluded`.
    """
    shown = job_columns(PingJob, PingRow, account_id=TargetRow.account, target_name=TargetRow.name)
    waiting = PingRow.select(TargetRow.status, *shown).join(TargetRow).where(_IS_WAITING)
    if excluded:
        waiting = waiting.where(TargetRow.account.not_in(list(excluded)))
    while found := tuples(waiting.order_by(PingRow.requested_at).limit(1)):
        [(status, *values)] = found
        job = read_job(PingJob, values)
        is_stale = now - job.requested_at > timedelta(seconds=STALE_AFTER_S)
        # The target may have been turned off since the request.
        if is_stale or status not in PINGABLE:
            obstacle = NO_WORKER if is_stale else f"target_{status}"
            _end(job.id, PingResult(False, error_code=obstacle), now, _IS_WAITING)
            continue
        with transaction():
            if compare_and_swap(PingRow, job.id, _IS_WAITING, started_at=now):
                return job
    return None


def finish(ping_id: str, result: PingResult, now: datetime) -> bool:
    """Store the result of a ping; return False if it already has one."""
    return _end(ping_id, result, now, _IS_UNFINISHED)


def _require_pingable(target_id: str, account_id: int | None) -> None:
    status = targets.get(target_id, None, account_id).status
    if status not in PINGABLE:
        raise Conflict(f"Target {target_id} is {status}; ping needs the status {' or '.join(sorted(PINGABLE))}.")


def _result(row: PingRow) -> PingResult:
    return PingResult(bool(row.delivered), row.response_status, row.error_code, row.duration_ms)


def _end(ping_id: str, result: PingResult, now: datetime, expected: Any) -> bool:
    with transaction():
        return compare_and_swap(PingRow, ping_id, expected, finished_at=now, **asdict(result))
