"""Which targets received tickets that a compliance request redacted, and whether they accepted the redaction.

Read from the erasure log, the exports and their events, as long as these are kept; the audit log keeps the acceptance.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from peewee import JOIN

from schemas.base.ticket_event_types import TicketEventType
from schemas.compliance.recipients import Recipient
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.db.columns import columns, read
from storage.db.models import ExportRow, RedactionRow, TargetRow, TicketEventRow

#: What an attempt shows of the request and the response that accepted it.
_PROOF: Final = ("id", "started_at", "response_status", "nonce", "signature", "body_sha256", "response_sha256")


class _Found(NamedTuple):
    request_id: str
    export_id: str
    export_status: ExportStatus
    target_id: str
    target_name: str
    provider_key: str
    event_id: str | None
    event_status: TicketEventStatus | None
    attempt_records: Sequence[Mapping[str, Any]] | None
    error_code: str | None
    finished_at: datetime | None


def of_requests(request_ids: Sequence[str], limit: int) -> dict[str, list[Recipient]]:
    """Return up to `limit` recipients of each of some requests; an export that was only tried counts as received."""
    recipients: dict[str, list[Recipient]] = defaultdict(list)
    if request_ids:
        for each in read(_Found, _query(request_ids).limit(limit * len(request_ids))):
            recipients[each.request_id].append(_recipient(each))
    return {request_id: found[:limit] for request_id, found in recipients.items()}


def _query(request_ids: Sequence[str]) -> Any:
    shown = columns(
        _Found,
        TicketEventRow,
        request_id=RedactionRow.request_id,
        export_id=ExportRow.id,
        export_status=ExportRow.status,
        target_id=TargetRow.id,
        target_name=TargetRow.name,
        provider_key=TargetRow.provider_key,
        event_id=TicketEventRow.id,
        event_status=TicketEventRow.status,
    )
    is_event = (TicketEventRow.export == ExportRow.id) & (TicketEventRow.type == TicketEventType.REDACT.value)
    exports = RedactionRow.select(*shown).join(ExportRow, on=ExportRow.id == RedactionRow.row_id)
    found = exports.join(TargetRow, on=TargetRow.id == ExportRow.target).join(TicketEventRow, JOIN.LEFT_OUTER, on=is_event)
    is_named = RedactionRow.request_id.in_(request_ids) & (RedactionRow.table_name == ExportRow._meta.table_name)
    return found.where(is_named, ExportRow.attempts > 0).order_by(RedactionRow.request_id.desc(), ExportRow.id)


def _recipient(found: _Found) -> Recipient:
    accepted = next((each for each in found.attempt_records or () if each["outcome"] == "delivered"), {})
    return Recipient(
        export_id=found.export_id,
        target_id=found.target_id,
        target_name=found.target_name,
        is_tracker=found.provider_key != GENERIC_WEBHOOK,
        is_delivered=found.export_status is ExportStatus.EXPORTED,
        event_id=found.event_id,
        status=found.event_status,
        error_code=found.error_code,
        finished_at=found.finished_at,
        proof={name: accepted[name] for name in _PROOF} if accepted else None,
    )
