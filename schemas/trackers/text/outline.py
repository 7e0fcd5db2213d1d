"""What the text of a ticket consists of, in which order, and what is shortened where the tracker has a limit.

A flavor writes the parts in the syntax of its tracker. First the evidence is shortened, then the places, then the
description; severity, page, link and marker are always whole, and the console has everything.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from schemas.trackers.exchange import TrackerPlace, TrackerTicket
from schemas.trackers.text.neutral import cut, encoded, harmless, one_line

#: Enough for the parts that are never shortened, the longest URL included.
MIN_CHARS: Final = 10_000
_MAX_PAGE: Final = 2048

FOUND: Final = "What was found"
EVIDENCE: Final = "Evidence"
_SHORTENED: Final = "This text is shortened; RiskRelay has the whole ticket."
#: The text of the link to the console.
OPEN: Final = "Open this ticket in RiskRelay"

Block = TypeVar("Block")
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class Outline:
    """The parts of a ticket's text, all of them harmless; a flavor contains those of strangers besides."""

    severity: str
    #: "" where there is none.
    page: str
    description: str
    #: Each a URL, and a location unless it is empty.
    places: tuple[tuple[str, ...], ...]
    places_total: int
    #: JSON; "" where there is none, or no room for it.
    evidence: str
    is_shortened: bool
    console_url: str | None
    #: The last line: the marker by which the issue is found again.
    marker: str

    @property
    def more_places(self) -> str:
        """Return how many places are not listed; "" if all are."""
        more = self.places_total - len(self.places)
        return f"… and {more} more" if more > 0 else ""


class Flavor(ABC, Generic[Block]):
    """The syntax of a tracker's text, which consists of blocks."""

    def blocks(self, parts: Outline) -> Iterator[Block]:
        """Yield every part of a text in its order."""
        yield from self.facts(parts.severity, parts.page)
        if parts.description:
            yield self.heading(FOUND)
            yield from self.description(parts.description)
        if parts.places_total:
            yield self.heading(f"Places ({parts.places_total})")
            yield self.places(parts.places, parts.more_places)
        if parts.evidence:
            yield from self.evidence(parts.evidence)
        if parts.is_shortened:
            yield self.line(_SHORTENED)
        if parts.console_url:
            yield self.link(OPEN, parts.console_url)
        yield self.line(parts.marker)

    def neutral(self, text: str) -> str:
        """Return strangers' text without effect in this syntax."""
        return harmless(text)

    def neutral_url(self, url: str) -> str:
        """Return strangers' URL on one line, without effect in this syntax."""
        return self.neutral(encoded(url))

    @abstractmethod
    def facts(self, severity: str, page: str) -> Iterable[Block]:
        """Return the severity, and the page unless that is empty."""

    @abstractmethod
    def heading(self, text: str) -> Block:
        """Return a heading of ours."""

    @abstractmethod
    def description(self, text: str) -> Iterable[Block]:
        """Return what was found."""

    @abstractmethod
    def places(self, places: Iterable[Iterable[str]], more: str) -> Block:
        """Return a list of places, and how many more there are unless that is empty."""

    @abstractmethod
    def evidence(self, text: str) -> Iterable[Block]:
        """Return the evidence, folded if the tracker can."""

    @abstractmethod
    def link(self, text: str, url: str) -> Block:
        """Return a link of ours."""

    @abstractmethod
    def line(self, text: str) -> Block:
        """Return a line of ours."""


def fitted(
    ticket: TrackerTicket,
    max_chars: int,
    flavor: Flavor[Block],
    write: Callable[[Iterable[Block]], Text],
    size: Callable[[Text], int],
) -> Text:
    """Return what `write` makes of a ticket's blocks, of at most `max_chars` (at least MIN_CHARS) by `size`."""
    outline = _outline(ticket, max_chars, flavor)
    text = write(flavor.blocks(outline))
    for shorten in (_with_evidence, _with_places, _with_description):
        if size(text) <= max_chars:
            break
        # The largest part that fits is between these; a text becomes longer with each part.
        fits, too_large = 0, max_chars
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            is_fit = size(write(flavor.blocks(shorten(outline, middle)))) <= max_chars
            fits, too_large = (middle, too_large) if is_fit else (fits, middle)
        outline = shorten(outline, fits)
        text = write(flavor.blocks(outline))
    return text


def _with_evidence(outline: Outline, max_chars: int) -> Outline:
    return replace(outline, evidence=cut(outline.evidence, max_chars), is_shortened=True)


def _with_places(outline: Outline, count: int) -> Outline:
    return replace(outline, places=outline.places[:count], is_shortened=True)


def _with_description(outline: Outline, max_chars: int) -> Outline:
    return replace(outline, description=cut(outline.description, max_chars), is_shortened=True)


def _outline(ticket: TrackerTicket, max_chars: int, flavor: Flavor[Block]) -> Outline:
    evidence = json.dumps(ticket.evidence, ensure_ascii=False, indent=2) if ticket.evidence else ""
    # The facts in the description name the only place.
    listed = ticket.places if ticket.places_total > 1 else ()
    return Outline(
        severity=flavor.neutral(one_line(ticket.severity)) or "unknown",
        page=flavor.neutral_url(cut(ticket.page_url or "", _MAX_PAGE)),
        # No part can be longer than the limit; what is certain to be cut needs no rules.
        description=flavor.neutral(cut(ticket.description, max_chars)).strip("\n"),
        places=tuple(filter(None, (_place(each, flavor) for each in listed))),
        places_total=ticket.places_total if listed else 0,
        evidence=flavor.neutral(cut(evidence, max_chars)),
        is_shortened=max(len(ticket.description), len(evidence)) > max_chars,
        console_url=ticket.console_url,
        marker=f"RiskRelay export {ticket.export_id}",
    )


def _place(place: TrackerPlace, flavor: Flavor[Block]) -> tuple[str, ...]:
    return tuple(filter(None, (flavor.neutral_url(place.url), flavor.neutral(one_line(place.location)))))
