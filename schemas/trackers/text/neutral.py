"""Makes untrusted text harmless in a tracker, whatever its markup: the text looks the same, and nothing in it has an effect.

Scanners and forms quote other people's pages, and the tracker processes the text with the rights of our token. A code block
or a text node isolates it. These rules also protect where that fails, where the tracker scans code too (Redmine's mentions,
quick actions of older GitLab), and in titles, which have no code. U+200B is a zero-width space: it separates characters that
have a meaning only together.
"""

import re
from collections.abc import Callable
from typing import Final

#: Separates two characters that a tracker must not read together.
ZWSP: Final = "\u200b"
ELLIPSIS: Final = "…"

#: Each ends a line in some renderer: the rules below would not recognize the beginning of the next line.
_LINE_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
#: Databases reject NUL and half surrogate pairs, renderers drop other control characters after these rules were applied, and
#: bidirectional controls show a text in another order than it has.
_REMOVED: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]"
)

#: Places for U+200B: after `@`, `#` and `!`, which begin `@person`, `#1`, `!1` and `![image]` (backslashes and `&#64;` do
#: not prevent a mention in Gitea; this does); at the start of a line with `/close`, a quick action in GitLab; inside runs of
#: backticks and tildes, which end a fence that is not longer than the run (older GitLab supports only fences of three); in
#: the id of an export, the marker by which its issue is found, so that a quoted id does not count as the marker.
_EVERYWHERE: Final = (r"(?<=[@#!])", r"^(?=[^\S\n]*/)", "(?<=`)(?=`)", "(?<=~)(?=~)", "(?i:(?<=exp)(?=_[0-9a-z]))")

#: In titles also after `$1`, `%1`, `~label`, `&1`, `^alert`, `*iteration:` and `[vulnerability:`, which GitLab interprets
#: outside of code, and in URLs, which become links and references to issues.
_IN_TITLES: Final = (r'(?<=[$%~&^*\[])(?=[\w"])', "(?<=:)(?=//)")


def harmless_by(*more: str) -> Callable[[str], str]:
    """Return a function that makes untrusted text harmless; `more` are patterns of further places for U+200B."""
    places = re.compile(f"(?:{'|'.join((*_EVERYWHERE, *more))})(?<!{ZWSP})(?!{ZWSP})", re.MULTILINE)

    def harmless(text: str) -> str:
        return places.sub(ZWSP, _clean(text))

    return harmless


#: Returns untrusted text made harmless, with newlines as line ends.
harmless: Final = harmless_by()
_harmless_title: Final = harmless_by(*_IN_TITLES)


def one_line(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(_clean(text).split())


def harmless_title(text: str) -> str:
    """Return untrusted text as one line that is harmless outside of code, too."""
    return _harmless_title(one_line(text))


def encoded(url: str) -> str:
    """Return a URL on one line, percent-encoded where it would need U+200B, so that it can be copied."""
    return one_line(url).replace("@", "%40").replace("!", "%21").replace("`", "%60")


def length(text: str) -> int:
    """Return the length in UTF-16 code units, as Jira and Linear count; for others it is at least the characters."""
    return len(text.encode("utf-16-le", "replace")) // 2


def cut(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars`, with an ellipsis where it was cut."""
    return text if len(text) <= max_chars else text[: max(max_chars - 1, 0)] + ELLIPSIS[:max_chars]


def _clean(text: str) -> str:
    return _REMOVED.sub("", _LINE_BREAKS.sub("\n", text))
