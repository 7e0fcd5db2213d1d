"""The targets that received tickets which a compliance request redacted, and whether they accepted the redaction.

Read from the erasure log, the exports and their events, as long as these are kept. The audit log keeps the acceptance, and
names the former targets of exports that were retried at another target.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from peewee import JOIN, SQL, Select, fn

from schemas.base.ticket_event_types import TicketEventType
from schemas.compliance.recipients import Recipient
from schemas.exports.state_machine import ExportStatus, Transition
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.db.columns import field_names
from storage.db.models import AuditEntryRow, ExportRow, RedactionRow, TargetRow, TicketEventRow
from storage.db.queries import tuples

#: The parts of an attempt that prove the request and the response that accepted it.
_PROOF: Final = ("id", "started_at", "response_status", "nonce", "signature", "body_sha256", "response_sha256")


#: The columns to read for each recipient.
_SHOWN: Final[Mapping[str, Any]] = {
    "request_id": RedactionRow.request_id,
    "export_id": ExportRow.id,
    "export_status": ExportRow.status,
    #: The present target of the export.
    "export_target_id": ExportRow.target,
    "target_id": TargetRow.id,
    "target_name": TargetRow.name,
    "provider_key": TargetRow.provider_key,
    "event_id": TicketEventRow.id,
    "status": TicketEventRow.status,
    "attempt_records": TicketEventRow.attempt_records,
    "error_code": TicketEventRow.error_code,
    "finished_at": TicketEventRow.finished_at,
}


def of_requests(request_ids: Sequence[str], limit: int) -> dict[str, list[Recipient]]:
    """Return up to `limit` recipients for each request; an export that was tried counts as received, even if it failed.

    So does a former target at which the export was tried. It is never sent a redaction.
    """
    recipients: dict[str, list[Recipient]] = defaultdict(list)
    if request_ids:
        found = _query(request_ids).alias("found")
        place = fn.ROW_NUMBER().over(partition_by=[found.c.request_id], order_by=[found.c.export_id, found.c.target_id])
        numbered = Select([found], [found.__star__, place.alias("place")]).alias("numbered")
        read_value = [getattr(numbered.c, name).converter(field.python_value) for name, field in _SHOWN.items()]
        first = RedactionRow.select(*read_value).from_(numbered).where(numbered.c.place <= limit)
        for row in tuples(first.order_by(numbered.c.request_id.desc(), numbered.c.place)):
            values = dict(zip(_SHOWN, row, strict=True))
            recipients[values["request_id"]].append(_recipient(values))
    return dict(recipients)


def _query(request_ids: Sequence[str]) -> Any:
    """Return the query for the recipients of each export: its present target and its former targets."""
    shown = [field.alias(name) for name, field in _SHOWN.items()]
    exports = RedactionRow.select(*shown).join(ExportRow, on=ExportRow.id == RedactionRow.row_id)
    is_named = RedactionRow.request_id.in_(request_ids) & (RedactionRow.table_name == ExportRow._meta.table_name)
    present = exports.join(TargetRow, on=TargetRow.id == ExportRow.target).where(is_named, ExportRow.attempts > 0)
    move = AuditEntryRow.alias("move")
    # Other retries do not have a target as their reason.
    is_left = (TargetRow.id == move.reason) & (TargetRow.id != ExportRow.target)
    left = exports.join(move, on=move.subject_id == ExportRow.id).join(TargetRow, on=is_left)
    left = left.where(is_named, move.action == Transition.RETRY.value, _was_tried_before(move))
    is_event = (TicketEventRow.export == ExportRow.id) & (TicketEventRow.target == TargetRow.id)
    is_event &= TicketEventRow.type == TicketEventType.REDACT.value
    # The union removes duplicates: an export may have left the same target twice.
    present, left = (each.join(TicketEventRow, JOIN.LEFT_OUTER, on=is_event) for each in (present, left))
    return present | left


def _was_tried_before(move: Any) -> Any:
    """Return the condition that a worker claimed the export before it left a target; otherwise the target got no request."""
    claim = AuditEntryRow.alias("claim")
    of_export = (claim.subject_id == move.subject_id) & (claim.action == Transition.CLAIM.value)
    return fn.EXISTS(claim.select(SQL("1")).where(of_export, claim.id < move.id))


def _recipient(found: Mapping[str, Any]) -> Recipient:
    is_present = found["target_id"] == found["export_target_id"]
    accepted: Mapping[str, Any] = next(
        (each for each in found["attempt_records"] or () if each["outcome"] == "delivered"), {}
    )
    return Recipient(
        **{name: found[name] for name in field_names(Recipient) if name in found},
        is_tracker=found["provider_key"] != GENERIC_WEBHOOK,
        is_delivered=found["export_status"] is ExportStatus.EXPORTED and is_present,
        proof={name: accepted[name] for name in _PROOF} if accepted else None,
    )
