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
from schemas.trackers.text.neutral import cut, harmless, harmless_line, harmless_url

#: Enough for the parts that are never shortened.
MIN_CHARS: Final = 4000
_MAX_PAGE: Final = MIN_CHARS // 4

FOUND: Final = "What was found"
EVIDENCE: Final = "Evidence"
_SHORTENED: Final = "The evidence is shortened here; RiskRelay has all of it."
_OPEN: Final = "Open this ticket in RiskRelay"

Block = TypeVar("Block")
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class Outline:
    """The parts of a ticket's text, all of them harmless; a flavor contains those of strangers besides."""

    severity: str
    page: str | None
    description: str
    #: Each a URL, and a location unless it is empty.
    places: tuple[tuple[str, ...], ...]
    places_total: int
    #: JSON; "" where there is none, or no room for it.
    evidence: str
    is_evidence_cut: bool
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
        if parts.is_evidence_cut:
            yield self.line(_SHORTENED)
        if parts.console_url:
            yield self.link(_OPEN, parts.console_url)
        yield self.line(parts.marker)

    def neutral(self, text: str) -> str:
        """Return strangers' text without effect in this syntax."""
        return harmless(text)

    def neutral_url(self, url: str) -> str:
        """Return a strangers' URL without effect in this syntax."""
        return harmless_url(url)

    @abstractmethod
    def facts(self, severity: str, page: str | None) -> Iterable[Block]:
        """Return the severity and the page."""

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


@dataclass(frozen=True, slots=True)
class _Room:
    """What is kept of each part that may be shortened: characters, places, characters."""

    description: int
    places: int
    evidence: int


def fitted(
    ticket: TrackerTicket,
    max_chars: int,
    flavor: Flavor[Block],
    write: Callable[[Iterable[Block]], Text],
    size: Callable[[Text], int],
) -> Text:
    """Return what `write` makes of a ticket's blocks, of at most `max_chars` (at least MIN_CHARS) by `size`."""
    evidence = json.dumps(ticket.evidence, ensure_ascii=False, indent=2) if ticket.evidence else ""

    def written(room: _Room) -> Text:
        return write(flavor.blocks(_outline(ticket, evidence, room, flavor)))

    # No part can be longer than the whole.
    room = _Room(min(len(ticket.description), max_chars), len(ticket.places), min(len(evidence), max_chars))
    text = written(room)
    for part in ("evidence", "places", "description"):
        if size(text) <= max_chars:
            break
        fits, too_much = 0, getattr(room, part)
        while too_much - fits > 1:
            middle = (fits + too_much) // 2
            is_fit = size(written(replace(room, **{part: middle}))) <= max_chars
            fits, too_much = (middle, too_much) if is_fit else (fits, middle)
        room = replace(room, **{part: fits})
        text = written(room)
    return text


def _outline(ticket: TrackerTicket, evidence: str, room: _Room, flavor: Flavor[Block]) -> Outline:
    # The facts in the description name the only place.
    is_listed = ticket.places_total > 1
    return Outline(
        severity=harmless_line(ticket.severity),
        page=flavor.neutral_url(cut(ticket.page_url, _MAX_PAGE)) if ticket.page_url else None,
        description=flavor.neutral(cut(ticket.description, room.description)).strip("\n"),
        places=tuple(_place(each, flavor) for each in ticket.places[: room.places] if is_listed),
        places_total=ticket.places_total if is_listed else 0,
        evidence=flavor.neutral(cut(evidence, room.evidence)),
        is_evidence_cut=room.evidence < len(evidence),
        console_url=ticket.console_url,
        marker=f"RiskRelay export {ticket.export_id}",
    )


def _place(place: TrackerPlace, flavor: Flavor[Block]) -> tuple[str, ...]:
    location = flavor.neutral(" ".join(place.location.split()))
    return tuple(filter(None, (flavor.neutral_url(place.url), location)))
