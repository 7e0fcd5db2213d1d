"""The statements of an approval and the other transitions that requests make, by compare-and-swap on one export."""

from collections.abc import Mapping
from typing import Any

from schemas.exports.record import Export
from storage.db.engine import execute, rows


def swap(export: Export, changes: Mapping[str, Any]) -> bool:
    """Write columns of an export that still is as it was read, and count its version up; return whether it was."""
    assignments = ", ".join(f"{name} = ?" for name in changes)
    statement = f"UPDATE exports SET {assignments}, version = version + 1 WHERE id = ? AND version = ? AND status = ?"  # noqa: S608 - our own names
    return bool(execute(statement, (*changes.values(), export.id, export.version, export.status.value)))


def target_status(target_id: str | None, account_id: int) -> str | None:
    """Return the status of an account's target; None if there is none."""
    found = rows("SELECT status FROM targets WHERE id = ? AND account_id = ?", (target_id, account_id))
    return str(found[0][0]) if found else None
