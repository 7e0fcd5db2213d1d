"""Builds the ticket or event that a tracker gets, from the bytes that were made for a receiver."""

import json
from typing import Any

from schemas.base.places import ChangedPlace, Place
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.tickets.group_ticket import GROUP_NAMES, is_group, without_places
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import TrackerTicket


def ticket_of(body: bytes, public_base_url: str | None) -> TrackerTicket:
    """Return the ticket of a delivery's body (`schemas.exports.tickets.ticket.delivery_body`).

    `public_base_url` is where the console is reachable.
    """
    delivery = json.loads(body)
    export_id, ticket = delivery["export"]["id"], delivery["ticket"]
    evidence: dict[str, Any] = ticket["evidence"]
    # A scanner's own evidence may have some of a group's names.
    places = [Place(**each) for each in evidence["places"]] if is_group(ticket) else []
    return TrackerTicket(
        export_id=export_id,
        title=ticket["title"],
        # The tracker's text has its own list of the places, which is longer than the description's.
        description=without_places(ticket["description"]) if len(places) > 1 else ticket["description"],
        severity=ticket["severity"],
        page_url=ticket["page_url"],
        labels=tuple(ticket["labels"]),
        places=tuple(places),
        places_total=evidence["findings"] if places else 0,
        evidence={name: value for name, value in evidence.items() if not places or name not in GROUP_NAMES},
        console_url=_console_url(public_base_url, export_id),
    )


def event_of(
    body: bytes,
    public_base_url: str | None,
    issue_id: str | None = None,
    *,
    has_closed: bool = False,
    is_left_alone: bool = False,
    is_outcome_unknown: bool = False,
    has_moved: bool = False,
) -> TrackerEvent:
    """Return the event of its body (`ticket_events.event_body`); the other arguments are its members.

    `issue_id` is for an issue that did not exist when the event was formed. If the ticket was redacted, only the body has
    the id of the issue.
    """
    event = json.loads(body)
    export_id, change = event["export"]["id"], event["change"]
    return TrackerEvent(
        event_id=event["id"],
        type=TicketEventType(event["type"]),
        issue_id=(event["provider_ticket"] or {}).get("id") or issue_id or "",
        export_id=export_id,
        places_added=change["places_added"],
        places_fixed=change["places_fixed"],
        places_open=change["places_open"],
        places=tuple(ChangedPlace(each["url"], each["location"], each["state"]) for each in change["places"]),
        console_url=_console_url(public_base_url, export_id),
        has_closed=has_closed,
        is_left_alone=is_left_alone,
        is_outcome_unknown=is_outcome_unknown,
        has_moved=has_moved,
    )


def _console_url(public_base_url: str | None, export_id: str) -> str | None:
    return None if public_base_url is None else f"{public_base_url}/console/exports/{export_id}"
