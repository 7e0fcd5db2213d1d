"""A ticket export: the bodies that prepare and approve one, and the record that clients poll.

A handwritten ticket is stored exactly as it was sent, or rejected: nothing is truncated or trimmed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from marshmallow import ValidationError, fields, post_load

from schemas.base.fields import AnyObject, Array, Boolean, Form, Integer, Line, PageUrl, Text, described, optional, required
from schemas.base.strict_json import canonical
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.decisions import ApprovedBy, Dismissal, Snooze
from schemas.exports.polled_record import PolledExport, next_attempt_of, record_json
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import MANUAL, MAX_TITLE, Source, Ticket
from schemas.exports.tickets.ticket_text import ticket_by_hand
from schemas.intake.scanner import MAX_EVIDENCE_BYTES, SEVERITIES, SEVERITY_SYNONYMS

#: An id is a prefix, an underscore and 26 characters; longer text needs no query.
MAX_ID_LENGTH: Final = 64
#: Trackers accept fewer.
MAX_LABELS: Final = 50
MAX_LABEL: Final = 100
#: More than the 71 characters of a digest.
MAX_DIGEST: Final = 100
#: Maximum number of targets of one approval.
MAX_TARGETS: Final = 20
#: Enough for the key of any system.
MAX_SOURCE_ID: Final = 200


@dataclass(frozen=True, slots=True)
class Preparation:
    """A handwritten ticket; without a `source_id` the export is its own source."""

    ticket: Ticket
    source_id: str | None
    project_id: int | None


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval: a target, and optionally the digest of the ticket that the client saw."""

    target_id: str
    ticket_digest: str | None
    #: Whether the approval covers the events that the target subscribes to.
    events: bool = True


@dataclass(frozen=True, slots=True)
class ApprovalForAll:
    """An approval for several targets: one export for each, the first of which is the approved one."""

    target_ids: tuple[str, ...]
    ticket_digest: str | None
    events: bool = True


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The latest attempt of an export."""

    at: datetime
    response_status: int | None
    error_code: str | None
    duration_ms: int | None


@dataclass(frozen=True, slots=True)
class Sighting:
    """When and how often the finding of an export was seen; several posts of one scan run count once."""

    finding_id: str
    first_seen_at: datetime
    last_seen_at: datetime
    times_seen: int
    first_scan_run_id: int
    last_scan_run_id: int
    times_reopened: int


@dataclass(frozen=True, slots=True)
class Export:
    """An export as it is stored; its row also has the status and hold of its target, which `as_shown` applies."""

    stored: PolledExport
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
    severity: str
    project_id: int | None = None
    rule: str | None = None
    #: The number of its findings, and the number of those that are fixed.
    findings: tuple[int, int] | None = None
    original_ticket: dict[str, Any] | None = None
    dismissal: Dismissal | None = None
    snooze: Snooze | None = None
    approved_by: ApprovedBy | None = None
    #: The ids of all exports of one ticket for several targets.
    siblings: tuple[str, ...] | None = None
    finding: Sighting | None = None


class Severity(Text):
    """A severity, or a synonym that scanners use; an unknown one is rejected."""

    json_schema: Final = {"type": "string", "enum": sorted(SEVERITY_SYNONYMS)}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        severity = SEVERITY_SYNONYMS.get(super()._deserialize(value, attr, data, **kwargs).strip().lower())
        if severity is None:
            # The message does not list the synonyms.
            raise ValidationError(f"not_allowed: {', '.join(SEVERITIES)}")
        return severity


class _Evidence(AnyObject):
    """An object with any fields, up to a size limit."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
        evidence = super()._deserialize(value, attr, data, **kwargs)
        if len(canonical(evidence)) > MAX_EVIDENCE_BYTES:
            raise ValidationError("too_long")
        return evidence


def id_text(**options: Any) -> Text:
    """Return the field of a record's id."""
    return Text(min_length=1, max_length=MAX_ID_LENGTH, **options)


def digest_text(description: str) -> Text:
    """Return the field of the digest that a ticket must have."""
    return Text(max_length=MAX_DIGEST, **optional(description))


def label_list(**options: Any) -> Array:
    """Return the field of a ticket's labels."""
    return Array(Text(min_length=1, max_length=MAX_LABEL), at_most=MAX_LABELS, **options)


class _TicketForm(Form):
    title = Line(max_length=MAX_TITLE, **required("The title, a single line."))
    description = Text(**optional("The description."))
    severity = Severity(**optional("The severity; synonyms are mapped to `info`, `low`, `medium`, `high`, `critical`."))
    page_url = PageUrl(**optional("The URL of the page; null if there is none."))
    labels = label_list(**optional("The labels."))
    evidence = _Evidence(**optional("Supporting data, up to 8 KiB of JSON."))

    @post_load
    def _make(self, ticket: dict[str, Any], **_: Any) -> Ticket:
        return ticket_by_hand(
            title=ticket["title"],
            description=ticket["description"] or "",
            severity=ticket["severity"] or "info",
            page_url=ticket["page_url"],
            labels=ticket["labels"] or (),
            evidence=ticket["evidence"] or {},
        )


class _SourceForm(Form):
    type = Text(allowed=(MANUAL,), **described("The kind of source; always `manual`.", load_default=MANUAL))
    id = Text(min_length=1, max_length=MAX_SOURCE_ID, **optional("The ticket's id in the system that it comes from."))


class PreparationForm(Form):
    """The body of `POST /api/ticket-exports`."""

    ticket = fields.Nested(_TicketForm, **required("The ticket."))
    source = fields.Nested(_SourceForm, **optional("The source of the ticket; default: the export itself."))
    project_id = Integer(minimum=1, **optional("The id of a project of the account."))

    @post_load
    def _make(self, preparation: dict[str, Any], **_: Any) -> Preparation:
        source = preparation["source"] or {}
        return Preparation(preparation["ticket"], source.get("id"), preparation["project_id"])


class ApprovalForm(Form):
    """The body of `POST /api/ticket-exports/<export_id>/approve`."""

    target_id = id_text(**described("The id of an active target of the account."))
    target_ids = Array(
        id_text(),
        at_least=2,
        at_most=MAX_TARGETS,
        **described("The ids of different active targets of the account, in place of `target_id`; each gets an export."),
    )
    ticket_digest = digest_text(
        "The `ticket_digest` of the ticket that you reviewed; if the ticket has changed since, the response is 409."
    )
    events = Boolean(
        load_default=True, **described("Whether the approval also covers the events that the target subscribes to.")
    )

    @post_load
    def _make(self, approval: dict[str, Any], **_: Any) -> Approval | ApprovalForAll:
        if "target_ids" not in approval:
            if "target_id" not in approval:
                raise ValidationError({"target_id": ["required"]})
            return Approval(**approval)
        if "target_id" in approval:
            raise ValidationError({"target_ids": ["not_both"]})
        target_ids = tuple(approval["target_ids"])
        repeated = [index for index, each in enumerate(target_ids) if each in target_ids[:index]]
        if repeated:
            raise ValidationError({"target_ids": {index: ["repeated"] for index in repeated}})
        return ApprovalForAll(target_ids, approval["ticket_digest"], approval["events"])


def as_shown(export: Export, now: datetime) -> Export:
    """Return the export as clients see it at `now`.

    `due_at` is the next attempt, None if there is none or its time is unknown; `status_reason` then names why.
    """
    attempt = next_attempt_of(export.stored, to_ms(now))
    reason = attempt.reason or export.status_reason
    return replace(export, due_at=from_ms(attempt.at_ms), status_reason=reason)


def export_record(export: Export, now: datetime) -> dict[str, Any]:
    """Return the export as clients see it at `now`, as in the response to a poll."""
    now_ms = to_ms(now)
    record: dict[str, Any] = json.loads(record_json(export.stored, next_attempt_of(export.stored, now_ms), now_ms))
    return record


def listed_record(export: Export, now: datetime) -> dict[str, Any]:
    """Return the export as lists show it at `now`: without the ticket that an edit replaced."""
    record = export_record(export, now)
    record.pop("original_ticket", None)
    return record
