"""The text of an issue in wiki markup, which Jira Data Center reads.

Strangers' text is in `{noformat}` only: inline code would still mention and load images.
"""

from typing import Final

from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.neutral import harmless_by
from schemas.trackers.text.plain_blocks import PlainBlocks

#: `{noformat}` ends the block; `[~person]` and `[^file]` are broken in case that Jira finds them in one.
_harmless: Final = harmless_by(r"(?i:(?<=\{)(?=noformat))", r"(?<=\[)(?=[~^])")


def body_of(ticket: TrackerTicket, max_chars: int) -> str:
    """Return the text of at most `max_chars` UTF-16 code units."""
    return _Wiki().body_of(ticket, max_chars)


def comment_of(event: TrackerEvent, max_chars: int) -> str:
    """Return the comment of an event, of at most `max_chars` UTF-16 code units."""
    return _Wiki().comment_of(event, max_chars)


def erased_of(event: TrackerEvent) -> str:
    """Return the text of an erased ticket."""
    return _Wiki().erased_of(event)


class _Wiki(PlainBlocks):
    def neutral(self, text: str) -> str:
        return _harmless(text)

    def heading(self, text: str) -> str:
        return f"h3. {text}"

    def block(self, text: str) -> str:
        return f"{{noformat}}\n{text}\n{{noformat}}"

    def link(self, text: str, url: str) -> str:
        return f"[{text}|{url}]"
