"""Alerts and their messages: one row for each cause, and one row for each channel until its message is sent.

An alert opens, recovers and opens again. Each message about it is queued by a compare-and-swap of the last message's time,
so that all workers together queue at most one message in QUIET_FOR. An acknowledged alert sends no message until it opens
again or gets worse.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from peewee import EXCLUDED, chunked

from schemas.alerts.alert import QUIET_FOR, Alert, AlertCause, AlertState
from schemas.base.errors import NotFound
from schemas.settings.alert_channels import AlertChannel, AlertKind
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.columns import columns, read, values_of
from storage.db.engine import transaction
from storage.db.leases import JobLease, LeasedJobs, compare_and_swap
from storage.db.models import AlertMessageRow, AlertRow
from storage.db.queries import for_update, newest_first, tuples, where_given
from storage.reporting import alert_causes
from storage.reporting.alert_causes import AlertSources, OpenAlert

#: How many open alerts a page shows.
MAX_OPEN: Final = 200
#: How many alerts a message is about; it names a few and counts the others.
MAX_AT_ONCE: Final = 1_000
#: A message that no channel has accepted for this long is dropped.
DROPPED_AFTER: Final = timedelta(hours=24)
#: How long an acknowledgement covers further failed exports of a target.
ACKNOWLEDGED_FOR: Final = timedelta(days=1)

#: How many rows one statement writes.
_ROWS_AT_ONCE: Final = 500
#: Seconds until the next attempt to send a message.
_RETRY_S: Final = (60, 300, 900, 3600)
#: Clocks of hosts differ by seconds. A time that is further in the future comes from a wrong clock.
_SKEW: Final = timedelta(minutes=1)
#: No retry is due later than this, and no lease lasts longer.
_LONGEST_WAIT: Final = timedelta(seconds=_RETRY_S[-1]) + _SKEW

_jobs: Final = LeasedJobs(AlertMessageRow)

#: The columns of an alert that nobody has acknowledged.
_UNACKNOWLEDGED: Final = {"acknowledged_at": None, "acknowledged_by": None}
#: The columns that change, besides details and time, when an alert opens again.
_OPENED: Final = {"state": EXCLUDED.state, "first_at": EXCLUDED.first_at, "count": AlertRow.count + 1, **_UNACKNOWLEDGED}

#: Builds the body of a message from its id and its alerts.
MakeBody = Callable[[str, Sequence[Alert]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message that this worker sends."""

    lease: JobLease
    channel: str
    body: dict[str, Any]
    attempts: int
    created_at: datetime


def update(sources: AlertSources, channels: Sequence[AlertChannel], make_body: MakeBody, now: datetime) -> None:
    """Open and close alerts by the causes that exist at `now`, and queue messages for the channels.

    The caller holds Lock.ALERTS. Without changes, nothing is written.
    """
    known = _known(sources.kinds)
    causes = {cause.key: cause for cause in alert_causes.find(sources, known, now)}
    opened = [cause for key, cause in causes.items() if key not in known]
    pairs = [(cause, known[key]) for key, cause in causes.items() if key in known]
    news = [(cause, alert) for cause, alert in pairs if cause.is_news(alert.last_at, alert.details)]
    repeated = [cause for cause, _ in news]
    unacknowledged = [cause for cause, alert in news if _is_beyond_acknowledgement(cause, alert, now)]
    confirmed = [cause for cause, alert in pairs if alert_causes.needs_confirmation(cause, alert, now)]
    over = known.keys() - causes.keys() - alert_causes.possibly_open(known, causes.values(), now)
    needs_summary = AlertKind.WEEKLY in sources.kinds and not _has_summary(now)
    summaries = [alert_causes.weekly_summary(len(known), now)] if needs_summary else []
    if opened or repeated or confirmed or over or summaries:
        with transaction():
            _store(opened, now, **_OPENED)
            # A confirmation is no news, so no message follows.
            _store(confirmed, now, last_at=AlertRow.last_at)
            _store(repeated, now)
            _store(unacknowledged, now, **_UNACKNOWLEDGED)
            _close(sorted(over), now)
            _insert_summary(summaries, now)
    unsent = _unsent(sources.kinds, now)
    if tuples(unsent.limit(1)):
        _queue(unsent, channels, make_body, now)


def claim_message(now: datetime, lease_s: float) -> ClaimedMessage | None:
    """Claim the message that has waited longest; None if no message is due. Deletes messages that are too old."""
    m = AlertMessageRow
    is_too_late = m.next_run_at > now + _LONGEST_WAIT
    if not _jobs.any_waiting(now) and not tuples(m.select(m.id).where(is_too_late).limit(1)):
        return None
    with transaction():
        m.update(next_run_at=now).where(is_too_late).execute()
        m.delete().where(m.next_run_at <= now, m.created_at < now - DROPPED_AFTER).execute()
        lease = _jobs.claim_oldest(now, lease_s, attempts=m.attempts + 1)
        if lease is None:
            return None
        [held] = tuples(m.select(m.channel, m.body, m.attempts, m.created_at).where(m.id == lease.id))
    return ClaimedMessage(lease, *held)


def finish_message(held: ClaimedMessage, *, is_sent: bool, now: datetime) -> None:
    """Delete a message that was sent. If it was not sent, make it due again later, unless another worker holds it."""
    lease = held.lease
    with transaction():
        if is_sent:
            # Another worker may hold the lease now, but the message was sent.
            AlertMessageRow.delete().where(AlertMessageRow.id == lease.id).execute()
        else:
            wait_s = _RETRY_S[min(held.attempts, len(_RETRY_S)) - 1]
            _jobs.finish(lease.id, lease.lease, due_at=now + timedelta(seconds=wait_s))


def list_open(account_id: int | None = None, limit: int | None = MAX_OPEN) -> list[Alert]:
    """Return up to `limit` open alerts, latest first; with `account_id`, only of that account, else all."""
    own = where_given(_open_alerts(), (AlertRow.account, account_id))
    return read(Alert, own.order_by(AlertRow.last_at.desc()).limit(limit))


def list_recovered(limit: int, before: str | None = None, account_id: int | None = None) -> list[Alert]:
    """Return up to `limit` recovered alerts, newest first, older than the one with the id `before`."""
    recovered = _select().where(AlertRow.state == AlertState.RECOVERED.value)
    own = where_given(recovered, (AlertRow.account, account_id))
    return read(Alert, newest_first(own, AlertRow.id, limit, before))


def acknowledge(alert_id: str, account_id: int | None, now: datetime, actor: str) -> None:
    """Silence an open alert until it opens again. Raises NotFound if the alert belongs to another account."""
    is_unacknowledged = (AlertRow.state == AlertState.OPEN.value) & AlertRow.acknowledged_at.is_null()
    with transaction():
        known = where_given(AlertRow.select(AlertRow.id), (AlertRow.id, alert_id), (AlertRow.account, account_id))
        if not identifiers.is_id(identifiers.ALERT, alert_id) or not tuples(known):
            raise NotFound("There is no such alert; see `bin/riskrelay alert list`.")
        # The alert may have recovered, or somebody else may have acknowledged it first.
        if compare_and_swap(AlertRow, alert_id, is_unacknowledged, acknowledged_at=now, acknowledged_by=actor):
            append(now, actor, "acknowledge_alert", alert_id)


def _select() -> Any:
    return AlertRow.select(*columns(Alert, AlertRow, account_id=AlertRow.account))


def _open_alerts() -> Any:
    return _select().where(AlertRow.state == AlertState.OPEN.value)


def _known(kinds: Collection[AlertKind]) -> dict[str, OpenAlert]:
    """Return the open alerts of these kinds by their causes; nothing is known about causes of other kinds."""
    shown = _open_alerts().select(AlertRow.cause, *columns(OpenAlert, AlertRow))
    return {cause: OpenAlert(*row) for cause, *row in tuples(shown.where(_is_of(kinds)))}


def _is_beyond_acknowledgement(cause: AlertCause, alert: OpenAlert, now: datetime) -> bool:
    """Return whether a cause needs attention despite an acknowledgement: it got worse, or still occurs a day later."""
    is_old = alert.acknowledged_at is not None and alert.acknowledged_at <= now - ACKNOWLEDGED_FOR
    return cause.is_worse(alert.details) or (is_old and cause.happened_at is not None)


def _is_of(kinds: Collection[AlertKind]) -> Any:
    return AlertRow.kind.in_(sorted(kinds))


def _store(causes: Sequence[AlertCause], now: datetime, **changes: Any) -> None:
    """Insert alerts that open. For existing alerts, change the details, the time and the columns in `changes`."""
    changes = {"details": EXCLUDED.details, "last_at": EXCLUDED.last_at, **changes}
    for part in chunked([_row(cause, AlertState.OPEN, now) for cause in causes], _ROWS_AT_ONCE):
        AlertRow.insert_many(part).on_conflict(conflict_target=[AlertRow.cause], update=changes).execute()


def _row(cause: AlertCause, state: AlertState, now: datetime) -> dict[str, Any]:
    at = cause.happened_at or now
    own = {"id": identifiers.new_id(identifiers.ALERT, now), "cause": cause.key, "kind": cause.kind.value}
    return values_of(AlertRow, cause, **own, state=state.value, first_at=at, last_at=at, count=1)


def _close(causes: Sequence[str], now: datetime) -> None:
    is_open = AlertRow.state == AlertState.OPEN.value
    for part in chunked(causes, _ROWS_AT_ONCE):
        AlertRow.update(state=AlertState.RECOVERED.value, last_at=now).where(is_open, AlertRow.cause.in_(part)).execute()


def _has_summary(now: datetime) -> bool:
    return bool(tuples(AlertRow.select(AlertRow.id).where(AlertRow.cause == alert_causes.weekly_key(now))))


def _insert_summary(summaries: Sequence[AlertCause], now: datetime) -> None:
    # A summary has recovered at once, but has not been sent yet.
    rows = [_row(each, AlertState.RECOVERED, now) | {"sent_state": AlertState.OPEN.value} for each in summaries]
    if rows:
        AlertRow.insert_many(rows).on_conflict_ignore().execute()


def _unsent(kinds: Collection[AlertKind], now: datetime) -> Any:
    """Return the query for alerts whose state no message has reported, and without a message within QUIET_FOR.

    A message that a clock ahead of ours has queued hides later changes, so the alert is then sent once more.
    """
    a, is_open = AlertRow, AlertRow.state == AlertState.OPEN.value
    is_ahead = a.sent_at > now + _SKEW
    is_news = is_open & (a.sent_state.is_null() | (a.sent_state != a.state) | (a.last_at > a.sent_at) | is_ahead)
    is_over = (a.state == AlertState.RECOVERED.value) & (a.sent_state == AlertState.OPEN.value)
    may_be_sent = a.sent_at.is_null() | (a.sent_at <= now - QUIET_FOR) | is_ahead
    return _select().where(is_news | is_over, _is_of(kinds), may_be_sent, a.acknowledged_at.is_null())


def _queue(unsent: Any, channels: Sequence[AlertChannel], make_body: MakeBody, now: datetime) -> None:
    a = AlertRow
    with transaction():
        # The rows are locked: an acknowledgement waits, and no longer prevents this message.
        found = read(Alert, for_update(unsent.order_by(a.state, a.last_at.desc()).limit(MAX_AT_ONCE)))
        if not found:
            return
        for part in chunked([alert.id for alert in found], _ROWS_AT_ONCE):
            a.update(sent_at=now, sent_state=a.state).where(a.id.in_(part)).execute()
        waiting = []
        for channel in channels:
            message_id = identifiers.new_id(identifiers.ALERT_MESSAGE, now)
            own = {"id": message_id, "channel": channel.value, "body": make_body(message_id, found)}
            waiting.append({"attempts": 0, "next_run_at": now, "created_at": now, **own})
        if waiting:
            AlertMessageRow.insert_many(waiting).execute()
