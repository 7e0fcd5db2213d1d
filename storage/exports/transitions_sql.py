"""The SQL of approvals and rules, over many exports at once, and the reads of targets by approvals and retries."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from schemas.base.timestamps import format_rfc3339, to_ms
from schemas.exports.decisions import REASONS_KEEPING_GROUP_OPEN, DismissalReason
from schemas.exports.state_machine import TRANSITIONS, ExportStatus, Transition
from schemas.exports.tickets.ticket import Source, delivery_body
from schemas.targets.approval import ApprovalState
from schemas.targets.target import TargetStatus
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types, reader, select_list
from storage.db.engine import is_sqlite, rows
from storage.db.models import ExportRow, TargetRow

# Prevents the removal of the targets until the transaction ends; nothing else waits for this lock.
_PREVENT_REMOVAL: Final = " FOR KEY SHARE OF t"
_LOCKED: Final = " FOR UPDATE OF e"
_APPROVE: Final = """
WITH r (id, target_id, body) AS ({{rows}})
UPDATE exports SET {changes}, target_id = r.target_id, body = r.body, version = version + 1,
    events = CASE WHEN ? THEN (SELECT t.events FROM targets t WHERE t.id = r.target_id) ELSE '[]' END
FROM r WHERE exports.id = r.id
RETURNING exports.id, exports.events"""
NOT_SNOOZED: Final[Mapping[str, None]] = {"snoozed_at": None, "snoozed_until": None}
_NO_EVENTS: Final = "[]"
_WRITE: Final = """
WITH r ({names}) AS ({{rows}})
UPDATE exports SET {changes}, version = version + 1
FROM r WHERE exports.id = r.id"""
_SET_WAITING: Final = """
WITH r (id) AS ({rows})
UPDATE exports SET approved_by_rule_id = ?
FROM r WHERE exports.id = r.id"""
_ANY_RULE: Final = "SELECT 1 FROM approval_rules WHERE account_id = ? AND enabled LIMIT 1"


class LockedExport(NamedTuple):
    """An export with the columns that decisions need; nobody else changes it until the transaction ends."""

    id: str
    account_id: int
    status: ExportStatus
    version: int
    target_id: str | None
    project_id: int | None
    source_type: str
    source_id: str
    scan_run_id: int | None
    ticket: Any
    ticket_digest: str
    preview_problems: Any
    rule: str | None
    approved_at: datetime | None
    #: The types of events that its approval covers.
    events: Any
    redacted_at: datetime | None
    #: The ids of all exports of a ticket for several targets, including this one; None if there is only one.
    siblings: Any
    severity_rank: int
    findings_total: int | None
    snoozed_at: datetime | None
    snoozed_until: datetime | None
    #: For a prepared export: the rule whose target it waits for.
    approved_by_rule_id: str | None


class ApprovalTarget(NamedTuple):
    """A target with the columns that approvals, retries and rules need."""

    account_id: int
    base_url: str
    status: TargetStatus
    status_reason: str | None
    validation_status: str | None
    validation_reason: str | None

    @property
    def state(self) -> ApprovalState:
        """Return the columns of a target that decide whether an export may be approved for it."""
        return ApprovalState(*self[2:])


_TARGETS: Final = f"""
WITH r (id) AS ({{rows}})
SELECT t.id, {select_list(ApprovalTarget, {"t": TargetRow})}
FROM r JOIN targets t ON t.id = r.id WHERE t.deleted_at IS NULL"""  # noqa: S608 - our own names


_LOCK: Final = f"""
WITH r (id) AS ({{rows}})
SELECT {select_list(LockedExport, {"e": ExportRow})} FROM r JOIN exports e ON e.id = r.id{{of_account}} ORDER BY r.id"""  # noqa: S608 - our own names
_LOCK_ALL: Final = _LOCK.replace("{of_account}", "")
# An expression instead of the column, so that no plan reads all exports of the account to find a few hundred.
_LOCK_OWN: Final = _LOCK.replace("{of_account}", " WHERE e.account_id + 0 = ?")
_locked_export: Final = reader(LockedExport, ExportRow)


def lock_exports(export_ids: Collection[str], account_id: int | None) -> list[LockedExport]:
    """Return the exports that exist, by their ids; with `account_id`, only those of that account.

    Nobody else changes them before the transaction ends.
    """
    sql, own = (_LOCK_ALL, ()) if account_id is None else (_LOCK_OWN, (account_id,))
    found = rows_over(
        sql if is_sqlite() else sql + _LOCKED, column_types(ExportRow, ("id",)), [(each,) for each in export_ids], own
    )
    return [_locked_export(row) for row in found]


def transition_entry(
    now: datetime,
    actor: str,
    transition: Transition,
    before: ExportStatus,
    export_id: str,
    reason: str | None = None,
    digest: str | None = None,
) -> AuditEntry:
    """Return the audit entry of a transition of an export that had the status `before`."""
    after = TRANSITIONS[transition].target.value
    return AuditEntry(to_ms(now), actor, transition.value, export_id, before.value, after, reason, digest)


def approve_locked(
    exports: Sequence[tuple[LockedExport, str]], now: datetime, actor: str, reason: str | None, *, covers_events: bool = True
) -> None:
    """Freeze the bytes of locked exports, each for a target, and make them due; the audit entries have the digests.

    With `covers_events`, the approval also covers the events to which the target is subscribed now; the audit log names
    them.
    """
    at = to_ms(now)
    changes = {
        "status": TRANSITIONS[Transition.APPROVE].target.value,
        "approved_at": at,
        "due_at": at,
        "schedule_began_at": at,
        **NOT_SNOOZED,
        **approver_columns(actor),
    }
    sql = _APPROVE.format(changes=", ".join(f"{name} = ?" for name in changes))
    frozen = [(each.id, target_id, frozen_body(each, target_id, now)) for each, target_id in exports]
    types = column_types(ExportRow, ("id", "target_id", "body"))
    covered = rows_over(sql, types, frozen, (*changes.values(), covers_events))
    entries = [
        AuditEntry(at, actor, "approve_events", export_id, reason=" ".join(json.loads(events)))
        for export_id, events in covered
        if events != _NO_EVENTS
    ]
    entries += [
        transition_entry(now, actor, Transition.APPROVE, each.status, each.id, reason, each.ticket_digest)
        for each, _ in exports
    ]
    append_all(entries)


def approver_columns(actor: str) -> dict[str, Any]:
    """Return the columns that name the approver: a user or a rule; both are NULL for the operator at the command line."""
    kind, _, actor_id = actor.partition(":")
    return {
        "approved_by_user_id": int(actor_id) if kind == "user" and actor_id.isdecimal() else None,
        "approved_by_rule_id": actor_id if kind == "rule" else None,
    }


def dismissal_columns(reason: DismissalReason | None, note: str | None, now: datetime) -> dict[str, Any]:
    """Return the columns of a dismissed export, except its status.

    Later places join its group if the reason is one of REASONS_KEEPING_GROUP_OPEN; otherwise they form a new group.
    """
    named = None if reason is None else reason.value
    columns = {"finished_at": to_ms(now), "dismissal_reason": named, "dismissal_note": note, **NOT_SNOOZED}
    return columns if reason in REASONS_KEEPING_GROUP_OPEN else {**columns, "open_group": None}


def has_rules(account_id: int) -> bool:
    """Return whether the account has an enabled approval rule: most accounts have none, and every request checks it."""
    return bool(rows(_ANY_RULE, (account_id,)))


def write_locked(records: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> None:
    """Write columns of locked exports and increment their versions.

    A record has the `id` of an export and its own columns; `shared` are columns with the same value for all exports.
    """
    if not records:
        return
    names = tuple(records[0])
    changes = [f"{name} = r.{name}" for name in names if name != "id"] + [f"{name} = ?" for name in shared]
    sql = _WRITE.format(names=", ".join(names), changes=", ".join(changes))
    values = [tuple(record.values()) for record in records]
    execute_over(sql, column_types(ExportRow, names), values, tuple(shared.values()))


def set_waiting(export_ids: Sequence[str], rule_id: str | None) -> None:
    """Make locked prepared exports wait for the target of a rule, or for none; clients see no change."""
    execute_over(_SET_WAITING, column_types(ExportRow, ("id",)), [(each,) for each in export_ids], (rule_id,))


def lock_targets(target_ids: Collection[str]) -> dict[str, ApprovalTarget]:
    """Return the targets that exist, by id; none is removed before the transaction ends."""
    sql = _TARGETS if is_sqlite() else _TARGETS + _PREVENT_REMOVAL
    found = rows_over(sql, column_types(TargetRow, ("id",)), [(each,) for each in target_ids])
    return {target_id: ApprovalTarget._make(target) for target_id, *target in found}


def frozen_body(export: LockedExport, target_id: str, approved_at: datetime) -> bytes:
    """Return the bytes that every attempt at a target sends."""
    source = Source(export.source_type, export.source_id, export.scan_run_id)
    return delivery_body(export.id, target_id, source, export.ticket, format_rfc3339(approved_at))
