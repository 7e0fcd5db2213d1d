"""The bodies of decisions on an export: edit, dismiss, snooze, retry."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from marshmallow import ValidationError, post_load

from schemas.base.fields import Form, Line, RecordForm, Text, Timestamp, described, optional
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Severity, digest_text, id_text, label_list
from schemas.exports.tickets.ticket import MAX_TITLE

#: Enough for a paragraph that explains a dismissal.
MAX_NOTE: Final = 2_000


@dataclass(frozen=True, slots=True)
class DismissalRequest:
    """Why an export is to be dismissed; reason and note may both be missing."""

    reason: DismissalReason | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SnoozeRequest:
    """Until when an export is to be snoozed; None: until one of its findings is seen again."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """The target at which an export is to be retried; None: its own target."""

    target_id: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """New parts of a ticket; None leaves a part as it is. `ticket_digest` is the ticket that the client saw."""

    title: str | None = None
    description: str | None = None
    severity: str | None = None
    labels: tuple[str, ...] | None = None
    ticket_digest: str | None = None

    def parts(self) -> dict[str, Any]:
        """Return the new parts as JSON."""
        labels = None if self.labels is None else list(self.labels)
        given = {"title": self.title, "description": self.description, "severity": self.severity, "labels": labels}
        return {name: value for name, value in given.items() if value is not None}


class DismissalForm(Form):
    """The body of `POST /api/ticket-exports/<export_id>/dismiss`."""

    reason = Text(
        allowed=DismissalReason,
        **optional("The reason. With `false_positive` or `wont_fix`, new places join the dismissed group."),
    )
    note = Text(max_length=MAX_NOTE, **optional("A note for other people."))

    @post_load
    def _make(self, given: dict[str, Any], **_: Any) -> DismissalRequest:
        reason = None if given["reason"] is None else DismissalReason(given["reason"])
        return DismissalRequest(reason, written_note(given["note"]))


def written_note(note: str | None) -> str | None:
    """Return a note, or None for a blank one: a dismissal with a blank note is the same as one without a note."""
    return note if note and note.strip() else None


class RetryForm(RecordForm):
    """The body of `POST /api/ticket-exports/<export_id>/retry`."""

    makes = RetryRequest
    target_id = id_text(**optional("The id of another active target of the account; default: the export's own target."))


class SnoozeForm(RecordForm):
    """The body of `POST /api/ticket-exports/<export_id>/snooze`."""

    makes = SnoozeRequest
    until = Timestamp(
        **optional("The time at which the snooze ends, in the future; null: when one of the findings is seen again.")
    )


class EditForm(Form):
    """The body of `PATCH /api/ticket-exports/<export_id>`."""

    title = Line(max_length=MAX_TITLE, **described("The title, a single line."))
    description = Text(min_length=1, **described("The description."))
    severity = Severity(**described("The severity; synonyms are mapped to `info`, `low`, `medium`, `high`, `critical`."))
    labels = label_list(**described("The labels; they replace all labels, and an empty list removes them."))
    ticket_digest = digest_text(
        "The `ticket_digest` of the ticket that you read; if the ticket has changed since, the response is 409."
    )

    @post_load
    def _make(self, given: dict[str, Any], **_: Any) -> Edit:
        labels = given.pop("labels", None)
        edit = Edit(**given, labels=None if labels is None else tuple(labels))
        if not edit.parts():
            raise ValidationError("no_members")
        return edit
