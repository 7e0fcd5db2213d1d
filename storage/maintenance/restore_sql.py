"""Hand-written SQL of a restore: the statements with which it begins, which `psql` runs too, and PostgreSQL's catalog."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.base.timestamps import to_ms
from schemas.targets.target import RESTORED, TargetStatus
from storage.db.engine import rows

#: The states of targets that deliver, or would as soon as they have a secret, which the settings may have already.
PAUSED_BY_RESTORE: Final = (TargetStatus.ACTIVE, TargetStatus.INACTIVE)

#: What PostgreSQL refuses to drop a table for: a view over it, or a foreign key to it, of a relation that is not ours.
_DEPENDENTS: Final = """
WITH named AS (SELECT to_regclass(name)::oid AS id FROM unnest(string_to_array(?, ' ')) AS name),
ours AS (SELECT id FROM named UNION SELECT inhrelid FROM pg_inherits WHERE inhparent IN (SELECT id FROM named)),
others AS (
  SELECT c.conrelid AS id FROM pg_constraint c WHERE c.contype = 'f' AND c.confrelid IN (SELECT id FROM ours)
  UNION
  SELECT r.ev_class FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
  WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT id FROM ours)
)
SELECT DISTINCT CASE relkind WHEN 'r' THEN 'Table ' WHEN 'p' THEN 'Table ' ELSE 'View ' END || pg_class.oid::regclass::text
FROM others JOIN pg_class ON pg_class.oid = others.id
WHERE pg_class.oid NOT IN (SELECT id FROM ours WHERE id IS NOT NULL) ORDER BY 1"""


def dependents_of(tables: Sequence[str]) -> list[str]:
    """Return the relations of others that refer to `tables` of the open PostgreSQL database, such as `View report`."""
    return [str(name) for (name,) in rows(_DEPENDENTS, (" ".join(tables),))]


def pausing_statements(action: str, subject_id: str, now: datetime) -> tuple[str, str, str]:
    """Return the statements that log the `action` and pause every target that is in `PAUSED_BY_RESTORE`; others stay."""
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
