"""The statements of an approval and the other transitions that requests make, by compare-and-swap on one export."""

from collections.abc import Mapping
from typing import Any, Final

from schemas.exports.record import Export
from schemas.targets.approval import ApprovalState
from storage.db.columns import select_list
from storage.db.engine import execute, rows
from storage.db.models import TargetRow

_TARGET: Final = (
    f"SELECT t.base_url, {select_list(ApprovalState, {'t': TargetRow})} FROM targets t WHERE t.id = ? AND t.account_id = ?"  # noqa: S608 - our own names
)


def swap(export: Export, changes: Mapping[str, Any]) -> bool:
    """Write columns of an export that still is as it was read, and count its version up; return whether it was."""
    assignments = ", ".join(f"{name} = ?" for name in changes)
    statement = f"UPDATE exports SET {assignments}, version = version + 1 WHERE id = ? AND version = ? AND status = ?"  # noqa: S608 - our own names
    return bool(execute(statement, (*changes.values(), export.id, export.version, export.status.value)))


def target_state(target_id: str | None, account_id: int) -> tuple[str, ApprovalState] | None:
    """Return the URL of an account's target, and what an approval depends on; None if there is no such target."""
    found = rows(_TARGET, (target_id, account_id))
    return (found[0][0], ApprovalState._make(found[0][1:])) if found else None
