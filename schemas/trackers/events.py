"""Events of tickets as trackers get them: what happened to a ticket whose issue exists, and what was done with the issue."""

from dataclasses import dataclass
from enum import StrEnum

from schemas.base.places import ChangedPlace
from schemas.base.ticket_event_types import TicketEventType


class TrackerEventAction(StrEnum):
    """What an event did to its issue; a comment comes before it is closed, reopened or left alone."""

    #: A comment was made, and the issue's state is unchanged.
    COMMENTED = "commented"
    CLOSED = "closed"
    REOPENED = "reopened"
    #: A person reopened an issue that RiskRelay had closed: it is not closed again.
    LEFT_ALONE = "left_alone"
    #: Title and description are overwritten.
    REDACTED = "redacted"
    #: The target's settings exclude this event; no request was sent.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class TrackerEvent:
    """An event of a ticket that became the issue `issue_id` (`7`, `SHOP-7`); "" if the tracker named none.

    The comment of an event has `event_id` in its text, the marker by which it is found again. `has_closed` says that we
    closed the issue earlier and have not reopened it since, `is_left_alone` that a person reopened an issue that we closed,
    `is_outcome_unknown` that an earlier attempt may have been applied, `has_moved` that the target's URL changed after the
    ticket was sent: then the issue with this number may belong to somebody else.
    """

    event_id: str
    type: TicketEventType
    issue_id: str
    export_id: str
    places_added: int = 0
    places_fixed: int = 0
    places_open: int = 0
    #: Some of the changed places; the counts include all of them.
    places: tuple[ChangedPlace, ...] = ()
    #: The export's page in the console.
    console_url: str | None = None
    has_closed: bool = False
    is_left_alone: bool = False
    is_outcome_unknown: bool = False
    has_moved: bool = False
