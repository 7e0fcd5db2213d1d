"""The comment of an event, and what overwrites an erased ticket; strangers' text in them is as harmless as in an issue."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent, TrackerEventPlace
from schemas.trackers.text.neutral import cut, one_line
from schemas.trackers.text.outline import OPEN, Block, Flavor, Text

MAX_PLACES: Final = 50
_MAX_URL: Final = 2048
_MAX_LOCATION: Final = 500

_NEWS: Final = {
    TicketEventType.FIXED: "This is fixed: the latest scans no longer found it.",
    TicketEventType.REOPENED: "This is back: the latest scan found it again.",
    TicketEventType.UPDATED: "The latest scan changed this ticket.",
}
_ERASED: Final = (
    "The content of this ticket was erased on request. Earlier versions and comments may still have parts of it."
)


def comment(
    event: TrackerEvent,
    max_chars: int,
    flavor: Flavor[Block],
    write: Callable[[Iterable[Block]], Text],
    size: Callable[[Text], int],
) -> Text:
    """Return what `write` makes of an event's blocks, with as many places as fit into `max_chars` by `size`."""
    places = event.places[:MAX_PLACES]
    text = write(_blocks(event, places, flavor))
    while places and size(text) > max_chars:
        places = places[:-1]
        text = write(_blocks(event, places, flavor))
    return text


def erased_title(event: TrackerEvent) -> str:
    """Return the title of an erased ticket."""
    return f"Erased ticket {event.export_id}"


def erased(event: TrackerEvent, flavor: Flavor[Block]) -> Iterator[Block]:
    """Yield the blocks of an erased ticket: the marker of its issue is kept."""
    yield flavor.line(_ERASED)
    yield flavor.line(f"RiskRelay export {event.export_id}")


def _blocks(event: TrackerEvent, places: Sequence[TrackerEventPlace], flavor: Flavor[Block]) -> Iterator[Block]:
    yield flavor.line(_NEWS[event.type])
    counts = _counts(event)
    if counts:
        yield flavor.line(counts)
    found = "Found again:" if event.type is TicketEventType.REOPENED else "Added:"
    for title, is_fixed, total in (("Fixed:", True, event.places_fixed), (found, False, event.places_added)):
        listed = [_place(each, flavor) for each in places if each.is_fixed is is_fixed]
        if listed:
            yield flavor.line(title)
            more = total - len(listed)
            yield flavor.places(listed, f"… and {more} more" if more > 0 else "")
    if event.console_url:
        yield flavor.link(OPEN, event.console_url)
    yield flavor.line(f"RiskRelay event {event.event_id}")


def _counts(event: TrackerEvent) -> str:
    """Return `3 places added, 17 fixed, 25 still open.` without what is none; "" if all are."""
    counted = ((event.places_added, "added"), (event.places_fixed, "fixed"), (event.places_open, "still open"))
    (count, what), *others = [each for each in counted if each[0]] or [(0, "")]
    if not count:
        return ""
    first = f"{count} {'place' if count == 1 else 'places'} {what}"
    return f"{', '.join([first, *(f'{number} {state}' for number, state in others)])}."


def _place(place: TrackerEventPlace, flavor: Flavor[Block]) -> tuple[str, ...]:
    url = flavor.neutral_url(cut(place.url, _MAX_URL))
    location = flavor.neutral(one_line(cut(place.location, _MAX_LOCATION)))
    return tuple(filter(None, (url, location))) or ("unknown",)
