"""A ticket export: the body that approves it and the record that clients poll."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from marshmallow import post_load

from schemas.export_state import ExportStatus
from schemas.fields import Form, Text
from schemas.ticket import Source
from schemas.times import rfc3339, rfc3339_or_none

#: An id is a prefix, an underscore and 26 characters; nothing longer needs a look in the database.
MAX_ID_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class Approval:
    """What a client approves: a target, and optionally the digest of the ticket it saw."""

    target_id: str
    ticket_digest: str | None


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The latest attempt of an export."""

    at: datetime
    response_status: int | None
    error_code: str | None
    duration_ms: int | None


@dataclass(frozen=True, slots=True)
class Export:
    """An export as it is stored."""

    id: str
    account_id: int
    status: ExportStatus
    status_reason: str | None
    target_id: str | None
    source: Source
    ticket: dict[str, Any]
    ticket_digest: str
    preview_problems: tuple[dict[str, Any], ...]
    attempts: int
    due_at: datetime | None
    version: int
    last_attempt: LastAttempt | None
    provider_ticket_id: str | None
    provider_ticket_url: str | None
    created_at: datetime
    approved_at: datetime | None
    finished_at: datetime | None

    @property
    def etag(self) -> str:
        """The version as an entity tag, without quotes."""
        return f"v{self.version}"


class ApprovalForm(Form):
    """The body of `POST /api/ticket-exports/<export_id>/approve`."""

    target_id = Text(required=True, min_length=1, max_length=MAX_ID_LENGTH)
    ticket_digest = Text(load_default=None, max_length=100)

    @post_load
    def _make(self, approval: dict[str, Any], **_: Any) -> Approval:
        return Approval(**approval)


def retry_after_s(export: Export, now: datetime) -> int | None:
    """Return whole seconds until the next attempt, rounded up and at least 1; None unless a retry is scheduled."""
    if export.status is not ExportStatus.RETRY_SCHEDULED or export.due_at is None:
        return None
    return max(1, math.ceil((export.due_at - now).total_seconds()))


def export_record(export: Export, now: datetime) -> dict[str, Any]:
    """Return the export as clients see it at `now`."""
    waiting = export.status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED}
    record: dict[str, Any] = {
        "id": export.id,
        "status": export.status.value,
        "status_reason": export.status_reason,
        "target_id": export.target_id,
        "source": export.source.record(),
        "ticket": export.ticket,
        "ticket_digest": export.ticket_digest,
        "preview": {"safe": not export.preview_problems, "problems": list(export.preview_problems)},
        "attempts": export.attempts,
        "next_attempt_at": rfc3339_or_none(export.due_at) if waiting else None,
        "created_at": rfc3339(export.created_at),
        "approved_at": rfc3339_or_none(export.approved_at),
        "finished_at": rfc3339_or_none(export.finished_at),
    }
    seconds = retry_after_s(export, now)
    if seconds is not None:
        record["retry_after_seconds"] = seconds
    if export.last_attempt is not None:
        record["last_attempt"] = _last_attempt(export.last_attempt)
    if export.provider_ticket_id or export.provider_ticket_url:
        record["provider_ticket"] = {"id": export.provider_ticket_id, "url": export.provider_ticket_url}
    return record


def _last_attempt(attempt: LastAttempt) -> dict[str, Any]:
    return {
        "at": rfc3339(attempt.at),
        "response_status": attempt.response_status,
        "error_code": attempt.error_code,
        "duration_ms": attempt.duration_ms,
    }
