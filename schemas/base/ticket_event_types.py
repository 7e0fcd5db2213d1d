"""The types of events that a target may subscribe to."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class TicketEventType(StrEnum):
    """What happened to a ticket, with the values of the API."""

    FIXED = "ticket.fixed"
    REOPENED = "ticket.reopened"
    UPDATED = "ticket.updated"
    REDACT = "ticket.redact"


#: A tracker subscribes to all of these unless its client says otherwise; a webhook subscribes to none.
ALL_EVENTS: Final = tuple(each.value for each in TicketEventType)


def ordered_events(events: Iterable[str]) -> list[str]:
    """Return types of events once each, in the order of TicketEventType."""
    wanted = set(events)
    return [each for each in ALL_EVENTS if each in wanted]
