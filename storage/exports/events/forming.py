"""Forms one event for each ticket that a scan run changed, once the run has been quiet or a later run posts.

Changes that the run makes afterwards wait until it is quiet again. As in a postback, the exports are locked meanwhile.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from peewee import SQL, fn

from schemas.base.places import ChangedPlace
from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import format_rfc3339, to_ms
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_events import (
    MAX_PLACES,
    EventTicket,
    PlaceChange,
    TicketChange,
    TicketEventStatus,
    event_body,
)
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.bulk_sql import insert_records, lock_row
from storage.db.columns import columns, read
from storage.db.engine import transacted
from storage.db.models import ExportRow, FindingRow, ScanRunRow, TargetRow, TicketChangeRow, TicketEventRow
from storage.db.queries import for_update, scalars, tuples

#: How many tickets of a run one transaction processes.
BATCH: Final = 200
#: The event is the first of these types that applies and to which the target is subscribed.
_ORDER: Final = (TicketEventType.FIXED, TicketEventType.REOPENED, TicketEventType.UPDATED)
_ACTOR: Final = "events"
_EXPORT_ID: Final = TicketChangeRow.export


class NewEvent(NamedTuple):
    """An event of a ticket of an account, due at `due_at`, or at once if that is None."""

    type: TicketEventType
    ticket: EventTicket
    change: TicketChange
    account_id: int
    due_at: datetime | None = None


class ApprovedTicket(NamedTuple):
    """An approved export, and the types of events to which its target is subscribed."""

    id: str
    account_id: int
    target_id: str
    source_type: str
    source_id: str
    scan_run_id: int | None
    ticket: dict[str, object]
    ticket_digest: str
    provider_ticket_id: str | None
    provider_ticket_url: str | None
    findings_total: int | None
    findings_fixed: int | None
    approved_at: datetime | None
    redacted_at: datetime | None
    events: list[str] | None
    wanted: list[str]

    def about(self, title: str | None, ticket_digest: str) -> EventTicket:
        """Return the ticket as an event contains it, with this title and digest."""
        source = Source(self.source_type, self.source_id, self.scan_run_id)
        provider_ticket = (self.provider_ticket_id, self.provider_ticket_url)
        return EventTicket(self.id, self.target_id, source, title, ticket_digest, *provider_ticket)


class _Change(NamedTuple):
    export_id: str
    change: PlaceChange
    changed_at: datetime
    page_url: str
    location: str
    fixed_at: datetime | None

    @property
    def is_current(self) -> bool:
        """Return whether the finding is still in the state of this change."""
        return (self.fixed_at is not None) == (self.change is PlaceChange.FIXED)


def next_run(now: datetime, settle_s: float) -> int | None:
    """Return a scan run whose changes should become events now; None if no run is ready."""
    later = ScanRunRow.alias("later")
    has_posted = (later.created_at > ScanRunRow.created_at) & (later.updated_at > ScanRunRow.updated_at)
    is_followed = fn.EXISTS(later.select(SQL("1")).where(later.project == ScanRunRow.project, has_posted))
    is_quiet = ScanRunRow.updated_at <= now - timedelta(seconds=settle_s)
    is_ready = is_quiet | (ScanRunRow.changes_read_at.is_null() & is_followed)
    ready = ScanRunRow.select(ScanRunRow.id).where(ScanRunRow.has_changes, is_ready)
    found = tuples(ready.order_by(ScanRunRow.updated_at).limit(1))
    return found[0][0] if found else None


@transacted
def form(scan_run_id: int, now: datetime) -> int:
    """Form the events of up to BATCH tickets that a scan run changed; return the number of tickets, 0 when none is left."""
    of_run = TicketChangeRow.scan_run == scan_run_id
    changed = TicketChangeRow.select(_EXPORT_ID).where(of_run).distinct().order_by(_EXPORT_ID).limit(BATCH)
    ids = scalars(changed)
    if not ids:
        # A postback locks and marks its run as its last step. So, with this lock, its changes are either stored already or
        # the run will be marked again.
        lock_row(ScanRunRow, scan_run_id)
        if tuples(changed):
            return 0
        ScanRunRow.update(has_changes=False, changes_read_at=now).where(ScanRunRow.id == scan_run_id).execute()
        return 0
    changes: dict[str, list[_Change]] = defaultdict(list)
    tuples(for_update(ExportRow.select(ExportRow.id).where(ExportRow.id.in_(ids)).order_by(ExportRow.id)))
    tickets = approved_tickets(ids)
    for each in _changes(of_run & TicketChangeRow.export.in_(ids)):
        changes[each.export_id].append(each)
    TicketChangeRow.delete().where(of_run, TicketChangeRow.export.in_(ids)).execute()
    store([event for ticket in tickets if (event := _event_of(ticket, changes[ticket.id]))], now)
    return len(ids)


def store(events: Sequence[NewEvent], now: datetime) -> None:
    """Store events. The caller holds the transaction and the locks of the exports."""
    records, entries = [], []
    of_exports = TicketEventRow.export.in_([each.ticket.export_id for each in events])
    last = TicketEventRow.select(TicketEventRow.export, fn.MAX(TicketEventRow.number)).where(of_exports)
    numbers: dict[str, int] = dict(tuples(last.group_by(TicketEventRow.export))) if events else {}
    for each in events:
        event_id = identifiers.new_id(identifiers.EVENT, now)
        records.append(
            {
                "id": event_id,
                "account_id": each.account_id,
                "export_id": each.ticket.export_id,
                "target_id": each.ticket.target_id,
                "number": numbers.get(each.ticket.export_id, 0) + 1,
                "type": each.type.value,
                "status": TicketEventStatus.PENDING.value,
                "body": event_body(event_id, each.type, each.ticket, each.change, format_rfc3339(now)),
                "attempts": 0,
                "attempt_records": "[]",
                "is_outcome_unknown": False,
                "due_at": to_ms(each.due_at or now),
                "created_at": to_ms(now),
            }
        )
        entries.append(AuditEntry(to_ms(now), _ACTOR, each.type.value, each.ticket.export_id, reason=event_id))
    insert_records(TicketEventRow, records)
    append_all(entries)


def approved_tickets(export_ids: Sequence[str], condition: Any = True) -> list[ApprovedTicket]:
    """Return the exports whose targets are not removed, in the order of their ids; the caller has locked the exports."""
    wanted = ExportRow.select(*columns(ApprovedTicket, ExportRow, wanted=TargetRow.events)).join(TargetRow)
    of_exports = wanted.where(ExportRow.id.in_(export_ids), TargetRow.deleted_at.is_null(), condition)
    return read(ApprovedTicket, of_exports.order_by(ExportRow.id))


def _event_of(ticket: ApprovedTicket, changes: Sequence[_Change]) -> NewEvent | None:
    """Return the event of one ticket, if its approval covers a type of event to which the target is subscribed now."""
    approved_at = ticket.approved_at
    # Changes before the approval are part of the approved ticket.
    current = [each for each in changes if each.is_current and approved_at is not None and each.changed_at > approved_at]
    if not current or ticket.redacted_at is not None:
        return None
    places_open = max(0, (ticket.findings_total or 0) - (ticket.findings_fixed or 0))
    applies = {
        TicketEventType.FIXED: places_open == 0,
        TicketEventType.REOPENED: any(each.change is PlaceChange.REOPENED for each in current),
        TicketEventType.UPDATED: True,
    }
    wanted = {*(ticket.events or ())} & {*ticket.wanted}
    event_type = next((each for each in _ORDER if applies[each] and each.value in wanted), None)
    if event_type is None:
        return None
    places = [
        ChangedPlace(each.page_url, each.location, "fixed" if each.change is PlaceChange.FIXED else "open")
        for each in current[:MAX_PLACES]
    ]
    fixed = sum(each.change is PlaceChange.FIXED for each in current)
    change = TicketChange(len(current) - fixed, fixed, places_open, tuple(places))
    return NewEvent(event_type, ticket.about(str(ticket.ticket["title"]), ticket.ticket_digest), change, ticket.account_id)


def _changes(condition: Any) -> list[_Change]:
    of_finding = FindingRow.id == TicketChangeRow.finding_id
    found = columns(
        _Change, TicketChangeRow, page_url=FindingRow.page_url, location=FindingRow.location, fixed_at=FindingRow.fixed_at
    )
    return read(_Change, TicketChangeRow.select(*found).join(FindingRow, on=of_finding).where(condition))
