"""The title of an issue: one line that is never empty, within the tracker's limit."""

import unicodedata

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.neutral import ELLIPSIS, ZWSP, harmless_title, length


def title_of(ticket: TrackerTicket, max_chars: int, max_bytes: int | None = None) -> str:
    """Return the title, of at most `max_chars` UTF-16 code units and `max_bytes` bytes of UTF-8."""
    title = harmless_title(ticket.title)
    if not any(unicodedata.category(letter)[0] in "LNPS" for letter in title):
        title = f"Website risk of severity {harmless_title(ticket.severity)}"
    if _fits(title, max_chars, max_bytes):
        return title
    end = min(len(title), max_chars) - 1
    while end > 0 and not _fits(title[:end] + ELLIPSIS, max_chars, max_bytes):
        end -= 1
    return title[: max(end, 0)].rstrip(f" {ZWSP}") + ELLIPSIS


def _fits(title: str, max_chars: int, max_bytes: int | None) -> bool:
    return length(title) <= max_chars and (max_bytes is None or len(title.encode()) <= max_bytes)
