"""The flavors whose inline code contains nothing: all strangers' text is in blocks of plain text."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text import event_text
from schemas.trackers.text.neutral import length
from schemas.trackers.text.outline import EVIDENCE, Flavor, fitted


class PlainBlocks(Flavor[str]):
    """A flavor whose text is `*strong*` in common with others."""

    def body_of(self, ticket: TrackerTicket, max_chars: int) -> str:
        """Return the text of at most `max_chars` by `size`."""
        return fitted(ticket, max_chars, self, "\n\n".join, self.size)

    def comment_of(self, event: TrackerEvent, max_chars: int) -> str:
        """Return the comment of an event, of at most `max_chars` by `size`."""
        return event_text.comment(event, max_chars, self, "\n\n".join, self.size)

    def erased_of(self, event: TrackerEvent) -> str:
        """Return the text of an erased ticket."""
        return "\n\n".join(event_text.erased(event, self))

    def size(self, text: str) -> int:
        """Return how much of the tracker's limit a text takes: UTF-16 code units."""
        return length(text)

    @abstractmethod
    def block(self, text: str) -> str:
        """Return strangers' text as a block."""

    def facts(self, severity: str, page: str) -> Iterator[str]:
        """Return the severity as a line, the page as a block."""
        yield f"*Severity:* {severity}"
        if page:
            yield "*Page:*"
            yield self.block(page)

    def description(self, text: str) -> Iterator[str]:
        """Return a block."""
        yield self.block(text)

    def places(self, places: Iterable[Iterable[str]], more: str) -> str:
        """Return a block of a line for each place."""
        return self.block("\n".join(filter(None, (*map(" ".join, places), more))))

    def evidence(self, text: str) -> Iterator[str]:
        """Return a block under a heading: a fold has no plain text."""
        yield self.heading(EVIDENCE)
        yield self.block(text)

    def line(self, text: str) -> str:
        """Return it."""
        return text
