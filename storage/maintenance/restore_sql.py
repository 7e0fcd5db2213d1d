"""The first statements of a restore, as SQL text, because `psql` runs them too."""

from datetime import datetime
from typing import Final

from schemas.base.timestamps import to_ms
from schemas.targets.target import RESTORED, TargetStatus

#: The statuses of targets that deliver, or would as soon as they have a secret, which may be in the settings already.
PAUSED_BY_RESTORE: Final = (TargetStatus.ACTIVE, TargetStatus.INACTIVE)


def pausing_statements(action: str, subject_id: str, now: datetime) -> tuple[str, str, str]:
    """Return the statements that log the `action` and pause the targets in `PAUSED_BY_RESTORE`; others are unchanged."""
    at, paused = to_ms(now), TargetStatus.PAUSED.value
    statuses = ", ".join(f"'{status.value}'" for status in PAUSED_BY_RESTORE)
    begun = (
        "INSERT INTO audit_entries (at, actor, action, subject_id) "  # noqa: S608 - our own words and a number
        f"VALUES ({at}, 'operator', '{action}', '{subject_id}')"
    )
    logged = (
        "INSERT INTO audit_entries (at, actor, action, subject_id, reason) "  # noqa: S608 - our own words and a number
        f"SELECT {at}, 'operator', 'pause_target', id, '{RESTORED}' FROM targets WHERE status IN ({statuses})"
    )
    changes = f"status = '{paused}', status_reason = '{RESTORED}', updated_at = {at}"
    return begun, logged, f"UPDATE targets SET {changes} WHERE status IN ({statuses})"  # noqa: S608 - our own names
