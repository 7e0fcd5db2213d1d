"""The words that the console shows for values of the API."""

import pytest

from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket_events import TicketEventStatus
from service.console import wording

#: Actions of the audit log besides transitions.
ACTIONS = (
    *("prepare", "extend", "join", "edit", "split", "snooze", "label", "wait_for_target", "approve_events", "seen_again"),
    "redact",
)


@pytest.mark.parametrize("action", [*Transition, *ACTIONS])
def test_every_event_of_a_ticket_is_described_in_words(action: str) -> None:
    assert wording.event(action) != action
    assert wording.event(action)[0].isupper()


@pytest.mark.parametrize("event", ALL_EVENTS)
def test_events_after_the_delivery_are_described_with_their_status(event: str) -> None:
    assert wording.event(event).endswith("” prepared")
    for status in TicketEventStatus:
        assert wording.event(f"{event}_{status}").endswith(f"” {status}")
    assert "ticket." not in wording.event(event)


def test_the_update_event_is_described_as_places_added_or_fixed() -> None:
    assert wording.event("ticket.updated_delivered") == "Event “places added or fixed” delivered"
