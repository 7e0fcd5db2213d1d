"""The events that a target may ask for."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class TicketEventType(StrEnum):
    """What happened to a ticket, with the values of the API."""

    FIXED = "ticket.fixed"
    REOPENED = "ticket.reopened"
    UPDATED = "ticket.updated"
    REDACT = "ticket.redact"


#: What a tracker asks for unless its client says otherwise; a webhook asks for none.
ALL_EVENTS: Final = tuple(each.value for each in TicketEventType)


def ordered_events(events: Iterable[str]) -> list[str]:
    """Return types of events once each, in the order of TicketEventType."""
    wanted = set(events)
    return [each for each in ALL_EVENTS if each in wanted]
