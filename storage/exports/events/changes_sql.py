"""Changes of approved exports by scan runs, hand-written because postbacks store them; `forming` makes events of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import to_ms
from schemas.exports.tickets.ticket_events import PlaceChange
from schemas.trackers.events import TrackerEventAction
from schemas.trackers.failures import ISSUE_MOVED, ISSUE_NOT_FOUND
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types
from storage.db.models import TicketChangeRow
from storage.exports.transitions_sql import LockedExport

_NAMES: Final = ("scan_run_id", "export_id", "finding_id", "change", "changed_at")
#: An approval may have committed after the postback read the time. A change that waited for the lock of the export gets a
#: later time than the approval.
_ADD: Final = f"""
WITH r ({", ".join(_NAMES)}) AS ({{rows}})
INSERT INTO ticket_changes ({", ".join(_NAMES)})
SELECT r.scan_run_id, r.export_id, r.finding_id, r.change,
    CASE WHEN e.approved_at >= r.changed_at THEN e.approved_at + 1 ELSE r.changed_at END
FROM r JOIN exports e ON e.id = r.export_id WHERE TRUE
ON CONFLICT (scan_run_id, export_id, finding_id) DO {{on_conflict}}"""  # noqa: S608 - our own names
_REPLACE: Final = "UPDATE SET change = excluded.change, changed_at = excluded.changed_at"
_ADD_OR_REPLACE: Final = _ADD.format(rows="{rows}", on_conflict=_REPLACE)
_ADD_NEW: Final = _ADD.format(rows="{rows}", on_conflict="NOTHING")
#: An event to a disabled target would fail; a removed target is disabled too. Nor does an event reach an issue that was
#: deleted or moved: the last event for its tracker failed with that code.
_SUBSCRIBED: Final = f"""
WITH r (id, target_id) AS ({{rows}})
SELECT r.id FROM r JOIN targets t ON t.id = r.target_id WHERE t.events LIKE ? AND t.status <> 'disabled'
    AND COALESCE((
        SELECT v.error_code FROM ticket_events v
        WHERE v.export_id = r.id AND v.finished_at IS NOT NULL
            AND COALESCE(v.result, '') <> '{TrackerEventAction.SKIPPED.value}'
        ORDER BY v.number DESC LIMIT 1
    ), '') NOT IN ('{ISSUE_NOT_FOUND}', '{ISSUE_MOVED}')"""  # noqa: S608 - our own names
_AT_DISABLED: Final = """
WITH r (id) AS ({rows})
SELECT e.id FROM r JOIN exports e ON e.id = r.id JOIN targets t ON t.id = e.target_id WHERE t.status = 'disabled'"""


class StoredChange(NamedTuple):
    """A change of a finding, and the export whose target may receive an event."""

    export_id: str
    finding_id: str
    change: PlaceChange


def subscribed_to(event_type: TicketEventType, exports: Iterable[LockedExport]) -> set[str]:
    """Return the exports whose approval covers this event, and whose targets are subscribed to it now and can receive it."""
    covered = [(each.id, each.target_id) for each in exports if event_type.value in (each.events or ())]
    return {row[0] for row in rows_over(_SUBSCRIBED, ("TEXT", "TEXT"), covered, (f'%"{event_type.value}"%',))}


def at_disabled_targets(export_ids: Iterable[str]) -> set[str]:
    """Return the exports whose target is disabled or removed."""
    return {row[0] for row in rows_over(_AT_DISABLED, ("TEXT",), [(each,) for each in export_ids])}


def store(changes: Sequence[StoredChange], scan_run_id: int, now: datetime, *, replaces: bool = True) -> None:
    """Store the changes of a scan run. The caller holds the transaction and the locks of the exports, and marks the run.

    With `replaces`, a new change replaces a stored one of the same run and finding that is not in an event yet; otherwise
    the stored one is kept.
    """
    if not changes:
        return
    values = [(scan_run_id, each.export_id, each.finding_id, each.change.value, to_ms(now)) for each in changes]
    execute_over(_ADD_OR_REPLACE if replaces else _ADD_NEW, column_types(TicketChangeRow, _NAMES), values)
