"""Reads the events of an export."""

from dataclasses import replace
from datetime import datetime

from schemas.exports.tickets.ticket_events import TicketEvent
from storage.db.columns import columns, read
from storage.db.models import TicketEventRow
from storage.exports.attempts import number_before, require_export


def list_page(export_id: str, account_id: int | None, limit: int, before: str | None = None) -> list[TicketEvent]:
    """Return up to `limit` events of an export, newest first, older than the one with the id `before`.

    Without `account_id`, the caller has checked access. Raises ExportNotFound, and ValidationFailed on `/cursor` if `before`
    is not an event of this export.
    """
    if account_id is not None:
        require_export(export_id, account_id)
    shown = columns(TicketEvent, TicketEventRow, deliveries=TicketEventRow.attempt_records)
    is_before = TicketEventRow.number < number_before(TicketEventRow, before, export_id)
    found = TicketEventRow.select(*shown).where(TicketEventRow.export == export_id, is_before)
    return [_read(each) for each in read(TicketEvent, found.order_by(TicketEventRow.number.desc()).limit(limit))]


def _read(event: TicketEvent) -> TicketEvent:
    moments = [datetime.fromisoformat(each["started_at"]) for each in event.deliveries]
    deliveries = [{**each, "started_at": at} for each, at in zip(event.deliveries, moments, strict=True)]
    return replace(event, deliveries=deliveries)
