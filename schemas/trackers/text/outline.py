"""The parts of a ticket's text and of an event's comment, and how they are shortened to the tracker's limit.

A flavor writes the parts in the syntax of its tracker. First the evidence is shortened, then the places, then the
description; severity, page, link and marker are always whole, and the console has everything.
"""

import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from schemas.base.places import ChangedPlace, Place
from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.neutral import cut, encoded, harmless, length, one_line

#: Enough for the parts that are never shortened, the longest URL included.
MIN_CHARS: Final = 10_000
_MAX_PAGE: Final = 2048
#: Maximum number of places in a comment.
MAX_PLACES: Final = 50
_MAX_LOCATION: Final = 500

_FOUND: Final = "What was found"
EVIDENCE: Final = "Evidence"
_SHORTENED: Final = "This text is shortened; RiskRelay has the whole ticket."
#: The text of the link to the console.
_OPEN: Final = "Open this ticket in RiskRelay"
_NEWS: Final = {
    TicketEventType.FIXED: "This is fixed: the latest scans no longer found it.",
    TicketEventType.REOPENED: "This is back: the latest scan found it again.",
    TicketEventType.UPDATED: "The latest scan changed this ticket.",
}
_ERASED: Final = (
    "The content of this ticket was erased on request. Earlier versions and comments may still have parts of it."
)

Block = TypeVar("Block")
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class Outline:
    """The parts of a ticket's text, all made harmless; a flavor also puts the untrusted ones into blocks of code."""

    severity: str
    #: "" if there is none.
    page: str
    description: str
    #: Each a URL, and a location unless it is empty.
    places: tuple[tuple[str, ...], ...]
    places_total: int
    #: JSON; "" if there is none, or no room for it.
    evidence: str
    is_shortened: bool
    console_url: str | None
    #: The last line: the marker by which the issue is found again.
    marker: str


class Flavor(ABC, Generic[Block, Text]):
    """The syntax of a tracker's text, which consists of blocks."""

    def body_of(self, ticket: TrackerTicket, max_chars: int) -> Text:
        """Return the text of a ticket, of at most `max_chars` (at least MIN_CHARS) by `size`."""
        outline = _outline(ticket, max_chars, self)
        for shorten in (_with_evidence, _with_places, _with_description):
            if self._size_of(outline) <= max_chars:
                break
            # The largest part that fits: the text grows with the part.
            fits = bisect_right(range(1, max_chars), max_chars, key=lambda part: self._size_of(shorten(outline, part)))
            outline = shorten(outline, fits)
        return self.write(self._blocks(outline))

    def comment_of(self, event: TrackerEvent, max_chars: int) -> Text:
        """Return the comment of an event, with as many places as fit into `max_chars` by `size`."""
        places = event.places[:MAX_PLACES]
        text = self.write(self._comment_blocks(event, places))
        while places and self.size(text) > max_chars:
            places = places[:-1]
            text = self.write(self._comment_blocks(event, places))
        return text

    def erased_of(self, event: TrackerEvent) -> Text:
        """Return the text of an erased ticket: the marker of its issue is kept."""
        return self.write(map(self.line, (_ERASED, f"RiskRelay export {event.export_id}")))

    def _size_of(self, parts: Outline) -> int:
        return self.size(self.write(self._blocks(parts)))

    def _blocks(self, parts: Outline) -> Iterator[Block]:
        yield from self.facts(parts.severity, parts.page)
        if parts.description:
            yield self.heading(_FOUND)
            yield from self.description(parts.description)
        if parts.places_total:
            yield self.heading(f"Places ({parts.places_total})")
            yield self.places(parts.places, _more(parts.places_total - len(parts.places)))
        if parts.evidence:
            yield from self.evidence(parts.evidence)
        if parts.is_shortened:
            yield self.line(_SHORTENED)
        if parts.console_url:
            yield self.link(_OPEN, parts.console_url)
        yield self.line(parts.marker)

    def _comment_blocks(self, event: TrackerEvent, places: Sequence[ChangedPlace]) -> Iterator[Block]:
        """Yield the blocks of a comment: what happened, counts, the places, links."""
        yield self.line(_NEWS[event.type])
        counts = _counts(event)
        if counts:
            yield self.line(counts)
        found = "Found again:" if event.type is TicketEventType.REOPENED else "Added:"
        for title, state, total in (("Fixed:", "fixed", event.places_fixed), (found, "open", event.places_added)):
            listed = [_changed_place(each, self) for each in places if each.state == state]
            if listed:
                yield self.line(title)
                yield self.places(listed, _more(total - len(listed)))
        if event.console_url:
            yield self.link(_OPEN, event.console_url)
        yield self.line(f"RiskRelay event {event.event_id}")

    @abstractmethod
    def write(self, blocks: Iterable[Block]) -> Text:
        """Return the text that consists of these blocks."""

    @abstractmethod
    def size(self, text: Text) -> int:
        """Return how much of the tracker's limit a text takes."""

    def neutral(self, text: str) -> str:
        """Return untrusted text, made harmless in this syntax."""
        return harmless(text)

    def neutral_url(self, url: str) -> str:
        """Return an untrusted URL on one line, made harmless in this syntax."""
        return self.neutral(encoded(url))

    @abstractmethod
    def facts(self, severity: str, page: str) -> Iterable[Block]:
        """Return the severity, and the page unless that is empty."""

    @abstractmethod
    def heading(self, text: str) -> Block:
        """Return a heading of RiskRelay's own."""

    @abstractmethod
    def description(self, text: str) -> Iterable[Block]:
        """Return the blocks of the reported text."""

    @abstractmethod
    def places(self, places: Iterable[Iterable[str]], more: str) -> Block:
        """Return a list of places, then `more` unless that is empty."""

    @abstractmethod
    def evidence(self, text: str) -> Iterable[Block]:
        """Return the evidence, folded if the tracker supports it."""

    @abstractmethod
    def link(self, text: str, url: str) -> Block:
        """Return a link of RiskRelay's own."""

    @abstractmethod
    def line(self, text: str) -> Block:
        """Return a line of RiskRelay's own."""


class TextFlavor(Flavor[str, str]):
    """A flavor whose blocks are paragraphs of one text, limited in UTF-16 code units."""

    def write(self, blocks: Iterable[str]) -> str:
        """Join the blocks by empty lines."""
        return "\n\n".join(blocks)

    def size(self, text: str) -> int:
        """Return the number of UTF-16 code units."""
        return length(text)

    def line(self, text: str) -> str:
        """Return the line unchanged."""
        return text


def erased_title(event: TrackerEvent) -> str:
    """Return the title of an erased ticket."""
    return f"Erased ticket {event.export_id}"


def _more(count: int) -> str:
    """Return a text with the number of places that are not listed; "" if all are listed."""
    return f"… and {count} more" if count > 0 else ""


def _with_evidence(outline: Outline, max_chars: int) -> Outline:
    return replace(outline, evidence=cut(outline.evidence, max_chars), is_shortened=True)


def _with_places(outline: Outline, count: int) -> Outline:
    return replace(outline, places=outline.places[:count], is_shortened=True)


def _with_description(outline: Outline, max_chars: int) -> Outline:
    return replace(outline, description=cut(outline.description, max_chars), is_shortened=True)


def _outline(ticket: TrackerTicket, max_chars: int, flavor: Flavor[Block, Text]) -> Outline:
    evidence = json.dumps(ticket.evidence, ensure_ascii=False, indent=2) if ticket.evidence else ""
    # A single place is already named by the facts in the description.
    listed = ticket.places if ticket.places_total > 1 else ()
    return Outline(
        severity=flavor.neutral(one_line(ticket.severity)) or "unknown",
        page=flavor.neutral_url(cut(ticket.page_url or "", _MAX_PAGE)),
        # No part can be longer than the limit, so it is cut before it is made harmless.
        description=flavor.neutral(cut(ticket.description, max_chars)).strip("\n"),
        places=tuple(filter(None, (_place(each, flavor) for each in listed))),
        places_total=ticket.places_total if listed else 0,
        evidence=flavor.neutral(cut(evidence, max_chars)),
        is_shortened=max(len(ticket.description), len(evidence)) > max_chars,
        console_url=ticket.console_url,
        marker=f"RiskRelay export {ticket.export_id}",
    )


def _place(place: Place, flavor: Flavor[Block, Text]) -> tuple[str, ...]:
    return tuple(filter(None, (flavor.neutral_url(place.url), flavor.neutral(one_line(place.location)))))


def _counts(event: TrackerEvent) -> str:
    """Return `3 places added, 17 fixed, 25 still open.` without the counts that are 0; "" if all are."""
    added = "found again" if event.type is TicketEventType.REOPENED else "added"
    counted = ((event.places_added, added), (event.places_fixed, "fixed"), (event.places_open, "still open"))
    (count, what), *others = [each for each in counted if each[0]] or [(0, "")]
    if not count:
        return ""
    first = f"{count} {'place' if count == 1 else 'places'} {what}"
    return f"{', '.join([first, *(f'{number} {state}' for number, state in others)])}."


def _changed_place(place: ChangedPlace, flavor: Flavor[Block, Text]) -> tuple[str, ...]:
    url = flavor.neutral_url(cut(place.url, _MAX_PAGE))
    location = flavor.neutral(one_line(cut(place.location, _MAX_LOCATION)))
    return tuple(filter(None, (url, location))) or ("unknown",)
