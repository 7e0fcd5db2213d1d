"""The causes of alerts: the problems that exist now, read every half minute from indexes and small tables.

This module writes nothing, and deliveries count nothing for it.
"""

import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from peewee import OP, SQL, Expression, fn

from schemas.alerts.alert import AlertCause
from schemas.base.timestamps import from_ms, to_ms
from schemas.settings.alert_channels import AlertKind
from schemas.targets.target import FAILING, TargetStatus
from schemas.targets.validations import FAILED
from schemas.triage.search_words import host_of
from storage.accounts import audit_chain
from storage.compliance import requests as compliance_requests
from storage.db.disk_space import DiskState, free_bytes, state_of
from storage.db.engine import database_folders
from storage.db.models import ApprovalRuleRow, DeliveryHourRow, ExportRow, InstallationRow, TargetRow
from storage.db.queries import tuples
from storage.exports import worker_heartbeats
from storage.exports.queries import last_error
from storage.reporting.metrics_snapshot import due_age_s
from storage.targets import targets

#: An active target is reported when its attempts have failed for this long, because a retry within seconds often succeeds.
FAILING_FOR: Final = timedelta(minutes=2)
#: A paused target is reported when an export has waited for this long: the target was paused by somebody, or by a restore,
#: and may have been forgotten.
PAUSED_FOR: Final = timedelta(days=1)
#: Only exports that failed within this time are reported.
FAILED_WITHIN: Final = timedelta(days=1)
#: How many failed exports of all targets are counted, the newest ones, because no index has them by target.
MAX_FAILED: Final = 10_000
#: How long before its legal deadline a compliance request is reported. Workers usually finish it within seconds.
DUE_WITHIN: Final = timedelta(days=7)
MAX_DUE: Final = 100
#: An export waits for this long only if no worker runs. Where a cron job delivers, no worker runs between two jobs.
OVERDUE_S: Final = 300.0
#: A worker that stops deletes its heartbeat. After this time, a worker with an old heartbeat was killed.
SILENT_FOR: Final = timedelta(minutes=1)

#: An alert about a disk is closed if its host has not confirmed it for this long.
CONFIRMED_FOR: Final = timedelta(hours=1)
_CONFIRM_EVERY: Final = timedelta(minutes=10)

_WEEK: Final = timedelta(days=7)
#: No host has an empty name, so this key is no host's.
_SHARED_DISK: Final = "disk:"
_OFF: Final = (TargetStatus.BLOCKED.value, TargetStatus.DISABLED.value)


@dataclass(frozen=True, slots=True)
class AlertSources:
    """The kinds of causes to check, and the settings that they depend on."""

    kinds: Collection[AlertKind]
    data_dir: Path
    backup_after: timedelta


class OpenAlert(NamedTuple):
    """The part of an open alert with which causes are compared."""

    kind: AlertKind
    last_at: datetime
    details: Mapping[str, Any]
    acknowledged_at: datetime | None = None

    def is_confirmed(self, within: timedelta, now: datetime) -> bool:
        """Return whether a disk's host confirmed the alert recently; a time from a clock that was ahead does not count."""
        confirmed_at = self.details.get("confirmed_at")
        return abs(now - (self.last_at if confirmed_at is None else from_ms(confirmed_at))) < within


def find(sources: AlertSources, known: Collection[str], now: datetime) -> list[AlertCause]:
    """Return every cause that exists at `now`, but not those of other hosts. `known` are the keys of open alerts."""
    readers: dict[AlertKind, Callable[[], Iterator[AlertCause]]] = {
        AlertKind.TARGET: lambda: _targets(now),
        AlertKind.EXPORTS: lambda: _exports(now),
        AlertKind.RULE: _rules,
        AlertKind.COMPLIANCE: lambda: _compliance(now),
        AlertKind.DISK: lambda: _disk(sources.data_dir, known, now),
        AlertKind.WORKER: lambda: _worker(now),
        AlertKind.BACKUP: lambda: _backup(sources.backup_after, now),
    }
    return [cause for kind, read in readers.items() if kind in sources.kinds for cause in read()]


def possibly_open(known: Mapping[str, OpenAlert], causes: Iterable[AlertCause], now: datetime) -> set[str]:
    """Return the keys of open alerts whose causes may still exist although they are not among `causes`.

    These are disks of other hosts, and failed exports of targets that are not among the newest MAX_FAILED.
    """
    own = _disk_key(socket.gethostname())
    is_cut = any(cause.kind is AlertKind.EXPORTS and cause.details["is_cut"] for cause in causes)
    return {
        key
        for key, alert in known.items()
        if (alert.kind is AlertKind.EXPORTS and is_cut)
        or (alert.kind is AlertKind.DISK and key != own and alert.is_confirmed(CONFIRMED_FOR, now))
    }


def needs_confirmation(cause: AlertCause, alert: OpenAlert, now: datetime) -> bool:
    """Return whether the details of an open alert must be stored again, so that no other host closes the alert."""
    return cause.kind is AlertKind.DISK and not alert.is_confirmed(_CONFIRM_EVERY, now)


def weekly_summary(open_alerts: int, now: datetime) -> AlertCause:
    """Return the summary of the last seven days; its key is the same for a whole week (ISO, UTC)."""
    d = DeliveryHourRow
    sums = d.select(fn.COALESCE(fn.SUM(d.delivered), 0), fn.COALESCE(fn.SUM(d.failed), 0)).where(d.hour_at >= now - _WEEK)
    [(delivered, failed)] = tuples(sums)
    head = audit_chain.head()
    details = {
        "anchor": f"{head.position}:{head.hash}" if head.position else None,
        "delivered": int(delivered),
        "failed": int(failed),
        "open_alerts": open_alerts,
        "targets": len(_target_rows(now)),
        "exports": sum(row[2] for row in _failed_by_target(now - _WEEK)),
    }
    return AlertCause(weekly_key(now), AlertKind.WEEKLY, details)


def weekly_key(now: datetime) -> str:
    """Return the key of the summary of a week."""
    year, week, _day = now.isocalendar()
    return f"weekly:{year}-W{week:02}"


def _targets(now: datetime) -> Iterator[AlertCause]:
    for target_id, account_id, name, base_url, status, reason, validation, validation_reason, code in _target_rows(now):
        is_off = status != TargetStatus.ACTIVE.value
        # A passed validation may have a reason too: the certificate expires soon.
        failed_by = validation_reason if validation == FAILED else None
        shown, why = (status, reason) if is_off else (FAILING, failed_by or code)
        details = {"name": name, "host": host_of(base_url) or "", "status": shown, "reason": why}
        yield AlertCause(f"target:{target_id}", AlertKind.TARGET, details, target_id, account_id)


def _target_rows(now: datetime) -> list[Any]:
    t = TargetRow
    is_failing = (t.status == TargetStatus.ACTIVE.value) & (t.connected_status == FAILING)
    is_long = t.failing_since.is_null() | (t.failing_since <= now - FAILING_FOR)
    shown = (t.id, t.account, t.name, t.base_url, t.status, t.status_reason, t.validation_status, t.validation_reason)
    # Not EXISTS, because PostgreSQL would then read all exports.
    waiting = ExportRow.select(ExportRow.due_at).where(ExportRow.target == t.id, ExportRow.due_at.is_null(False))
    first_due = waiting.order_by(ExportRow.due_at).limit(1)
    # The target lost its secret because settings changed or it moved to another server. No export is approved for a target
    # that never had a secret.
    is_unsigned = (t.status == TargetStatus.INACTIVE.value) & Expression(first_due, OP.IS_NOT, None)
    has_waited_long = (t.status == TargetStatus.PAUSED.value) & Expression(first_due, OP.LTE, to_ms(now - PAUSED_FOR))
    # All targets are read: there are thousands at most, and an index on these columns would be written with every attempt.
    is_wrong = t.status.in_(_OFF) | (is_failing & is_long) | is_unsigned | has_waited_long
    return tuples(t.select(*shown, last_error(t.id)).where(targets.IS_NOT_REMOVED, is_wrong))


def _exports(now: datetime) -> Iterator[AlertCause]:
    found = _failed_by_target(now - FAILED_WITHIN)
    # Then older failed exports, of any target, may not be counted.
    is_cut = sum(row[2] for row in found) >= MAX_FAILED
    for target_id, newest, count, account_id, name in found:
        details = {"name": name, "count": count, "is_cut": is_cut}
        yield AlertCause(f"exports:{target_id}", AlertKind.EXPORTS, details, target_id, account_id, from_ms(newest))


def _failed_by_target(since: datetime) -> list[Any]:
    x = ExportRow.alias("x")
    # Exactly the condition of the index exports_failed: with a parameter, neither database would use that index.
    newest = x.select(x.target, x.finished_at).where(SQL("status = 'failed'"), x.finished_at >= since)
    part = newest.order_by(x.finished_at.desc()).limit(MAX_FAILED).alias("part")
    t = TargetRow
    counted = t.select(t.id, fn.MAX(part.c.finished_at), fn.COUNT(SQL("*")), t.account, t.name)
    counted = counted.join(part, on=(part.c.target_id == t.id)).group_by(t.id, t.account, t.name)
    return [(target_id, int(at), int(count), *rest) for target_id, at, count, *rest in tuples(counted)]


def _rules() -> Iterator[AlertCause]:
    r = ApprovalRuleRow
    shown = (r.id, r.account, r.name, r.stopped_reason)
    for rule_id, account_id, name, reason in tuples(r.select(*shown).where(SQL("stopped_reason IS NOT NULL"))):
        yield AlertCause(f"rule:{rule_id}", AlertKind.RULE, {"name": name, "reason": reason}, rule_id, account_id)


def _compliance(now: datetime) -> Iterator[AlertCause]:
    for request in compliance_requests.list_due(now + DUE_WITHIN, MAX_DUE):
        details = {"topic": request.topic.value, "due_on": request.due_at.date().isoformat()}
        yield AlertCause(f"compliance:{request.id}", AlertKind.COMPLIANCE, details, request.id)


def _disk(data_dir: Path, known: Collection[str], now: datetime) -> Iterator[AlertCause]:
    """Yield the cause of this host; hosts without a worker share one, because a container may often change its host name."""
    state, host = state_of(free_bytes([data_dir, *database_folders()])), socket.gethostname()
    if state is DiskState.OK:
        return
    own = _disk_key(host)
    has_worker = own in known or worker_heartbeats.on_this_host_since_before(now, now)
    details = {"status": state.value, "host": host, "confirmed_at": to_ms(now)}
    yield AlertCause(own if has_worker else _SHARED_DISK, AlertKind.DISK, details)


def _disk_key(host: str) -> str:
    return f"disk:{host}"


def _worker(now: datetime) -> Iterator[AlertCause]:
    if worker_heartbeats.count_alive(now):
        return
    seen_at = worker_heartbeats.last_seen()
    if (seen_at is not None and now - seen_at > SILENT_FOR) or due_age_s(now) > OVERDUE_S:
        yield AlertCause("worker", AlertKind.WORKER)


def _backup(after: timedelta, now: datetime) -> Iterator[AlertCause]:
    i = InstallationRow
    for backup_at, created_at in tuples(i.select(i.backup_at, i.created_at)):
        if now - (backup_at or created_at) > after:
            details = {"days": after.days, "last_on": backup_at.date().isoformat() if backup_at else None}
            yield AlertCause("backup", AlertKind.BACKUP, details)
