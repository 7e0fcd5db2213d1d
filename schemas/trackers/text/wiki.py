"""The text of an issue in wiki markup, which Jira Data Center reads.

Strangers' text is in `{noformat}` only: inline code would still mention and load images.
"""

import re
from typing import Final

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.neutral import ZWSP
from schemas.trackers.text.plain_blocks import PlainBlocks

#: `{noformat}` ends the block; `[~person]` and `[^file]` are broken in case that Jira finds them in one.
_TOKEN: Final = re.compile(r"\{(?=noformat)|\[(?=[~^])", re.IGNORECASE)


def body_of(ticket: TrackerTicket, max_chars: int) -> str:
    """Return the text of at most `max_chars` characters."""
    return _Wiki().body_of(ticket, max_chars)


class _Wiki(PlainBlocks):
    def neutral(self, text: str) -> str:
        return _TOKEN.sub(rf"\g<0>{ZWSP}", super().neutral(text))

    def neutral_url(self, url: str) -> str:
        return _TOKEN.sub(rf"\g<0>{ZWSP}", super().neutral_url(url))

    def heading(self, text: str) -> str:
        return f"h3. {text}"

    def block(self, text: str) -> str:
        return f"{{noformat}}\n{text}\n{{noformat}}"

    def link(self, text: str, url: str) -> str:
        return f"[{text}|{url}]"
