"""Documents the outbound webhooks: deliveries, events and pings, and the meaning of each response."""

from collections.abc import Callable
from typing import Any, Final

from schemas.api.deliveries import TargetPingEvent, TicketEventBody, TicketExportEvent
from schemas.api.exports import ProviderTicketResponse
from schemas.base.ticket_event_types import TicketEventType
from schemas.version import USER_AGENT
from service.openapi.examples import example_of
from service.openapi.operations import EXPORT_ID

TAG: Final = "Deliveries"

_EVENTS: Final = {
    TicketEventType.UPDATED: ("TicketUpdated", "Places of a ticket were added or fixed"),
    TicketEventType.FIXED: ("TicketFixed", "All places of a ticket are fixed"),
    TicketEventType.REOPENED: ("TicketReopened", "A fixed place of a ticket is open again"),
    TicketEventType.REDACT: ("TicketRedact", "A ticket must be erased"),
}
_EVENT_TEXT: Final = (
    "Posted to targets that received the ticket and list the type in `events`. The request is signed and "
    "retried like a delivery; the events of one ticket are sent in order. `Idempotency-Key` is the event's "
    "id. If you do not know the ticket, respond with 2xx and ignore the event."
)
_EFFECTS: Final = {
    "2XX": "Accepted: the event is `delivered`.",
    "4XX": "The event is `failed`, except for 408, 425 and 429; the export stays as it is.",
    "default": "The event is retried like a delivery.",
}

_HEADERS: Final = (
    (
        "X-Service-Timestamp",
        "The time of the attempt, in seconds since 1970. Reject a time that differs from yours by more than five minutes.",
        "^[0-9]+$",
        "1772366700",
    ),
    (
        "X-Service-Nonce",
        "A random value, new for each attempt. Reject a nonce that you have received in the last ten minutes.",
        "^[0-9a-f]{32}$",
        "3f1a9c5be07d42688b6e0d4f7a21c953",
    ),
    (
        "X-Service-Signature",
        "HMAC-SHA-256 with the shared secret over timestamp, `.`, nonce, `.` and the raw body. Verify it before you parse.",
        "^sha256=[0-9a-f]{64}$",
        "sha256=5b1f0c8a4d2e6f7091a3b5c7d9e1f30214365870a1b2c3d4e5f60718293a4b5c",
    ),
    (
        "Idempotency-Key",
        "The id of the export, the event or the ping; the same for every attempt. Look it up before you create a ticket.",
        None,
        EXPORT_ID,
    ),
    ("X-Request-Id", "The id of the attempt, as in `listTicketExportAttempts`.", None, "att_01KJM8C3D5E7F9G1H2J4K6M8N0"),
    ("User-Agent", "The sender and its version.", None, USER_AGENT),
)

#: The effect of a response on an export; a ping only reports the response.
_MEANINGS: Final = {
    "2XX": "Accepted: the export is `exported`. A JSON body with `id` or `ticket_id`, and `url` or `ticket_url`, is "
    "shown to clients as `provider_ticket`.",
    "3XX": "Redirects are not followed: the export is `failed` with `redirect_refused`.",
    "401": "The export is `failed` with `receiver_unauthorized`, or with `WEBHOOK_SIGNATURE_INVALID` if "
    "your body has that `code`.",
    "403": "The same as 401.",
    "408": "The delivery is retried on the schedule.",
    "410": "The export is `failed` with `receiver_gone`, and the target is disabled.",
    "425": "The delivery is retried on the schedule.",
    "429": "The delivery is retried after `Retry-After` (seconds or an HTTP date, up to a day), or after "
    "30 s; all deliveries to the target wait until then.",
    "4XX": "The export is `failed` with `WEBHOOK_VALIDATION_FAILED` if your body has that `code`, "
    "otherwise with `receiver_rejected`. With every 4xx, the `code` `WEBHOOK_SIGNATURE_INVALID` in "
    "the body means that failure, and `WEBHOOK_RATE_LIMITED` counts as a 429.",
    "501": "The export is `failed` with `receiver_rejected`.",
    "505": "The export is `failed` with `receiver_rejected`.",
    "503": "The delivery is retried. With `Retry-After`, all deliveries to the target wait until then.",
    "5XX": "The delivery is retried on the schedule, for at most three days: after 5 s, 30 s, 2 min, 10 "
    "min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h. The operator can change the schedule.",
}


def webhooks(reference: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the section `webhooks`; `reference` adds a schema to the components and returns its reference."""
    delivery = _outbound(
        "deliverTicketExport",
        "A ticket is delivered",
        "Posted to the target's `base_url`, at least once: after a crash or a lost response it can arrive again, with the "
        "same body and the same `Idempotency-Key`. Respond within 15 s. The body is the bytes that the approval froze. If "
        "the target has another `format`, the body is a CloudEvents 1.0 event or a SARIF 2.1.0 log; if it has another "
        "`signature`, the headers are `webhook-id`, `webhook-timestamp` and `webhook-signature` of Standard Webhooks. "
        "Headers that the operator has set for the target are sent as well.",
        reference(TicketExportEvent),
        example_of(TicketExportEvent),
        _MEANINGS,
    )
    ping = _outbound(
        "deliverTargetPing",
        "A test event",
        "Posted once for each `pingTicketExportTarget`, signed like a delivery. Do not create a ticket for it.",
        reference(TargetPingEvent),
        example_of(TargetPingEvent),
        {
            "2XX": "The ping succeeded: `delivered` is true.",
            "default": "The ping failed: `delivered` is false. It is not sent again.",
        },
    )
    body = reference(TicketEventBody)
    events = {
        each.value: {"post": _outbound(f"deliver{name}", summary, _EVENT_TEXT, body, _example(each), _EFFECTS)}
        for each, (name, summary) in _EVENTS.items()
    }
    return {"ticket.export": {"post": delivery}, "target.ping": {"post": ping}, **events}


def _example(event: TicketEventType) -> dict[str, Any]:
    return example_of(TicketEventBody, type=event.value, provider_ticket=example_of(ProviderTicketResponse))


def _outbound(
    operation_id: str,
    summary: str,
    description: str,
    schema: dict[str, Any],
    example: dict[str, Any],
    meanings: dict[str, str],
) -> dict[str, Any]:
    return {
        "operationId": operation_id,
        "tags": [TAG],
        "summary": summary,
        "description": description,
        "parameters": [_parameter(*each) for each in _HEADERS],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}},
        "responses": {status: {"description": description} for status, description in meanings.items()},
        "security": [],
    }


def _parameter(name: str, description: str, pattern: str | None, example: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": pattern} if pattern else {"type": "string"}
    return {"in": "header", "name": name, "description": description, "required": True, "schema": schema, "example": example}
