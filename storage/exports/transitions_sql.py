"""The statements of an approval, over many exports at once, and what approvals and retries read of targets."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from schemas.base.timestamps import rfc3339, to_ms
from schemas.exports.state_machine import TRANSITIONS, ExportStatus, Transition
from schemas.exports.ticket import Source, delivery_body
from schemas.targets.approval import ApprovalState
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types, select_list
from storage.db.engine import is_sqlite, rows
from storage.db.models import ExportRow, TargetRow

_STATE: Final = select_list(ApprovalState, {"t": TargetRow})
_TARGET: Final = f"""
SELECT t.base_url, {_STATE} FROM targets t WHERE t.id = ? AND t.account_id = ? AND t.deleted_at IS NULL"""  # noqa: S608 - our own names
_TARGETS: Final = f"""
WITH r (id) AS ({{rows}})
SELECT t.id, {_STATE} FROM r JOIN targets t ON t.id = r.id WHERE t.deleted_at IS NULL"""  # noqa: S608 - our own names
# Until the transaction ends the targets are not removed; nothing else waits for this lock.
_STAYS: Final = " FOR KEY SHARE OF t"
_APPROVE: Final = """
WITH r (id, body) AS ({{rows}})
UPDATE exports SET {changes}, body = r.body, version = version + 1
FROM r WHERE exports.id = r.id"""


class LockedExport(NamedTuple):
    """What a decision reads of an export; nobody else changes it until the transaction ends."""

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
    redacted_at: datetime | None


def approve_locked(exports: Sequence[LockedExport], target_id: str, now: datetime, approver: Mapping[str, Any]) -> None:
    """Freeze the bytes of locked exports for a target and make them due; `approver` has the columns that name it."""
    at = to_ms(now)
    changes = {
        "status": TRANSITIONS[Transition.APPROVE].target.value,
        "target_id": target_id,
        "approved_at": at,
        "due_at": at,
        "schedule_began_at": at,
        "snoozed_at": None,
        "snoozed_until": None,
        **approver,
    }
    sql = _APPROVE.format(changes=", ".join(f"{name} = ?" for name in changes))
    frozen = [(each.id, _body(each, target_id, now)) for each in exports]
    execute_over(sql, column_types(ExportRow, ("id", "body")), frozen, tuple(changes.values()))


def target_state(target_id: str | None, account_id: int) -> tuple[str, ApprovalState] | None:
    """Return the URL of an account's target, and what an approval depends on; None if there is no such target.

    The target is not removed before the transaction ends.
    """
    found = rows(_TARGET if is_sqlite() else _TARGET + _STAYS, (target_id, account_id))
    return (found[0][0], ApprovalState._make(found[0][1:])) if found else None


def target_states(target_ids: Collection[str]) -> dict[str, ApprovalState]:
    """Return what an approval depends on of the targets that exist, by id; none is removed before the transaction ends."""
    sql = _TARGETS if is_sqlite() else _TARGETS + _STAYS
    found = rows_over(sql, column_types(TargetRow, ("id",)), [(each,) for each in target_ids])
    return {target_id: ApprovalState._make(state) for target_id, *state in found}


def _body(export: LockedExport, target_id: str, now: datetime) -> bytes:
    source = Source(export.source_type, export.source_id, export.scan_run_id)
    return delivery_body(export.id, target_id, source, export.ticket, rfc3339(now))
