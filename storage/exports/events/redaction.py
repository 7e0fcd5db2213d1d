"""Queues `ticket.redact` events for the targets of redacted tickets, and erases events that have not ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import MANUAL, REDACTED_TICKET, Source, digest
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, TicketEventStatus
from storage.db.columns import columns, read
from storage.db.models import ExportRow, TargetRow, TicketChangeRow, TicketEventRow
from storage.db.queries import for_update, tuples
from storage.exports.events.forming import NewEvent, store


def redact_events(export_ids: Sequence[str], now: datetime) -> None:
    """End the events of exports that are about to be redacted, and store one for each target that is to erase its ticket.

    That is a target that has the ticket and asks for `ticket.redact`, whatever the approval covers. An event that is being
    sent is cancelled too, and its result dropped; the redaction is due when that request has ended for certain. The caller
    holds the transaction and the locks of the exports.
    """
    if not export_ids:
        return
    of_exports = TicketEventRow.export.in_(export_ids)
    ended = {"status": TicketEventStatus.CANCELLED.value, "body": None, "due_at": None, "lease": None, "finished_at": now}
    pending = TicketEventRow.status == TicketEventStatus.PENDING.value
    open_until = _open_until(of_exports & pending, now)
    TicketEventRow.update(**ended, error_code="redacted").where(of_exports, pending).execute()
    TicketChangeRow.delete().where(TicketChangeRow.export.in_(export_ids)).execute()
    store([each._replace(due_at=open_until.get(each.ticket.export_id)) for each in _redactions(export_ids)], now)


def _open_until(condition: Any, now: datetime) -> dict[str, datetime]:
    """Return, by export, when the lease of an event that is being sent ends, and let no worker claim an event meanwhile.

    The receiver may process that request until then; after a redaction, it would restore what was erased.
    """
    found = TicketEventRow.select(TicketEventRow.export, TicketEventRow.lease, TicketEventRow.due_at).where(condition)
    locked = tuples(for_update(found.order_by(TicketEventRow.id)))
    leased = sorted((due_at, export_id) for export_id, lease, due_at in locked if lease is not None and due_at > now)
    return {export_id: due_at for due_at, export_id in leased}


class _Delivered(NamedTuple):
    id: str
    account_id: int
    target_id: str
    source_type: str
    source_id: str
    scan_run_id: int | None
    provider_ticket_id: str | None
    provider_ticket_url: str | None
    wanted: list[str]


def _redactions(export_ids: Sequence[str]) -> list[NewEvent]:
    is_delivered = (ExportRow.status == ExportStatus.EXPORTED.value) & TargetRow.deleted_at.is_null()
    exports = ExportRow.select(*columns(_Delivered, ExportRow, wanted=TargetRow.events)).join(TargetRow)
    found = read(_Delivered, exports.where(ExportRow.id.in_(export_ids), is_delivered).order_by(ExportRow.id))
    return [
        NewEvent(TicketEventType.REDACT, _emptied_ticket(each), TicketChange(), each.account_id)
        for each in found
        if TicketEventType.REDACT.value in each.wanted
    ]


def _emptied_ticket(export: _Delivered) -> EventTicket:
    # A person who wrote the ticket may have named themselves in its source.
    source_id = "redacted" if export.source_type == MANUAL else export.source_id
    return EventTicket(
        export.id,
        export.target_id,
        Source(export.source_type, source_id, export.scan_run_id),
        None,
        digest(REDACTED_TICKET.record()),
        export.provider_ticket_id,
        export.provider_ticket_url,
    )
