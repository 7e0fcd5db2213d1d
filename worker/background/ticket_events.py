"""Forms ticket events from the changes that scan runs found, and delivers them like exports: signed, retried, throttled.

Events of one ticket are sent one after the other. An event affects its target as an export does, but no event affects its
export. No database connection is held during the request.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from runtime.account_shares import AccountId
from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import format_rfc3339
from schemas.exports.delivery import Outcome, TargetEffect, Verdict
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.exports.tickets.tracker_ticket import event_of
from schemas.targets.throttle_state import WorkerShare
from schemas.trackers.events import TrackerEventAction
from schemas.trackers.registry import GENERIC_WEBHOOK
from schemas.url_policy.addresses import address_class
from storage.db import identifiers
from storage.db.engine import connection, transaction
from storage.exports.events import deliveries, forming
from storage.exports.events.deliveries import EventJob, EventResult
from storage.targets import throttle_state_sql
from worker import outages
from worker.background.account_tasks import LEASE_MARGIN_S
from worker.delivery import throttle
from worker.delivery.attempt import random_jitter
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.lease_keeper import DEFER_CLAIMS_FACTOR
from worker.delivery.options import RENEW_S
from worker.delivery.outcomes import Schedule, Try, decide_outcome
from worker.delivery.throttle_writer import SentEffect, log_events, write_effects
from worker.delivery.tracker_outcomes import decide_tracker_outcome
from worker.http.signed_request import SignedPost, message_to, new_nonce
from worker.trackers.runner import TrackerRunner
from worker.trackers.session import TrackerResult

#: Events wait for a minute before they are formed: a second more is not noticed.
POLL_S: Final = 1.0
#: How long an event waits after the address policy refused its target. Resuming the target makes the event due earlier.
_BLOCKED_WAIT: Final = timedelta(minutes=1)
#: Claims tried in a row, while other workers claim the same events or rate limits are used up.
_TRIES: Final = 8

#: Results that record that RiskRelay closed or reopened the issue.
_MOVES: Final = (TrackerEventAction.CLOSED, TrackerEventAction.REOPENED)

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How events are formed and sent; an attempt is leased for `lease_s` seconds."""

    schedule: Schedule
    settle_s: float
    lease_s: float
    worker: str
    now: Callable[[], datetime]
    public_base_url: str | None = None
    jitter: Callable[[], float] = random_jitter


def form_events(options: EventOptions) -> bool:
    """Form the events of a batch of tickets, or postpone events that cannot be sent; return whether there may be more."""
    now = options.now()
    with connection():
        run = forming.next_run(now, options.settle_s)
        if run is not None:
            forming.form(run, now)
            return True
        return deliveries.postpone_unsendable(now, options.schedule.max_age, options.worker) == deliveries.POSTPONED_AT_ONCE


@dataclass(slots=True)
class EventTask:
    """Claims and sends events; those for trackers go through `trackers`."""

    signed_post: SignedPost
    trackers: TrackerRunner
    options: EventOptions
    #: A clock guard of its own: leases of events are not renewed, so claims wait longer after a clock step than those of
    #: exports.
    clock: ClockGuard
    #: Whether leases may last too long: those of a worker that died before the clock was set back.
    _has_long_leases: bool = field(default=True, init=False)

    def claim(self, excluded: Collection[AccountId] = ()) -> EventJob | None:
        """Claim the event that has been due longest, of any account but those `excluded`; called by one thread at a time."""
        with connection():
            self._check_clock()
            for _ in range(_TRIES):
                now = self.options.now()
                if not self.clock.allows_claims() or self.clock.was_set_since_check(now):
                    return None
                due = deliveries.next_due(now, excluded)
                if due is None:
                    return None
                claimed = self._claim(due, now)
                if claimed is not None:
                    return claimed
        return None

    def send(self, event: EventJob) -> None:
        """Send an event that was claimed, and store the result with its effect on the target."""
        started_at, nonce = self.options.now(), new_nonce()
        attempt_id = identifiers.new_id(identifiers.ATTEMPT, started_at)
        outcome, verdict, done = self._attempt(event, attempt_id, nonce, started_at)
        record = _record(event, attempt_id, nonce, started_at, outcome, verdict)
        gives_up_at = time.monotonic() + LEASE_MARGIN_S
        # Retried, because the response is stored nowhere else.
        outages.retry_database(partial(self._store, event, record, verdict, done), lambda: time.monotonic() > gives_up_at)
        fields = {"export_id": event.export_id, "event_id": event.id, "target_id": event.target_id}
        _log.info("%s %s", event.type.value, verdict.outcome, extra={**fields, "error": verdict.error_code})

    def _check_clock(self) -> None:
        """Shorten leases after the clock was set back; after it was set ahead, claim nothing for the length of a lease."""
        step_s = self.clock.check(compare=False)
        if step_s:
            # After a step ahead, leases of requests that are still open seem to have expired. After a step back, shortened
            # leases would seem expired to workers that have not noticed it.
            self.clock.defer_claims(self.options.lease_s if step_s > 0 else DEFER_CLAIMS_FACTOR * RENEW_S)
            self._has_long_leases |= step_s < 0
        if self._has_long_leases and self.clock.allows_claims():
            deliveries.shorten_leases(self.options.now(), self.options.lease_s)
            self._has_long_leases = False

    def _store(self, event: EventJob, record: Mapping[str, Any], verdict: Verdict, done: str | None) -> None:
        """Store the result of an attempt with its effect on the target."""
        now = self.options.now()
        result = EventResult(record, *_status_after(verdict, now), verdict.error_code, done, verdict.is_outcome_unknown)
        with connection(), transaction():
            is_recorded = deliveries.record_attempt(event, result, now, self.options.worker)
            settings = event.options.provider_settings
            sent = SentEffect(verdict.effect, event.base_url, event.secret_sealed, settings)
            # An event that the tracker skipped sent nothing, so it must not count as an attempt without a delivery.
            is_silent = done == TrackerEventAction.SKIPPED.value and verdict.effect == TargetEffect()
            effects = {event.target_id: [sent]} if is_recorded and not is_silent else {}
            written = write_effects(effects, now, self.options.worker)
        log_events(written.events)

    def _claim(self, due: EventJob, now: datetime) -> EventJob | None:
        """Claim an event if its target's throttle allows a request; None if it must wait, or another worker has it."""
        with transaction():
            state = throttle_state_sql.read([due.target_id], locked=True)[due.target_id]
            if deliveries.count_open(due.target_id, now) >= throttle.slots(state, WorkerShare(), now):
                return None
            if not throttle.rate_allowance(state, now):
                deliveries.postpone(due, throttle.rate_allows_from(state) or now + timedelta(seconds=POLL_S))
                return None
            claimed = deliveries.claim(due, now, self.options.lease_s)
            if claimed is not None and state.max_per_minute is not None:
                throttle_state_sql.write([throttle.use_rate_allowance(state, _writes(due), now)])
            return claimed

    def _attempt(self, event: EventJob, attempt_id: str, nonce: str, at: datetime) -> tuple[Outcome, Verdict, str | None]:
        """Return the outcome, its consequences, and the action at a tracker."""
        is_lost = self.options.schedule.is_exceeded(event.attempts)
        if event.options.provider_key == GENERIC_WEBHOOK:
            message = message_to(event, attempt_id, event.id, event.body, at, nonce)
            outcome = Outcome(error="worker_lost") if is_lost else self.signed_post.send(message)
            return outcome, decide_outcome(outcome, self._ended_try(event)), None
        result = TrackerResult(Outcome(error="worker_lost")) if is_lost else self._apply(event)
        outcome = result.outcome._replace(body_sha256=hashlib.sha256(event.body).hexdigest())
        done = result.value.value if isinstance(result.value, TrackerEventAction) else None
        return outcome, decide_tracker_outcome(result, self._ended_try(event)), done

    def _ended_try(self, event: EventJob) -> Try:
        options, now = self.options, self.options.now()
        return Try(event.attempts, options.schedule, _schedule_began_at(event, now), now, options.jitter())

    def _apply(self, event: EventJob) -> TrackerResult:
        """Apply an event to the issue of its ticket."""
        with connection():
            done, has_moved = deliveries.earlier_results(event), deliveries.has_moved(event)
        moved = [each for each in done if each in _MOVES]
        applied = event_of(
            event.body,
            self.options.public_base_url,
            event.provider_ticket_id,
            has_closed=bool(moved) and moved[-1] == TrackerEventAction.CLOSED,
            is_left_alone=TrackerEventAction.LEFT_ALONE in done,
            is_outcome_unknown=event.is_outcome_unknown,
            has_moved=has_moved,
        )
        return self.trackers.apply_event(event, applied)


def _schedule_began_at(event: EventJob, now: datetime) -> datetime:
    """Return when the first retryable attempt of an event began: before, the event may have waited for its target."""
    retried = [each["started_at"] for each in event.attempt_records if each["outcome"] == "retryable"]
    return datetime.fromisoformat(retried[0]) if retried else now


def _writes(event: EventJob) -> int:
    """Return how many requests of an event change the tracker: to add a comment, and to close or reopen the issue."""
    is_move = event.type in {TicketEventType.FIXED, TicketEventType.REOPENED}
    return 2 if is_move and json.loads(event.options.provider_settings).get("on_fixed") == "close" else 1


def _status_after(verdict: Verdict, now: datetime) -> tuple[TicketEventStatus, datetime | None]:
    """Return the status of an event after an attempt, and when the next one is due."""
    if verdict.transition is Transition.DELIVER:
        return TicketEventStatus.DELIVERED, None
    if verdict.transition is Transition.FAIL:
        return TicketEventStatus.FAILED, None
    return TicketEventStatus.PENDING, verdict.next_attempt_at or now + _BLOCKED_WAIT


def _record(
    event: EventJob, attempt_id: str, nonce: str, started_at: datetime, outcome: Outcome, verdict: Verdict
) -> dict[str, Any]:
    """Return the record of an attempt that its event stores, with the fields that receipts show of an export's attempts."""
    return {
        "id": attempt_id,
        "number": event.attempts,
        "started_at": format_rfc3339(started_at),
        "outcome": verdict.outcome,
        "response_status": outcome.status,
        "error_code": verdict.error_code,
        "retry_after_seconds": verdict.retry_after_s,
        "duration_ms": outcome.timings.total_ms,
        "nonce": nonce,
        "signature": outcome.signature,
        "address_class": None if outcome.address is None else address_class(outcome.address),
        "body_sha256": outcome.body_sha256,
        "response_sha256": outcome.response_sha256,
    }
