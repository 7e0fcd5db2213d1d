"""The bodies of deliveries and events, the attempts to deliver them, and recoveries."""

from typing import Any, Final

from marshmallow import fields

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

    id = field.identifier("exp", "The id of the export.")
    target_id = field.identifier("tgt", "The id of the target.")
    source = field.part(SourceResponse, "The source of the export.")


class TicketExportEvent(ResponseSchema):
    """The body of a delivery: the same bytes in every attempt."""

    id = field.identifier("exp", "The id of the export; equal to `Idempotency-Key`.")
    type = field.one_of(["ticket.export"], "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("The time at which the export was approved.")
    export = field.part(TicketExportEventExport, "The export.")
    ticket = field.part(TicketResponse, "The ticket as it was approved.")


class TargetPingEventTarget(ResponseSchema):
    """The target of a test event."""

    id = field.identifier("tgt", "The id of the target.")
    name = field.text("The name of the target.", example="Our tracker")


class TargetPingEvent(ResponseSchema):
    """The body of a test event: respond with 2xx, and create no ticket."""

    id = field.identifier("png", "The id of the ping; equal to `Idempotency-Key` and `X-Request-Id`.")
    type = field.one_of(["target.ping"], "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("The time at which the ping was requested.")
    target = field.part(TargetPingEventTarget, "The target.")


def _phase(name: str, example: int) -> fields.Integer:
    return field.number(f"The {name} in milliseconds", null="if there was none", example=example)


class AttemptDurationsResponse(ResponseSchema):
    """The duration of each phase of an attempt, in milliseconds; null for a phase that was not reached."""

    dns_ms = _phase("duration of the name resolution", 2)
    connect_ms = _phase("duration of the TCP connection", 11)
    tls_ms = _phase("duration of the TLS handshake", 23)
    first_byte_ms = _phase("time from the request to the first byte of the response", 51)
    total_ms = field.number("The duration of the whole attempt in milliseconds.", nullable=True, example=87)


class AttemptResultResponse(ResponseSchema):
    """When one attempt began, and its result."""

    id = field.identifier("att", "The id of the attempt; the receiver got it as `X-Request-Id`.")
    number = field.number("The number of the attempt, from 1.", minimum=1)
    started_at = field.moment("The time at which the attempt began.")
    outcome = field.one_of(_OUTCOMES, "The outcome of the attempt.")
    response_status = field.number("The receiver's HTTP status", null="if there was no response", example=202)
    error_code = field.text("The reason of the failure", null="on success")


class AttemptResponse(AttemptResultResponse):
    """One signed POST of one export."""

    retry_after_seconds = field.number(
        "The seconds of the receiver's `Retry-After`", null="if there was none", attribute="retry_after_s"
    )
    durations = field.part(AttemptDurationsResponse, "The duration of each phase.", attribute="timings")


class EventAttemptResponse(AttemptResultResponse):
    """One attempt to deliver an event."""

    retry_after_seconds = field.number("The seconds of the receiver's `Retry-After`", null="if there was none")
    duration_ms = field.number("The duration of the attempt in milliseconds.", nullable=True)


class TicketEventResponse(ResponseSchema):
    """An event that a target receives about a ticket that was delivered to it."""

    id = field.identifier("evt", "The id of the event; the receiver gets it as `Idempotency-Key`.")
    type = field.one_of(TicketEventType, "The type of the event.")
    status = field.one_of(
        TicketEventStatus,
        "`pending` until the event is delivered, failed or cancelled. It is cancelled if the ticket is "
        "redacted, or retried at another target.",
    )
    attempts = field.number("The number of attempts that have begun.")
    deliveries = field.several(EventAttemptResponse, "The attempts that have ended, oldest first.")
    error_code = field.text("The reason why the last attempt failed", null="on success")
    result = field.one_of(
        TrackerEventAction,
        "What the event changed at the issue of a tracker",
        null="for webhooks, and until the event is delivered",
    )
    created_at = field.moment("The time at which the event was created.")
    finished_at = field.moment("The time at which the event was delivered, failed or cancelled", null="before that")


class EventTicketResponse(ResponseSchema):
    """The ticket of an event."""

    title = field.text("The title of the ticket", null="after a redaction", example="Image without alternative text")
    digest = field.text("The digest of the ticket.", pattern=DIGEST)


class ChangedPlaceResponse(ResponseSchema):
    """A place that changed."""

    url = field.text("The URL of the page.", example="https://shop.example/cart")
    location = field.text("The location on the page.", example="main > img.hero")
    state = field.one_of(("open", "fixed"), "The current state of the place.", example="fixed")


class TicketChangeResponse(ResponseSchema):
    """The changes of a ticket in a scan run."""

    places_added = field.number("The number of places that are new or open again.")
    places_fixed = field.number("The number of places that are now fixed.", example=1)
    places_open = field.number("The number of open places of the whole ticket.", example=41)
    places = field.several(ChangedPlaceResponse, "The places that changed, up to 50.")


class TicketEventBody(ResponseSchema):
    """The body of an event: the same bytes in every attempt."""

    id = field.identifier("evt", "The id of the event; equal to `Idempotency-Key`.")
    type = field.one_of(TicketEventType, "The type of the event.")
    version = field.number("The version of this format.", minimum=1)
    created_at = field.moment("The time at which the event was created.")
    export = field.part(TicketExportEventExport, "The export.")
    ticket = field.part(EventTicketResponse, "The ticket that the target received.")
    provider_ticket = field.part(
        ProviderTicketResponse, "The ticket's id and URL at the receiver", null="if the receiver returned neither"
    )
    change = field.part(TicketChangeResponse, "The changes of the ticket.")


def dump_details(details: AttemptDetails) -> dict[str, Any]:
    """Return the JSON object of an attempt for the operator, including the fields that clients do not see."""
    own = {"address": details.address, "nonce": details.nonce, "worker": details.worker, "answer": details.response_excerpt}
    return {**dump(AttemptResponse, details.attempt), **own}


class RecoveryResponse(ResponseSchema):
    """A job that redelivers the failed exports of a target."""

    id = field.identifier("rec", "The id of the recovery.")
    target_id = field.identifier("tgt", "The id of the target.")
    since = field.moment("The earliest time; exports that failed or were blocked then or later are redelivered.")
    status = field.one_of(RecoveryStatus, "`running` until every export is due again, or the recovery is cancelled.")
    total = field.number(
        "The number of exports that were found. It begins with those among the newest 10,000 failures of "
        "the target, grows while the recovery runs, and is exact once the recovery is `done`.",
        example=42,
    )
    done = field.number("The number of exports that are due again.")
    created_at = field.moment("The time at which the recovery was requested.")
    finished_at = field.moment("The time at which the recovery ended", null="before that")
