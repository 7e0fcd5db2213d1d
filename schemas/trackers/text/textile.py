"""The text of an issue in Redmine, whose installation reads it as Textile or as Markdown: one text that both show alike.

Strangers' text is in `<pre>`, which both know. Redmine finds mentions in code too, and its older Markdown drops the tags, so
what Redmine reads as a link is broken as well.
"""

import re
from typing import Final

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.neutral import ZWSP
from schemas.trackers.text.plain_blocks import PlainBlocks

#: After these: a tag, an entity, `[[page]]`, `{{macro}}`, `](link)` and `r1`, a revision.
_AFTER: Final = re.compile(r"<(?=\S)|&(?=[#a-zA-Z])|\[(?=\[)|\{(?=\{)|\](?=\()|\br(?=\d)")
#: Before these: `!image!`, and the colon of `commit:1`, `user:name`, `"text":/path` and `https://`.
_BEFORE: Final = re.compile(r'!|(?<=[\w"]):(?=\S)')


def body_of(ticket: TrackerTicket, max_chars: int) -> str:
    """Return the text of at most `max_chars` characters."""
    return _Redmine().body_of(ticket, max_chars)


class _Redmine(PlainBlocks):
    def neutral(self, text: str) -> str:
        return _BEFORE.sub(rf"{ZWSP}\g<0>", _AFTER.sub(rf"\g<0>{ZWSP}", super().neutral(text)))

    def neutral_url(self, url: str) -> str:
        # The colon stays, so that the URL can be copied.
        return _AFTER.sub(rf"\g<0>{ZWSP}", super().neutral_url(url))

    def heading(self, text: str) -> str:
        return f"*{text}*"

    def block(self, text: str) -> str:
        return f"<pre>\n{text}\n</pre>"

    def link(self, text: str, url: str) -> str:
        return f"{text}: {url}"
