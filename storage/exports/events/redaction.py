"""Tells targets that a ticket was redacted, and erases the events of the ticket that have not ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import MANUAL, REDACTED_TICKET, Source, digest
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, TicketEventStatus
from storage.db.columns import columns, read
from storage.db.models import ExportRow, TargetRow, TicketChangeRow, TicketEventRow
from storage.exports.events.forming import NewEvent, store


def redact_events(export_ids: Sequence[str], now: datetime) -> None:
    """End the events of exports that are about to be redacted, and store one for each target that is to erase its ticket.

    That is a target that has the ticket and asks for `ticket.redact`, whatever the approval covers. The caller holds the
    transaction and the locks of the exports.
    """
    if not export_ids:
        return
    of_exports = TicketEventRow.export.in_(export_ids)
    ended = {"status": TicketEventStatus.CANCELLED.value, "body": None, "due_at": None, "lease": None, "finished_at": now}
    pending = TicketEventRow.status == TicketEventStatus.PENDING.value
    TicketEventRow.update(**ended, error_code="redacted").where(of_exports, pending).execute()
    TicketChangeRow.delete().where(TicketChangeRow.export.in_(export_ids)).execute()
    store(_redactions(export_ids), now)


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
        NewEvent(TicketEventType.REDACT, _emptied(each), TicketChange(), each.account_id)
        for each in found
        if TicketEventType.REDACT.value in each.wanted
    ]


def _emptied(export: _Delivered) -> EventTicket:
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
