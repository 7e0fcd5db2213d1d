"""Ticket events for tests of trackers."""

from typing import Any, Final

from schemas.base.places import ChangedPlace
from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent

EVENT_ID: Final = "evt_01KG9YS7G061SQWPCHNYBQC8F5"
EXPORT_ID: Final = "exp_01KG9YS7G061SQWPCHNYBQC8F2"
CONSOLE: Final = f"https://riskrelay.example.com/console/exports/{EXPORT_ID}"


def event(event_type: TicketEventType = TicketEventType.UPDATED, **changes: Any) -> TrackerEvent:
    """Return an event of issue 7 with three places added, one fixed and five open. It lists two of the places."""
    made: dict[str, Any] = {
        "event_id": EVENT_ID,
        "type": event_type,
        "issue_id": "7",
        "export_id": EXPORT_ID,
        "places_added": 3,
        "places_fixed": 1,
        "places_open": 5,
        "places": (
            ChangedPlace("https://shop.example/cart", "main > img", state="fixed"),
            ChangedPlace("https://shop.example/", "", state="open"),
        ),
        "console_url": CONSOLE,
    }
    return TrackerEvent(**(made | changes))
