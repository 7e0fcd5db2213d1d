"""Events of tickets after their delivery: what changed, and the bytes that a target gets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from schemas.base.places import ChangedPlace
from schemas.base.strict_json import JsonValue, canonical
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.tickets.ticket import BODY_VERSION, Source

#: Maximum number of changed places that are listed; the counts include all of them.
MAX_PLACES: Final = 50


class TicketEventStatus(StrEnum):
    """The status of an event, with the values of the API; nothing leaves the last three."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TicketEvent:
    """An event as clients see it; `deliveries` are its ended attempts, `result` is what was done at a tracker."""

    id: str
    type: TicketEventType
    status: TicketEventStatus
    attempts: int
    deliveries: Sequence[Mapping[str, Any]]
    error_code: str | None
    result: str | None
    created_at: datetime
    finished_at: datetime | None


class PlaceChange(StrEnum):
    """The change of a finding of a ticket in a scan run."""

    ADDED = "added"
    FIXED = "fixed"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class TicketChange:
    """The changes of a ticket in a scan run; `places` are some changed places, `places_open` says how many are open now."""

    places_added: int = 0
    places_fixed: int = 0
    places_open: int = 0
    places: tuple[ChangedPlace, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the change as receivers get it."""
        return asdict(replace(self, places=self.places[:MAX_PLACES]))


@dataclass(frozen=True, slots=True)
class EventTicket:
    """The ticket of an event: `title` is None once it is redacted; the provider ticket is what the target created."""

    export_id: str
    target_id: str
    source: Source
    title: str | None
    digest: str
    provider_ticket_id: str | None = None
    provider_ticket_url: str | None = None


def event_body(
    event_id: str, event_type: TicketEventType, ticket: EventTicket, change: TicketChange, created_at: str
) -> bytes:
    """Return the bytes a receiver gets: the same for every attempt. `created_at` is in RFC 3339, UTC."""
    provider_ticket: JsonValue = {"id": ticket.provider_ticket_id, "url": ticket.provider_ticket_url}
    if ticket.provider_ticket_id is None and ticket.provider_ticket_url is None:
        provider_ticket = None
    return canonical(
        {
            "id": event_id,
            "type": event_type.value,
            "version": BODY_VERSION,
            "created_at": created_at,
            "export": {"id": ticket.export_id, "target_id": ticket.target_id, "source": ticket.source.record()},
            "ticket": {"title": ticket.title, "digest": ticket.digest},
            "provider_ticket": provider_ticket,
            "change": change.record(),
        }
    )


def body_for(body: bytes, target_id: str) -> bytes:
    """Return the bytes of an event that was never sent, for another target."""
    event = json.loads(body)
    event["export"]["target_id"] = target_id
    return canonical(event)
