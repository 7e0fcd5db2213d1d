"""Documents `/api/ticket-exports`."""

from typing import Final

from schemas.api.deliveries import AttemptResponse, TicketEventResponse
from schemas.api.exports import (
    ExportListResponse,
    ExportResponse,
    LastAttemptResponse,
    SiblingExportsResponse,
    SplitResponse,
    TicketResponse,
)
from schemas.api.receipts import DeliveryReceiptResponse
from service.openapi.examples import AT, example_of
from service.openapi.operations import EXPORT_FILTERS, PAGING, TARGET_ID, Operations, Record, SuccessResponse, operation

TICKET: Final = example_of(TicketResponse)
_EXPORT: Final = Record("export", ExportResponse, "TicketExport")
_PREPARED: Final = example_of(ExportResponse)
DIGEST: Final = _PREPARED["ticket_digest"]
_APPROVED: Final = {**_PREPARED, "status": "approved", "target_id": TARGET_ID, "next_attempt_at": AT, "approved_at": AT}
_WAITING: Final = {
    **_APPROVED,
    "status": "retry_scheduled",
    "attempts": 1,
    "retry_after_seconds": 30,
    "last_attempt": example_of(LastAttemptResponse, response_status=503, error_code="receiver_unavailable"),
}
_ATTEMPT: Final = Record("attempt", AttemptResponse, "TicketExportAttempt")
_EVENT: Final = Record("event", TicketEventResponse, "TicketExportEvent")

_DISMISSAL: Final = {"reason": "false_positive", "note": "The picture is decoration."}
#: Headers of an export that is due now, or later if its target is on hold.
_DUE_HEADERS: Final = ("Location", "Retry-After?")
OPERATIONS: Final[Operations] = {
    "POST /api/ticket-exports": operation(
        "prepareTicketExport",
        "Prepare an export by hand",
        "Stores a ticket exactly as sent, or rejects it; nothing is cut or trimmed. The ticket is not delivered until the "
        "export is approved. Only the title is required; without a `source`, the export itself is the source.",
        _EXPORT.created("The export is prepared."),
        examples={
            "Minimal": {"ticket": {"title": "Image without alternative text"}},
            "Complete": {"ticket": TICKET, "source": {"type": "manual", "id": "NOTE-7"}},
        },
    ),
    "GET /api/ticket-exports": operation(
        "listTicketExports",
        "List exports",
        "The exports of the token's account that match all filters. A filter with several values matches "
        "any of them. A cursor is valid only with the same filters and order; otherwise the response is "
        "422. If you sort by time, an export that exists while you read all pages is listed exactly once.",
        SuccessResponse(200, "A page of exports.", ExportListResponse, headers=("Link",)),
        parameters=(*EXPORT_FILTERS, "ExportSort", "Facets", *PAGING),
    ),
    "GET /api/ticket-exports/{export_id}": operation(
        "readTicketExport",
        "Poll an export",
        "Poll until `status` is `exported`, `failed`, `blocked` or `dismissed`. While the status is `retry_scheduled`, or "
        "`approved` for a target that is on hold, wait as long as `Retry-After` or `retry_after_seconds` before you poll "
        "again. Send `If-None-Match`: a 304 costs little, and has the current `Retry-After`.",
        SuccessResponse(200, "The export as it is now.", ExportResponse, _WAITING, ("ETag", "Retry-After?")),
        SuccessResponse(304, "Your version is the current one.", headers=("ETag", "Retry-After?")),
    ),
    "GET /api/ticket-exports/{export_id}/attempts": _ATTEMPT.listed(
        "Each signed POST of the export, newest first. An attempt whose worker died counts in the export's "
        "`attempts` but is not listed, because its result is unknown.",
        summary="List the attempts of an export",
    ),
    "GET /api/ticket-exports/{export_id}/events": _EVENT.listed(
        "The events that the target receives about the ticket after its delivery, newest first: places "
        "were added or fixed; the ticket is fixed, open again or redacted. A target receives the events "
        "that it subscribed to when the export was approved, as long as it subscribes to them.",
        summary="List the events of an export",
    ),
    "GET /api/ticket-exports/{export_id}/receipt": operation(
        "readDeliveryReceipt",
        "Get the delivery receipt of an export",
        "A proof of who approved which ticket, and of what each attempt sent and received, with the "
        "entries of the audit log about the export. `riskrelay receipt verify` verifies it without a "
        "database. If the export is not `exported`, the response is 409. For some seconds after a delivery "
        "it is 409 with `Retry-After`, until the newest entries are in the hash chain of the audit log.",
        SuccessResponse(200, "The receipt.", DeliveryReceiptResponse),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-exports/{export_id}/approve": operation(
        "approveTicketExport",
        "Approve an export for a target",
        "Freezes the exact bytes that are delivered, and makes the export due. With the `ticket_digest` that you reviewed, "
        "a ticket that has changed since is rejected. If you approve again for the same target, the response is the record, "
        "and nothing is delivered twice. The target must be active, its last validation must not have failed, and the "
        "address policy must allow its URL now; otherwise the response is 422 on `/target_id` with the reason and the fix. "
        "Exports can also be approved for a target that is on hold because of its receiver or the circuit breaker; they "
        "wait. With `target_ids`, the export is approved for the first target, and a copy of it for each further target: "
        "either all or none. The response has the exports as `items`, and each record lists them all as `siblings`.",
        SuccessResponse(
            202,
            "The export is due; with `target_ids`, the exports.",
            ExportResponse,
            _APPROVED,
            _DUE_HEADERS,
            alternative=SiblingExportsResponse,
        ),
        error_codes=("CONFLICT",),
        examples={
            "A target": {"target_id": TARGET_ID},
            "Several targets": {"target_ids": [TARGET_ID, "tgt_01KJM8A1Z8Q4R2S6T0V8W3X5Y8"]},
            "With the reviewed digest": {"target_id": TARGET_ID, "ticket_digest": DIGEST},
        },
    ),
    "POST /api/ticket-exports/{export_id}/retry": operation(
        "retryTicketExport",
        "Retry a failed or blocked export",
        "Makes the export due again with a new retry schedule. If its target is blocked, the address is checked again; if "
        "it is allowed now, the target is resumed. If the target is not active, the response is 422 on `/target_id` with "
        "the reason and the fix. With `target_id`, the export is retried at that target of the account, which must meet the "
        "conditions of an approval: the ticket and its digest stay, the delivered body names the new target, and "
        "`provider_ticket` is removed. If the outcome at the former target is unknown, both receivers may have the ticket.",
        SuccessResponse(202, "The export is due.", ExportResponse, _APPROVED, _DUE_HEADERS),
        error_codes=("CONFLICT",),
        examples={"Empty body": {}, "Another target": {"target_id": TARGET_ID}},
    ),
    "PATCH /api/ticket-exports/{export_id}": operation(
        "editTicketExport",
        "Edit a prepared ticket",
        "Replaces at least one of title, description, severity and labels of a prepared ticket. The ticket gets a new "
        "digest, and is checked for forbidden content again. The original ticket is kept as `original_ticket`; if an edit "
        "restores it, `edited` is false again. With the `ticket_digest` that you read, a ticket that has changed since is "
        "not edited: the response is 409. A label `severity:…` follows a new severity, unless the body has `labels`.",
        _EXPORT.response("The export with its new ticket."),
        error_codes=("CONFLICT",),
        examples={
            "A title": {"title": "Describe the picture on the home page"},
            "All parts": {
                "title": "Describe the picture on the home page",
                "description": "Add alternative text to the picture.",
                "severity": "low",
                "labels": ["accessibility", "quick-win"],
                "ticket_digest": DIGEST,
            },
        },
    ),
    "POST /api/ticket-exports/{export_id}/dismiss": operation(
        "dismissTicketExport",
        "Dismiss a prepared export",
        "Dismisses an export: it is not delivered unless it is restored and approved. If you dismiss it again with the same "
        "reason and note, the response is the record; with others, it is 409. New places join a group that was dismissed as "
        "`false_positive` or `wont_fix`, and need no decision; with another reason, or without one, they make a new group.",
        _EXPORT.response("The export is dismissed."),
        error_codes=("CONFLICT",),
        examples={"Empty body": {}, "A reason and a note": _DISMISSAL},
    ),
    "POST /api/ticket-exports/{export_id}/restore": operation(
        "restoreTicketExport",
        "Restore a dismissed export, or end a snooze",
        "Makes a dismissed export prepared again, or ends the snooze of a prepared one. A prepared export "
        "that is not snoozed is returned unchanged. If the export is redacted, the response is 409.",
        _EXPORT.response("The export is prepared."),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-exports/{export_id}/split": operation(
        "splitTicketExport",
        "Split a group into one export per finding",
        "The export keeps its first finding; each other finding of the group gets a prepared export. New findings of the "
        "rule begin a new group. If the export has one finding, or more than 1,000, the response is 409.",
        SuccessResponse(200, "The group is split.", SplitResponse),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-exports/{export_id}/snooze": operation(
        "snoozeTicketExport",
        "Snooze a prepared export",
        "Snoozes the export until a time in the future; with `until` null or absent, until one of its "
        "findings is seen again. The status stays `prepared`. An approval, a dismissal, `restore` or a "
        "higher severity ends the snooze earlier.",
        _EXPORT.response("The export is snoozed."),
        error_codes=("CONFLICT",),
        examples={"A time": {"until": "2126-03-15T08:00:00Z"}, "Until it is seen again": {"until": None}},
    ),
}
