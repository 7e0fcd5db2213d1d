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
        "The id of the finding, capture, diagnostics or email; for a ticket prepared by hand, the id it was given.",
        example="NOTE-7",
    )
    scan_run_id = field.number("For a finding: the scan run that first reported it.", optional=True)


class TicketResponse(ResponseSchema):
    """The ticket that is reviewed and delivered."""

    title = field.text("A single line.", example="Image without alternative text")
    description = field.text("The description.", example="Screen readers cannot tell what the picture shows.")
    severity = field.one_of(SEVERITIES, "The severity.", example="high")
    page_url = field.text("The URL of the page.", nullable=True, example="https://shop.example/")
    labels = field.several(fields.String(), "The labels.", example=["accessibility"])
    evidence = field.free("Supporting data from the source.", {"location": "main > img.hero"})


class PreviewResponse(ResponseSchema):
    """Whether the ticket can be approved."""

    safe = field.truth("True if the ticket can be approved.")
    problems = field.several(FieldProblemResponse, "Why it cannot be approved.", example=[])


class LastAttemptResponse(ResponseSchema):
    """The latest attempt."""

    at = field.moment("When it began.")
    response_status = field.number("The receiver's HTTP status; null if there was no response.", nullable=True)
    error_code = field.text("The reason of the failure; null on success.", nullable=True)
    duration_ms = field.number("The duration in milliseconds.", nullable=True)


class ProviderTicketResponse(ResponseSchema):
    """The ticket that the receiver created, as the receiver reported it."""

    id = field.text("The ticket's id at the receiver.", nullable=True, example="1047")
    url = field.text("The ticket's URL at the receiver.", nullable=True, example="https://tracker.example.com/tickets/1047")


class ExportFindingResponse(ResponseSchema):
    """When, and by how many scan runs, the finding of an export was reported."""

    id = field.identifier("fnd", "The finding.")
    first_seen_at = field.moment("When it was first reported.")
    last_seen_at = field.moment("When it was last reported.")
    times_seen = field.number("The number of scan runs that reported it.", minimum=1)
    first_scan_run_id = field.number("The first scan run that reported it.", minimum=1)
    last_scan_run_id = field.number("The last scan run that reported it.", minimum=1)


class ExportFindingsResponse(ResponseSchema):
    """How many findings an export has."""

    total = field.number("All findings whose ticket it is.", minimum=1)
    fixed = field.number("Those that are fixed.")


class DismissalResponse(ResponseSchema):
    """Why an export was dismissed."""

    reason = field.one_of(DismissalReason, "The reason, if one was named.", nullable=True)
    note = field.text("The note, if there is one.", nullable=True)
    at = field.moment("When it was dismissed.", nullable=True)


class ApprovedByResponse(ResponseSchema):
    """Who approved an export."""

    kind = field.one_of(("user", "rule"), "A user, or an approval rule.")
    id = fields.Raw(
        required=True, metadata={"type": ["integer", "string"], "description": "The user's number, or the rule's id."}
    )
    name = field.text("The user's address, or the rule's name; null if it was removed.", nullable=True)


class ExportResponse(ResponseSchema):
    """A ticket and its delivery to a target."""

    id = field.identifier("exp", "The export.")
    status = field.one_of(
        ExportStatus, "The status; `exported`, `failed`, `blocked` and `dismissed` change only by a request."
    )
    status_reason = field.text(
        "The reason of the status `failed`, `blocked` or `dismissed`, if there is one; `target_paused` or `target_inactive` "
        "while the export waits for such a target.",
        nullable=True,
    )
    target_id = field.identifier("tgt", "The target it was approved for.", nullable=True)
    source = field.part(SourceResponse, "The source of the export.")
    ticket = field.part(TicketResponse, "The ticket; the approval freezes it.")
    ticket_digest = field.text("The digest of exactly this ticket; an approval can require it.", pattern=DIGEST)
    preview = field.part(PreviewResponse, "Whether the ticket can be approved.")
    attempts = field.number("The number of attempts that have begun.")
    next_attempt_at = field.moment(
        "When the next attempt is due; null if none is, or while the target is paused or inactive.", nullable=True
    )
    created_at = field.moment("When it was prepared.")
    approved_at = field.moment("When it was approved.", nullable=True)
    finished_at = field.moment("When it reached a final status.", nullable=True)
    project_id = field.number("The project, if it belongs to one.", nullable=True, minimum=1)
    severity = field.one_of(SEVERITIES, "The severity of the ticket.", example="high")
    rule = field.text("The rule code of its findings; null for other sources.", nullable=True)
    findings = field.part(ExportFindingsResponse, "Its findings; null for other sources.", nullable=True)
    edited = field.truth("Whether a person edited the ticket.", example=False)
    retry_after_seconds = field.number(
        "Whole seconds until the next attempt, 60 if its time is unknown; equal to `Retry-After`. Present while `status` is "
        "`retry_scheduled`, or `approved` for a target that is on hold.",
        optional=True,
        minimum=1,
    )
    last_attempt = field.part(LastAttemptResponse, "The latest attempt; absent before the first.", optional=True)
    provider_ticket = field.part(
        ProviderTicketResponse, "The ticket at the receiver, if the receiver named one.", optional=True
    )
    finding = field.part(ExportFindingResponse, "The finding, if the export was prepared from one.", optional=True)
    dismissal = field.part(DismissalResponse, "Why it was dismissed; present while `status` is `dismissed`.", optional=True)
    snoozed_until = field.moment(
        "Present while it is snoozed: until when, or null until one of its findings is seen again.",
        nullable=True,
        optional=True,
    )
    approved_by = field.part(ApprovedByResponse, "Who approved it; absent if the operator did.", optional=True)
    siblings = field.several(
        field.identifier("exp", "An export."),
        "All exports of this ticket, if it was approved for several targets.",
        optional=True,
    )
    original_ticket = field.part(
        TicketResponse, "The ticket before a person edited it; absent in lists and while `edited` is false.", optional=True
    )


class ExportFacetsResponse(ResponseSchema):
    """The number of exports with each value, among the newest 5,000 matches; each facet ignores its own filter."""

    status = field.counts("How many exports each status has.")
    severity = field.counts("How many exports each severity has.")
    project_id = field.counts("How many exports each project has.")
    source = field.counts("How many exports each source has.")
    rule = field.counts("How many exports each rule code has.")


class ExportListResponse(ResponseSchema):
    """A page of exports."""

    items = field.several(ExportResponse, "The exports, in the order of `sort`.")
    next_cursor = field.next_cursor_text()
    total = field.number("How many exports match on all pages; null if more than 10,000 do.", nullable=True, example=392)
    facets = field.part(ExportFacetsResponse, "Present with `facets=true`.", optional=True)


class SiblingExportsResponse(ResponseSchema):
    """The exports of one ticket for several targets."""

    items = field.several(ExportResponse, "The exports, in the order of the targets.")


class SplitResponse(ResponseSchema):
    """The exports of a group that was split."""

    ticket_exports = field.several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The group's own export, then one for each other finding."
    )
