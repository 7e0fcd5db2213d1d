"""The text of an issue in wiki markup, which Jira Data Center reads.

Untrusted text is only in `{noformat}`: Jira would still mention people and load images in inline code.
"""

from typing import Final

from schemas.trackers.text.neutral import harmless_by
from schemas.trackers.text.plain_blocks import PlainBlocks

#: `{noformat}` ends the block; `[~person]` and `[^file]` are broken up in case Jira interprets them in a block.
_harmless: Final = harmless_by(r"(?i:(?<=\{)(?=noformat))", r"(?<=\[)(?=[~^])")


class _Wiki(PlainBlocks):
    def neutral(self, text: str) -> str:
        return _harmless(text)

    def heading(self, text: str) -> str:
        return f"h3. {text}"

    def block(self, text: str) -> str:
        return f"{{noformat}}\n{text}\n{{noformat}}"

    def link(self, text: str, url: str) -> str:
        return f"[{text}|{url}]"


body_of: Final = _Wiki().body_of
comment_of: Final = _Wiki().comment_of
erased_of: Final = _Wiki().erased_of
