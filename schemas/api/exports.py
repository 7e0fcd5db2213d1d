"""Ticket exports.

`schemas.exports.polled_record` writes the record of an export as JSON text, because a dump costs 130 us per export, 5 ms per
page of a list.
"""

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.errors import FieldProblemResponse
from schemas.api.response_fields import DIGEST, ULID, ResponseSchema
from schemas.exports.decisions import DismissalReason
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES


class SourceResponse(ResponseSchema):
    """The source of an export."""

    type = field.one_of(SOURCE_TYPES, "The kind of source.", example="manual")
    id = field.text(
        "The id of the finding, capture, diagnostics or email; for a ticket that was prepared by hand, the "
        "id in the request.",
        example="NOTE-7",
    )
    scan_run_id = field.number("The id of the scan run that first reported the finding", absent="for other sources")


class TicketResponse(ResponseSchema):
    """The ticket that is reviewed and delivered."""

    title = field.text("The title, a single line.", example="Image without alternative text")
    description = field.text("The description.", example="Screen readers cannot tell what the picture shows.")
    severity = field.one_of(SEVERITIES, "The severity.", example="high")
    page_url = field.text("The URL of the page", null="if there is none", example="https://shop.example/")
    labels = field.several(fields.String(), "The labels.", example=["accessibility"])
    evidence = field.free("Supporting data from the source.", {"location": "main > img.hero"})


class PreviewResponse(ResponseSchema):
    """Whether the ticket can be approved."""

    safe = field.truth("Whether the ticket can be approved.")
    problems = field.several(FieldProblemResponse, "Why the ticket cannot be approved; empty if it can.", example=[])


class LastAttemptResponse(ResponseSchema):
    """The latest attempt."""

    at = field.moment("The time at which the attempt began.")
    response_status = field.number("The receiver's HTTP status", null="if there was no response")
    error_code = field.text("The reason of the failure", null="on success")
    duration_ms = field.number("The duration of the attempt in milliseconds.", nullable=True)


class ProviderTicketResponse(ResponseSchema):
    """The ticket that the receiver created, as the receiver reported it."""

    id = field.text("The ticket's id at the receiver", null="if the receiver did not return one", example="1047")
    url = field.text(
        "The ticket's URL at the receiver",
        null="if the receiver did not return one",
        example="https://tracker.example.com/tickets/1047",
    )


class ExportFindingResponse(ResponseSchema):
    """When, and by how many scan runs, the finding of an export was reported."""

    id = field.identifier("fnd", "The id of the finding.")
    first_seen_at = field.moment("The time at which a scan run first reported the finding.")
    last_seen_at = field.moment("The time at which a scan run last reported the finding.")
    times_seen = field.number("The number of scan runs that reported the finding.", minimum=1)
    first_scan_run_id = field.number("The id of the first scan run that reported the finding.", minimum=1)
    last_scan_run_id = field.number("The id of the last scan run that reported the finding.", minimum=1)


class ExportFindingsResponse(ResponseSchema):
    """How many findings an export has."""

    total = field.number("The number of findings of the ticket.", minimum=1)
    fixed = field.number("The number of these findings that are fixed.")


class DismissalResponse(ResponseSchema):
    """Why an export was dismissed."""

    reason = field.one_of(DismissalReason, "The reason", null="if none was given")
    note = field.text("The note", null="if none was given")
    at = field.moment("The time at which the export was dismissed.", nullable=True)


class ApprovedByResponse(ResponseSchema):
    """Who approved an export."""

    kind = field.one_of(("user", "rule"), "Whether a user or an approval rule approved the export.")
    id = fields.Raw(
        required=True, metadata={"type": ["integer", "string"], "description": "The id of the user or of the rule."}
    )
    name = field.text("The user's email address, or the rule's name", null="if the user or the rule was removed")


class ExportResponse(ResponseSchema):
    """A ticket and its delivery to a target."""

    id = field.identifier("exp", "The id of the export.")
    status = field.one_of(
        ExportStatus, "The status; `exported`, `failed`, `blocked` and `dismissed` change only by a request."
    )
    status_reason = field.text(
        "The reason of the status `failed`, `blocked` or `dismissed`; `target_paused` or `target_inactive` "
        "while the export waits for such a target; null if there is no reason.",
        nullable=True,
    )
    target_id = field.identifier("tgt", "The id of the target that the export was approved for", null="before the approval")
    source = field.part(SourceResponse, "The source of the export.")
    ticket = field.part(TicketResponse, "The ticket; the approval freezes it.")
    ticket_digest = field.text("The digest of this ticket; an approval can require it.", pattern=DIGEST)
    preview = field.part(PreviewResponse, "Whether the ticket can be approved.")
    attempts = field.number("The number of delivery attempts that have begun.")
    next_attempt_at = field.moment(
        "The time at which the next attempt is due", null="if none is due, or while the target is paused or inactive"
    )
    created_at = field.moment("The time at which the export was prepared.")
    approved_at = field.moment("The time at which the export was approved", null="before the approval")
    finished_at = field.moment("The time at which the export reached a final status", null="before that")
    project_id = field.number("The id of the project", null="if the export belongs to none", minimum=1)
    severity = field.one_of(SEVERITIES, "The severity of the ticket.", example="high")
    rule = field.text("The rule code of the findings", null="for other sources")
    findings = field.part(ExportFindingsResponse, "The number of findings of the ticket", null="for other sources")
    edited = field.truth("Whether a person edited the ticket.", example=False)
    retry_after_seconds = field.number(
        "Whole seconds until the next attempt, 60 if its time is unknown; equal to `Retry-After`. Present "
        "while `status` is `retry_scheduled`, or `approved` for a target that is on hold.",
        optional=True,
        minimum=1,
    )
    last_attempt = field.part(LastAttemptResponse, "The latest delivery attempt", absent="before the first")
    provider_ticket = field.part(
        ProviderTicketResponse, "The ticket at the receiver", absent="if the receiver returned neither its id nor its URL"
    )
    finding = field.part(ExportFindingResponse, "The finding that the export was prepared from", absent="for other sources")
    dismissal = field.part(DismissalResponse, "The dismissal; present while `status` is `dismissed`.", optional=True)
    snoozed_until = field.moment(
        "The time at which the snooze ends; null: when one of the findings is seen again. Present while "
        "the export is snoozed.",
        nullable=True,
        optional=True,
    )
    approved_by = field.part(
        ApprovedByResponse, "The user or the rule that approved the export", absent="if the operator approved it"
    )
    siblings = field.several(
        field.identifier("exp", "The id of an export."),
        "The ids of all exports of this ticket",
        absent="unless the ticket was approved for several targets",
    )
    original_ticket = field.part(
        TicketResponse, "The ticket before a person edited it", absent="in lists and while `edited` is false"
    )


class ExportFacetsResponse(ResponseSchema):
    """The number of exports with each value, among the newest 5,000 matches; each facet ignores its own filter."""

    status = field.counts("The number of exports with each status.")
    severity = field.counts("The number of exports with each severity.")
    project_id = field.counts("The number of exports of each project.")
    source = field.counts("The number of exports from each kind of source.")
    rule = field.counts("The number of exports with each rule code.")


class ExportListResponse(ResponseSchema):
    """A page of exports."""

    items = field.several(ExportResponse, "The exports, in the order of `sort`.")
    next_cursor = field.next_cursor_text()
    total = field.number(
        "The number of exports that match, on all pages together", null="if more than 10,000 match", example=392
    )
    facets = field.part(
        ExportFacetsResponse, "The number of exports with each value; present with `facets=true`.", optional=True
    )


class SiblingExportsResponse(ResponseSchema):
    """The exports of one ticket for several targets."""

    items = field.several(ExportResponse, "The exports, in the order of `target_ids`.")


class SplitResponse(ResponseSchema):
    """The exports of a group that was split."""

    ticket_exports = field.several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}),
        "The ids of the exports: first the group's own, then one for each other finding.",
    )
