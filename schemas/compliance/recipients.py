"""A target that received a ticket which a compliance request redacted."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from schemas.base.timestamps import format_rfc3339_or_none
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.trackers.failures import ISSUE_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Recipient:
    """One ticket at one target; `status` is that of its event `ticket.redact`, None if the target does not get the event.

    `is_delivered` is False for a ticket whose delivery failed: the target may have it all the same. `proof` is the attempt
    that the target accepted.
    """

    export_id: str
    target_id: str
    target_name: str
    is_tracker: bool
    is_delivered: bool
    event_id: str | None
    status: TicketEventStatus | None
    error_code: str | None
    finished_at: datetime | None
    proof: Mapping[str, Any] | None

    @property
    def task(self) -> str | None:
        """The operator's next step; None if there is none, or none yet."""
        if self.status is TicketEventStatus.PENDING:
            return None
        if self.error_code == ISSUE_NOT_FOUND:
            return "Check that the issue was deleted: the tracker does not find it, so nothing was erased there."
        if self.status is not TicketEventStatus.DELIVERED:
            return "Ask the recipient to erase the ticket: it did not accept a redaction."
        if self.is_tracker:
            return "Title and text are overwritten; erase earlier versions, comments and notifications in the tracker."
        return None

    def record(self) -> dict[str, Any]:
        """Return the recipient as JSON."""
        return {
            "export_id": self.export_id,
            "target_id": self.target_id,
            "target_name": self.target_name,
            "delivered": self.is_delivered,
            "event_id": self.event_id,
            "status": "not_asked_for" if self.status is None else self.status.value,
            "error_code": self.error_code,
            "finished_at": format_rfc3339_or_none(self.finished_at),
            "proof": None if self.proof is None else dict(self.proof),
            "task": self.task,
        }
