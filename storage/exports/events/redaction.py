"""Queues `ticket.redact` events for the targets of redacted tickets, and erases events that have not ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import MANUAL, REDACTED_TICKET, digest
from schemas.exports.tickets.ticket_events import TicketChange, TicketEventStatus
from storage.db.models import ExportRow, TicketChangeRow, TicketEventRow
from storage.db.queries import for_update, tuples
from storage.exports.events.deliveries import cancel
from storage.exports.events.forming import NewEvent, approved_tickets, store

_EMPTY_DIGEST: Final = digest(REDACTED_TICKET.record())
_REDACT: Final = TicketEventType.REDACT


def redact_events(export_ids: Sequence[str], now: datetime) -> None:
    """End the events of exports that are about to be redacted, and store one for each target that must erase its ticket.

    These are the targets that have the ticket and are subscribed to `ticket.redact`, whatever the approval covers. An event
    that is being sent is cancelled too, and its result is ignored; the redaction is due when that request has certainly
    ended. The caller holds the transaction and the locks of the exports.
    """
    if not export_ids:
        return
    pending = TicketEventRow.export.in_(export_ids) & (TicketEventRow.status == TicketEventStatus.PENDING.value)
    open_until = _open_until(pending, now)
    cancel(pending, "redacted", now)
    TicketChangeRow.delete().where(TicketChangeRow.export.in_(export_ids)).execute()
    delivered = approved_tickets(export_ids, ExportRow.status == ExportStatus.EXPORTED.value)
    # The author of a manual ticket may have written their own name in its source id.
    emptied = [each._replace(source_id="redacted") if each.source_type == MANUAL else each for each in delivered]
    redactions = [
        NewEvent(_REDACT, each.about(None, _EMPTY_DIGEST), TicketChange(), each.account_id, open_until.get(each.id))
        for each in emptied
        if _REDACT.value in each.wanted
    ]
    store(redactions, now)


def _open_until(condition: Any, now: datetime) -> dict[str, datetime]:
    """Return, by export, when the lease of an event that is being sent ends; prevent claims of events until the commit.

    Until then the receiver may process that request. If it came after the redaction, it would restore what was erased.
    """
    found = TicketEventRow.select(TicketEventRow.export, TicketEventRow.lease, TicketEventRow.due_at).where(condition)
    locked = tuples(for_update(found.order_by(TicketEventRow.id)))
    leased = sorted((due_at, export_id) for export_id, lease, due_at in locked if lease is not None and due_at > now)
    return {export_id: due_at for due_at, export_id in leased}
