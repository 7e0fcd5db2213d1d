"""The text of an issue in Redmine, whose installation reads it as Textile or as Markdown: both show this text alike.

Untrusted text is in `<pre>`, which both support, and indented: the Markdown of older Redmines drops the tags, and recognizes
code by its indent. Redmine finds mentions in code too, so text that it would read as a mention, a link or a macro is broken
up as well.
"""

from textwrap import indent
from typing import Final

from schemas.trackers.text.neutral import encoded, harmless_by
from schemas.trackers.text.plain_blocks import PlainBlocks

#: Text that Redmine reads as a link, a macro, a tag or an entity; `!image!` is broken up before the first `!`, too.
_TOKENS: Final = (
    r"(?<=<)(?=\S)",
    r"(?<=&)(?=[#a-zA-Z])",
    r"(?<=\[)(?=\[)",
    r"(?<=\{)(?=\{)",
    r"(?<=\])(?=[(:\[])",
    r"(?i:(?<=\bwww)(?=\.))",
    r"(?<=\br)(?=\d)",
    "(?=!)",
)
#: `commit:1`, `user:name`, `"text":/path` and `https://…`.
_COLON: Final = r'(?<=[\w"])(?=:\S)'

_harmless: Final = harmless_by(*_TOKENS, _COLON)
#: The colon of a URL stays, so that the URL can be copied.
_harmless_url: Final = harmless_by(*_TOKENS)


class _Redmine(PlainBlocks):
    def size(self, text: str) -> int:
        # MySQL limits Redmine's column in bytes.
        return len(text.encode())

    def neutral(self, text: str) -> str:
        return _harmless(text)

    def neutral_url(self, url: str) -> str:
        return _harmless_url(encoded(url))

    def heading(self, text: str) -> str:
        return f"*{text}*"

    def block(self, text: str) -> str:
        # The empty line separates the code from the paragraph that a dropped tag leaves.
        return f"<pre>\n\n{indent(text, '    ')}\n</pre>"

    def link(self, text: str, url: str) -> str:
        return f"{text}: {url}"


body_of: Final = _Redmine().body_of
comment_of: Final = _Redmine().comment_of
erased_of: Final = _Redmine().erased_of
