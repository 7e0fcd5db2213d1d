"""The statements with which a restore begins, hand-written because `psql` runs them too; they have no parameters."""

from datetime import datetime

from schemas.base.timestamps import to_ms
from schemas.targets.target import RESTORED, TargetStatus


def pausing_statements(action: str, subject_id: str, now: datetime) -> tuple[str, str, str]:
    """Return the statements that log the `action` and pause every active target; targets that are not active stay."""
    at, active, paused = to_ms(now), TargetStatus.ACTIVE.value, TargetStatus.PAUSED.value
    begun = (
        "INSERT INTO audit_entries (at, actor, action, subject_id) "  # noqa: S608 - our own words and a number
        f"VALUES ({at}, 'operator', '{action}', '{subject_id}')"
    )
    logged = (
        "INSERT INTO audit_entries (at, actor, action, subject_id, reason) "  # noqa: S608 - our own words and a number
        f"SELECT {at}, 'operator', 'pause_target', id, '{RESTORED}' FROM targets WHERE status = '{active}'"
    )
    changes = f"status = '{paused}', status_reason = '{RESTORED}', updated_at = {at}"
    return begun, logged, f"UPDATE targets SET {changes} WHERE status = '{active}'"  # noqa: S608 - our own names
