"""Flavors whose inline code does not make text harmless: all untrusted text is in blocks of plain text."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from schemas.trackers.text.outline import EVIDENCE, TextFlavor


class PlainBlocks(TextFlavor):
    """A flavor in which `*text*` is strong text."""

    @abstractmethod
    def block(self, text: str) -> str:
        """Return untrusted text as a block."""

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
        """Return a block with one line per place."""
        return self.block("\n".join(filter(None, (*map(" ".join, places), more))))

    def evidence(self, text: str) -> Iterator[str]:
        """Return a block under a heading: a fold would not contain plain text."""
        yield self.heading(EVIDENCE)
        yield self.block(text)
