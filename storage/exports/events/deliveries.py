"""Deliveries of events: claim, give back, record an attempt. Events of one export are delivered one after the other.

An event waits until its ticket is delivered and its target accepts deliveries. Each write after the claim names the lease.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from peewee import SQL, Case, fn

from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket_events import TicketEventStatus, body_for
from schemas.targets.delivery_options import DeliveryOptions
from schemas.targets.target import TargetStatus
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db.engine import transaction
from storage.db.leases import LeasedJobs, compare_and_swap
from storage.db.models import AuditEntryRow, ExportRow, TargetRow, TicketEventRow
from storage.db.queries import scalars, tuples
from storage.targets.changes import MOVE_TARGET
from storage.targets.delivery_options import OPTION_FIELDS, job_columns, options_from, read_job

#: How many events that cannot be sent now are postponed in one transaction.
POSTPONED_AT_ONCE: Final = 500
#: Bounds of the time until a postponed event is checked again; the longer it has waited, the longer the time.
_LONGEST_WAIT_S: Final = 600
_SHORTEST_WAIT_S: Final = 5

#: How long before an attempt its target may have been read, with room for different clocks of hosts.
_READ_BEFORE_ATTEMPT_MS: Final = 60_000

#: A rate limit up to this value allows one request at a time; a higher limit allows the requests of one second at once.
_PER_MINUTE_OF_BURST: Final = 60
#: The error code of an event whose ticket was then sent to another target, which is not subscribed to such events.
RETRIED_ELSEWHERE: Final = "retried_elsewhere"

_JOBS: Final = LeasedJobs(TicketEventRow, due_at="due_at")
_IS_OPEN: Final = (TargetRow.status == TargetStatus.ACTIVE.value) & TargetRow.deleted_at.is_null()


class EventJob(NamedTuple):
    """A due event, its ticket and its target."""

    id: str
    account_id: int
    export_id: str
    target_id: str
    number: int
    type: TicketEventType
    body: bytes
    attempts: int
    attempt_records: list[dict[str, Any]]
    is_outcome_unknown: bool
    due_at: datetime
    created_at: datetime
    lease: str | None
    provider_ticket_id: str | None
    base_url: str
    secret_sealed: bytes | None
    options: DeliveryOptions


class EventResult(NamedTuple):
    """The result of an attempt of an event; `done` is what it changed at a tracker."""

    record: Mapping[str, Any]
    status: TicketEventStatus
    next_at: datetime | None
    error_code: str | None
    done: str | None
    is_outcome_unknown: bool


def next_due(now: datetime, excluded: Collection[int | None] = ()) -> EventJob | None:
    """Return the event that has been due longest and may be sent now, of any account that is not `excluded`."""
    shown = job_columns(EventJob, TicketEventRow, provider_ticket_id=ExportRow.provider_ticket_id)
    found = _due(now, *shown).where(_may_be_sent(now), _has_room(now), _is_first())
    if excluded:
        found = found.where(TicketEventRow.account.not_in(list(excluded)))
    for row in tuples(found.order_by(TicketEventRow.due_at).limit(1)):
        event = read_job(EventJob, row)
        # A lease means that the last attempt ended when the lease expired, with an unknown result.
        return event._replace(is_outcome_unknown=event.is_outcome_unknown or event.lease is not None)
    return None


def targets_to_spare(target_ids: Collection[str], now: datetime) -> set[str]:
    """Return those of the targets at which an event that may be sent has been due for longer than every export."""
    earlier = ExportRow.alias("earlier")
    is_behind = fn.EXISTS(
        earlier.select(SQL("1")).where(earlier.target == TicketEventRow.target, earlier.due_at <= TicketEventRow.due_at)
    )
    waiting = _due(now, TicketEventRow.target).where(TicketEventRow.target.in_(list(target_ids)))
    return {*scalars(waiting.where(_may_be_sent(now), _is_first(), ~is_behind))}


def claim(event: EventJob, now: datetime, lease_s: float) -> EventJob | None:
    """Claim an event for one attempt; None if another worker was first.

    Returns the event with its lease and with the present data of its target, which may have been edited since the event was
    read. The caller holds the transaction and a lock on the target.
    """
    lease = _JOBS.claim(event.id, event.due_at, now, lease_s, attempts=TicketEventRow.attempts + 1)
    if lease is None:
        return None
    target = TargetRow.select(TargetRow.base_url, TargetRow.secret_sealed, *OPTION_FIELDS)
    [(base_url, sealed, *options)] = tuples(target.where(TargetRow.id == event.target_id))
    return event._replace(
        lease=lease, attempts=event.attempts + 1, base_url=base_url, secret_sealed=sealed, options=options_from(options)
    )


def count_open(target_id: str, now: datetime) -> int:
    """Return how many events of a target are being sent."""
    is_open = _is_open_request(TicketEventRow, now)
    return int(TicketEventRow.select().where(TicketEventRow.target == target_id, is_open).count())


def shorten_leases(now: datetime, lease_s: float) -> None:
    """Shorten leases to `lease_s` seconds after `now`; after a clock was set back, some would be longer."""
    until = now + timedelta(seconds=lease_s)
    with transaction():
        is_late = (TicketEventRow.due_at > until) & TicketEventRow.lease.is_null(False)
        TicketEventRow.update(due_at=until).where(is_late).execute()


def postpone(event: EventJob, until: datetime) -> None:
    """Postpone an event that is not claimed, without an attempt."""
    with transaction():
        is_seen = TicketEventRow.due_at == event.due_at
        # An expired lease that stayed would count as an open request until then.
        ended = {"lease": None, "is_outcome_unknown": event.is_outcome_unknown}
        compare_and_swap(TicketEventRow, event.id, is_seen, due_at=until, **ended)


def earlier_results(event: EventJob) -> list[str]:
    """Return the actions of earlier events of the same ticket at its tracker, in order."""
    earlier = TicketEventRow.select(TicketEventRow.result).where(
        TicketEventRow.export == event.export_id, TicketEventRow.number < event.number, TicketEventRow.result.is_null(False)
    )
    return scalars(earlier.order_by(TicketEventRow.number))


def has_moved(event: EventJob) -> bool:
    """Return whether the target of an event may have got another address since its ticket was sent to the earlier one.

    A wrong True costs one read at the tracker.
    """
    move = AuditEntryRow
    # Earlier than the start of the delivering attempt: a target may have moved while its request was open.
    sent_at = ExportRow.last_attempt_at - _READ_BEFORE_ATTEMPT_MS
    since = ExportRow.select(sent_at).where(ExportRow.id == event.export_id)
    is_move = (move.subject_id == event.target_id) & (move.action == MOVE_TARGET) & (move.at >= since)
    return bool(move.select().where(is_move).exists())


def record_attempt(event: EventJob, result: EventResult, now: datetime, actor: str) -> bool:
    """Write an attempt of a claimed event and its effects; return whether the lease was still valid.

    When an event ends, its body is erased; its attempts keep the hash. The caller holds the transaction.
    """
    changes: dict[str, Any] = {
        "status": result.status.value,
        "attempt_records": [*event.attempt_records, dict(result.record)],
        "error_code": result.error_code,
        "result": result.done,
        "is_outcome_unknown": result.is_outcome_unknown,
    }
    has_ended = result.status is not TicketEventStatus.PENDING
    if has_ended:
        changes |= {"body": None, "finished_at": now}
    if not _JOBS.finish(event.id, str(event.lease), due_at=result.next_at, **changes):
        return False
    if has_ended:
        action, sha256 = f"{event.type.value}_{result.status.value}", result.record["body_sha256"]
        append_all([AuditEntry(to_ms(now), actor, action, event.export_id, None, None, event.id, sha256)])
    return True


def postpone_unsendable(now: datetime, max_age: timedelta, actor: str) -> int:
    """Postpone due events that cannot be sent now; end those that have waited too long or whose target is gone.

    Returns how many events these were, at most POSTPONED_AT_ONCE.
    """
    is_gone = TargetRow.deleted_at.is_null(False) | (TargetRow.status == TargetStatus.DISABLED.value)
    # While a target is turned off, an event waits for a person; then its ticket should be up to date. A redaction does not
    # wait so long: it has a legal deadline, and when it fails, a person is asked to erase the ticket.
    waits_for_person = (TargetRow.status != TargetStatus.ACTIVE.value) & (
        TicketEventRow.type != TicketEventType.REDACT.value
    )
    is_late = ~waits_for_person & (TicketEventRow.created_at <= now - max_age)
    error_code = Case(None, [(is_gone, "target_disabled"), (is_late, "attempts_exhausted")])
    # Most calls find nothing, and must not wait for other writers.
    due = _due(now, TicketEventRow.id, error_code).where(~_may_be_sent(now))
    found: dict[str, str | None] = dict(tuples(due.limit(POSTPONED_AT_ONCE)))
    if not found:
        return 0
    with transaction():
        _end({event_id: code for event_id, code in found.items() if code is not None}, now, actor)
        is_due = TicketEventRow.due_at <= now
        waiting = TicketEventRow.id.in_([event_id for event_id, code in found.items() if code is None])
        # The lease of a dead worker has expired. If it stayed, the event would count as an open request of its target.
        was_sent = TicketEventRow.is_outcome_unknown | TicketEventRow.lease.is_null(False)
        changes = {"due_at": _later(to_ms(now)), "lease": None, "is_outcome_unknown": was_sent}
        TicketEventRow.update(**changes).where(waiting, is_due).execute()
    return len(found)


def make_due(target_id: str, now: datetime) -> None:
    """Make the events due that wait for a target, unless they are being sent; redactions only after their first attempt.

    The caller holds the transaction.
    """
    waiting = (TicketEventRow.target == target_id) & (TicketEventRow.due_at > now) & TicketEventRow.lease.is_null()
    # Before its first attempt, a redaction may wait for the end of a request that it cancelled. If it waits for the target
    # instead, it is due within minutes anyway.
    is_unsent_redaction = (TicketEventRow.type == TicketEventType.REDACT.value) & (TicketEventRow.attempts == 0)
    TicketEventRow.update(due_at=now).where(waiting, ~is_unsent_redaction).execute()


def move_to_target(export_id: str, target_id: str, wanted: Collection[str], now: datetime) -> None:
    """Move the events of an export to the target at which it is retried, except events to which that is not subscribed.

    The events were never sent, because their ticket was not delivered. The caller holds the transaction and the lock of the
    export.
    """
    pending = (TicketEventRow.export == export_id) & (TicketEventRow.status == TicketEventStatus.PENDING.value)
    found = tuples(TicketEventRow.select(TicketEventRow.id, TicketEventRow.type, TicketEventRow.body).where(pending))
    bodies = [(event_id, body_for(body, target_id)) for event_id, kind, body in found if kind in wanted]
    if bodies:
        moved = {"target": target_id, "body": Case(TicketEventRow.id, bodies)}
        TicketEventRow.update(**moved).where(TicketEventRow.id.in_([event_id for event_id, _ in bodies])).execute()
    cancel(pending & (TicketEventRow.target != target_id), RETRIED_ELSEWHERE, now)


def cancel(condition: Any, error_code: str, now: datetime) -> None:
    """Cancel the events that match a condition, including those that are being sent. The caller holds the transaction."""
    ended = {"status": TicketEventStatus.CANCELLED.value, "body": None, "due_at": None, "lease": None, "finished_at": now}
    TicketEventRow.update(**ended, error_code=error_code).where(condition).execute()


def _end(error_codes: Mapping[str, str], now: datetime, actor: str) -> None:
    """End events that are still due, without an attempt; `error_codes` are by event."""
    if error_codes:
        row, code = TicketEventRow, Case(TicketEventRow.id, [*error_codes.items()])
        changes = {"status": TicketEventStatus.FAILED.value, "error_code": code, "body": None, "finished_at": now}
        is_due = row.id.in_([*error_codes]) & (row.due_at <= now)
        ended = row.update(**changes, due_at=None, lease=None).where(is_due).returning(row.id, row.export, row.type)
        failed = [
            AuditEntry(to_ms(now), actor, f"{each.type.value}_failed", each.export_id, reason=each.id) for each in ended
        ]
        append_all(failed)


def _due(now: datetime, *selected: Any) -> Any:
    query = TicketEventRow.select(*selected).join(TargetRow).switch(TicketEventRow).join(ExportRow)
    return query.where(TicketEventRow.due_at <= now)


def _may_be_sent(now: datetime) -> Any:
    """Return the condition that the ticket is delivered and its target accepts deliveries now."""
    is_held = TargetRow.held_until.is_null(False) & (TargetRow.held_until > now)
    is_delivered = (ExportRow.status == ExportStatus.EXPORTED.value) & (ExportRow.target == TicketEventRow.target)
    return _IS_OPEN & ~is_held & is_delivered


def _has_room(now: datetime) -> Any:
    """Return the condition that the target's rate limit, ramp and concurrency allow a request, as far as SQL can check it.

    Otherwise, the events of a target that has to wait would be read again and again, before those of all other targets.
    """
    interval_us = 60_000_000 / TargetRow.max_per_minute
    spare_us = Case(None, [(TargetRow.max_per_minute > _PER_MINUTE_OF_BURST, 1_000_000 - interval_us)], 0)
    is_paced = fn.COALESCE(TargetRow.paced_until > 1000 * to_ms(now) + spare_us, SQL("FALSE"))
    other = TicketEventRow.alias("open_request")
    is_open = (other.target == TicketEventRow.target) & _is_open_request(other, now)
    count = other.select(fn.COUNT(other.id)).where(is_open)
    # A fraction of the concurrency is progress to the next whole number.
    return ~is_paced & (TargetRow.ramp > count) & (TargetRow.concurrency - 1 >= count)


def _is_open_request(event: Any, now: datetime) -> Any:
    return event.lease.is_null(False) & (event.due_at > now)


def _is_first() -> Any:
    """Return the condition that no earlier event of the same ticket is pending."""
    other = TicketEventRow.alias("other")
    is_earlier = (other.export == TicketEventRow.export) & (other.number < TicketEventRow.number)
    is_pending = other.status == TicketEventStatus.PENDING.value
    return ~fn.EXISTS(other.select(SQL("1")).where(is_earlier, is_pending))


def _later(now_ms: int) -> Any:
    """Return when a waiting event is checked again: after a quarter of the time that it has waited, within bounds."""
    waited = now_ms - TicketEventRow.created_at
    is_long = TicketEventRow.created_at <= now_ms - 4 * 1000 * _LONGEST_WAIT_S
    return Case(None, [(is_long, now_ms + 1000 * _LONGEST_WAIT_S)], now_ms + 1000 * _SHORTEST_WAIT_S + waited / 4)
