"""The bodies of deliveries and events, the attempts to deliver them, and recoveries."""

from typing import Any, Final

from schemas.api import response_fields as field
from schemas.api.exports import ProviderTicketResponse, SourceResponse, TicketResponse
from schemas.api.response_fields import DIGEST, ResponseSchema, dump
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.attempt_record import AttemptDetails
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.tickets.ticket_events import TicketEventStatus
from schemas.trackers.events import TrackerEventAction

#: The outcomes of an attempt.
_OUTCOMES: Final = ("delivered", "retryable", "rejected", "refused", "exhausted")


class TicketExportEventExport(ResponseSchema):
    """The export of a delivery."""

    id = field.identifier("exp", "The export.")
    target_id = field.identifier("tgt", "The target.")
    source = field.part(SourceResponse, "The source of the export.")


class TicketExportEvent(ResponseSchema):
    """The body of a delivery: the same bytes in every attempt."""

    id = field.identifier("exp", "The export; equal to `Idempotency-Key`.")
    type = field.one_of(["ticket.export"], "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("When the export was approved.")
    export = field.part(TicketExportEventExport, "The export.")
    ticket = field.part(TicketResponse, "The ticket as it was approved.")


class TargetPingEventTarget(ResponseSchema):
    """The target of a test event."""

    id = field.identifier("tgt", "The target.")
    name = field.text("The name of the target.", example="Our tracker")


class TargetPingEvent(ResponseSchema):
    """The body of a test event: respond with 2xx, and create no ticket."""

    id = field.identifier("png", "The ping; equal to `Idempotency-Key` and `X-Request-Id`.")
    type = field.one_of(["target.ping"], "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("When the ping was requested.")
    target = field.part(TargetPingEventTarget, "The target.")


class AttemptDurationsResponse(ResponseSchema):
    """The duration of each phase of an attempt, in milliseconds; null for a phase that was not reached."""

    dns_ms = field.number("Name resolution.", nullable=True, example=2)
    connect_ms = field.number("TCP connection.", nullable=True, example=11)
    tls_ms = field.number("TLS handshake.", nullable=True, example=23)
    first_byte_ms = field.number("From the request to the first byte of the response.", nullable=True, example=51)
    total_ms = field.number("The whole attempt.", nullable=True, example=87)


class AttemptResultResponse(ResponseSchema):
    """When one attempt began, and its result."""

    id = field.identifier("att", "The attempt; the receiver got it as `X-Request-Id`.")
    number = field.number("The number of the attempt, from 1.", minimum=1)
    started_at = field.moment("When it began.")
    outcome = field.one_of(_OUTCOMES, "The outcome.")
    response_status = field.number("The receiver's HTTP status; null if there was no response.", nullable=True, example=202)
    error_code = field.text("The reason of the failure; null on success.", nullable=True)


class AttemptResponse(AttemptResultResponse):
    """One signed POST of one export."""

    retry_after_seconds = field.number("The receiver's `Retry-After`, in seconds.", nullable=True, attribute="retry_after_s")
    durations = field.part(AttemptDurationsResponse, "The duration of each phase.", attribute="timings")


class EventAttemptResponse(AttemptResultResponse):
    """One attempt to deliver an event."""

    retry_after_seconds = field.number("The receiver's `Retry-After`, in seconds.", nullable=True)
    duration_ms = field.number("The duration in milliseconds.", nullable=True)


class TicketEventResponse(ResponseSchema):
    """An event that a target receives about a ticket that was delivered to it."""

    id = field.identifier("evt", "The event; the receiver gets it as `Idempotency-Key`.")
    type = field.one_of(TicketEventType, "What happened to the ticket.")
    status = field.one_of(
        TicketEventStatus,
        "`pending` until it is delivered or failed, or cancelled: the ticket was redacted, or retried at another target.",
    )
    attempts = field.number("The number of attempts that have begun.")
    deliveries = field.several(EventAttemptResponse, "The attempts that have ended, oldest first.")
    error_code = field.text("Why the last attempt failed; null on success.", nullable=True)
    result = field.one_of(TrackerEventAction, "What was done with the issue of a tracker.", nullable=True)
    created_at = field.moment("When it was formed.")
    finished_at = field.moment("When it was delivered, failed or cancelled.", nullable=True)


class EventTicketResponse(ResponseSchema):
    """The ticket of an event."""

    title = field.text("Its title; null once it is redacted.", nullable=True, example="Image without alternative text")
    digest = field.text("Its digest.", pattern=DIGEST)


class ChangedPlaceResponse(ResponseSchema):
    """A place that changed."""

    url = field.text("The URL of the page.", example="https://shop.example/cart")
    location = field.text("Where on the page.", example="main > img.hero")
    state = field.one_of(("open", "fixed"), "What it is now.", example="fixed")


class TicketChangeResponse(ResponseSchema):
    """The changes of a ticket in a scan run."""

    places_added = field.number("Places that are new or open again.")
    places_fixed = field.number("Places that are fixed.", example=1)
    places_open = field.number("Places that are open now, of all places of the ticket.", example=41)
    places = field.several(ChangedPlaceResponse, "Up to 50 of the places that changed.")


class TicketEventBody(ResponseSchema):
    """The body of an event: the same bytes in every attempt."""

    id = field.identifier("evt", "The event; equal to `Idempotency-Key`.")
    type = field.one_of(TicketEventType, "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("When the event was formed.")
    export = field.part(TicketExportEventExport, "The export.")
    ticket = field.part(EventTicketResponse, "The ticket that the target received.")
    provider_ticket = field.part(ProviderTicketResponse, "What the receiver called it.", nullable=True)
    change = field.part(TicketChangeResponse, "What changed.")


def dump_details(details: AttemptDetails) -> dict[str, Any]:
    """Return the JSON object of an attempt for the operator, including the fields that clients do not see."""
    own = {"address": details.address, "nonce": details.nonce, "worker": details.worker, "answer": details.response_excerpt}
    return {**dump(AttemptResponse, details.attempt), **own}


class RecoveryResponse(ResponseSchema):
    """A job that redelivers the failed exports of a target."""

    id = field.identifier("rec", "The recovery.")
    target_id = field.identifier("tgt", "The target.")
    since = field.moment("Exports that failed or were blocked at this time or later are redelivered.")
    status = field.one_of(RecoveryStatus, "`running` until every export is due again, or the recovery is cancelled.")
    total = field.number(
        "The number of exports found: at first among the newest 10,000 of the target that failed. It grows as more are "
        "found, and is exact once the recovery is `done`.",
        example=42,
    )
    done = field.number("The number of exports that are due again.")
    created_at = field.moment("When it was requested.")
    finished_at = field.moment("When it ended.", nullable=True)
