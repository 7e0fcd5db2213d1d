"""Makes strangers' text harmless in a tracker, whatever its markup: it looks the same, and nothing in it has an effect.

What scanners and forms quote comes from other people's pages, and the tracker acts on it with the rights of our token. A
code block or a text node contains it; these rules hold where that fails, where the tracker scans code too (Redmine's
mentions, quick actions of older GitLab), and in titles, which have no code. U+200B is a zero-width space: it separates the
characters that mean something only together.
"""

import re
from typing import Final

#: Between two characters that a tracker must not read together.
ZWSP: Final = "\u200b"
ELLIPSIS: Final = "…"

#: Each ends a line in some renderer, and would begin a line that no rule below has seen.
_LINE_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
#: Databases reject NUL and half surrogate pairs, renderers drop other control characters after these rules were applied, and
#: bidirectional controls show a text in another order than it has.
_REMOVED: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\uffff]"
)
#: `@person`, `#1`, `!1` and `![image]`. Backslashes and `&#64;` do not prevent a mention in Gitea; this does.
_SIGIL: Final = re.compile(f"([@#!])(?!{ZWSP})")
#: `/close` at the start of a line is a quick action in GitLab.
_COMMAND: Final = re.compile(r"^([^\S\n]*)/", re.MULTILINE)
#: A run as long as the fence ends it; older GitLab knows only fences of three.
_RUN: Final = re.compile("(?<=`)`|(?<=~)~")
#: The id of an export is the marker by which its issue is found: a quoted one must not pass for it.
_MARKER: Final = re.compile("(exp)_(?=[0-9a-z])", re.IGNORECASE)

#: `$1`, `%1`, `~label`, `&1`, `^alert` and `*iteration:` of GitLab, which reads them outside of code, so in titles.
_OTHER_SIGIL: Final = re.compile(r'([$%~&^*\[])(?=[\w"])')
#: A URL of a title becomes a link, and that of an issue a reference.
_SCHEME: Final = re.compile("://")


def harmless(text: str) -> str:
    """Return strangers' text without effect, its lines ended by newlines."""
    text = _REMOVED.sub("", _LINE_BREAKS.sub("\n", text))
    text = _SIGIL.sub(rf"\1{ZWSP}", text)
    text = _COMMAND.sub(rf"\1{ZWSP}/", text)
    text = _RUN.sub(rf"{ZWSP}\g<0>", text)
    return _MARKER.sub(rf"\1{ZWSP}_", text)


def harmless_line(text: str) -> str:
    """Return strangers' text without effect on one line, with single spaces."""
    return harmless(" ".join(text.split()))


def harmless_title(text: str) -> str:
    """Return strangers' text as one line without effect where no code contains it."""
    return _SCHEME.sub(f":{ZWSP}//", _OTHER_SIGIL.sub(rf"\1{ZWSP}", harmless_line(text)))


def harmless_url(url: str) -> str:
    """Return a URL on one line without effect; it can be copied where percent-encoding can do what U+200B does."""
    return harmless_line(url.replace("@", "%40").replace("!", "%21").replace("`", "%60"))


def cut(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars`, with an ellipsis where it was cut."""
    return text if len(text) <= max_chars else text[: max(max_chars - 1, 0)] + ELLIPSIS[:max_chars]
