"""Converts an HTML email to text: one line per block, links with their URLs.

The sender writes the HTML, so any text is accepted here and the work is linear in its size: the end of an unclosed element
is searched once. `html.parser` guarantees neither: it takes seconds for 24 KB of `<a `, and raises an exception for `<![x`.

Comments, scripts, styles and titles are left out; one that is never closed hides the rest, as it does in a browser.
"""

import re
from html import unescape
from typing import Final

from schemas.base.checkpoint import Checkpoint, no_checkpoint

#: Elements that start a new line.
_LINES: Final = (
    "address article aside body caption center dd details dialog dir div dt fieldset figcaption figure footer form header "
    "html legend li main menu nav option search section summary tbody tfoot thead tr"
)
#: Elements with an empty line before and after them.
_PARAGRAPHS: Final = "blockquote dl h1 h2 h3 h4 h5 h6 hr ol p pre table ul"
#: Two line breaks make one empty line; more are not needed.
_MAX_BREAKS: Final = 2
_BREAKS_AROUND: Final = {**dict.fromkeys(_LINES.split(), 1), **dict.fromkeys(_PARAGRAPHS.split(), _MAX_BREAKS)}
#: Elements whose raw content is skipped up to their end tag.
_UNSEEN: Final = ("iframe", "noembed", "noframes", "script", "style", "title")
_END_OF: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _UNSEEN}

#: A comment, a declaration, or a tag with its attributes; one that never ends consumes the rest.
_MARKUP: Final = re.compile(
    r"""<(?:
        !--(?:-?>|.*?--!?>|.*)
      | [!?][^>]*+>?
      | /(?![a-zA-Z])[^>]*+>?
      | (?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?P<attributes>(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)(?:>|\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTE: Final = re.compile(r"""([^\s/=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|(\S++)))?""")
#: A character reference with too many digits; Python refuses to parse thousands of digits.
_NO_CHARACTER: Final = re.compile(r"&#(?:[0-9]{16,}+|[xX][0-9a-fA-F]{16,}+);?")
_WEB: Final = re.compile(r"https?://\S+", re.IGNORECASE)
#: Tags between two checkpoints: a fifth of a millisecond; a megabyte has 330,000 tags at most.
_TAGS: Final = 100


def text_of(html: str, checkpoint: Checkpoint = no_checkpoint) -> str:
    """Return the visible text of `html`, stripped; empty if there is none."""
    page = _Page()
    at = tags = 0
    while found := _MARKUP.search(html, at):
        tags += 1
        if tags % _TAGS == 0:
            checkpoint()
        page.add_text(unescaped(html[at : found.start()]))
        at = found.end()
        name = (found["name"] or "").lower()
        if found["end"]:
            page.close(name)
        elif name in _END_OF:
            end = _END_OF[name].search(html, at)
            at = end.start() if end else len(html)
        elif name:
            page.open(name, found["attributes"])
    page.add_text(unescaped(html[at:]))
    page.end_link()
    return page.text


def unescaped(text: str) -> str:
    """Return `text` with its character references decoded; one with too many digits becomes U+FFFD."""
    return unescape(_NO_CHARACTER.sub("\ufffd", text)) if "&" in text else text


class _Page:
    """The text so far, and the line breaks to write before the next word."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._breaks = 0
        self._has_gap = self._is_cell = False
        #: The first text of a list entry stays next to its bullet.
        self._is_at_bullet = False
        self._preformatted = 0
        self._address = ""
        self._link_began = 0

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._written)

    def open(self, name: str, attributes: str) -> None:
        """Begin an element."""
        if name == "br":
            self._break()
        elif name in {"td", "th"}:
            self._has_gap = self._is_cell = True
        elif name == "a":
            self.end_link()
            self._address, self._link_began = _address(attributes), len(self._written)
        self._separate(name)
        if name == "li":
            self._write("-")
            self._has_gap = self._is_at_bullet = True
        elif name == "pre":
            self._preformatted += 1

    def close(self, name: str) -> None:
        """End an element, even if it was never started."""
        if name == "br":
            self._break()
        elif name == "a":
            self.end_link()
        elif name == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        self._separate(name)

    def end_link(self) -> None:
        """Write the URL of a link after its text, unless the text is the URL."""
        address, self._address = self._address, ""
        said = "".join(self._written[self._link_began :]).strip() if address else ""
        if address and not _is_same(said, address):
            had_gap, self._has_gap = self._has_gap, self._has_gap or bool(said)
            self._write(f"({address})" if said else address)
            self._has_gap = had_gap

    def add_text(self, words: str) -> None:
        """Add text; line breaks are kept only in preformatted text."""
        lines = words.splitlines() if self._preformatted else [words]
        for number, line in enumerate(lines):
            if number:
                self._break()
            self._add_line(line)
        if self._preformatted and words.endswith(("\n", "\r")):
            self._break()

    def _add_line(self, words: str) -> None:
        line = " ".join(words.split())
        if line:
            self._has_gap = self._has_gap or words[0].isspace()
            self._write(line)
        self._has_gap = self._has_gap or (bool(words) and words[-1].isspace())

    def _write(self, line: str) -> None:
        if self._written:
            # A tab keeps the columns of a table apart.
            gap = "\t" if self._is_cell else " "
            self._written.append("\n" * self._breaks or gap * self._has_gap)
        self._written.append(line)
        self._breaks, self._has_gap, self._is_cell, self._is_at_bullet = 0, False, False, False

    def _separate(self, name: str) -> None:
        """Separate a block; its end and the start of the next one share one break."""
        if self._is_at_bullet:
            return
        self._breaks = max(self._breaks, _BREAKS_AROUND.get(name, 0))

    def _break(self) -> None:
        self._breaks = min(self._breaks + 1, _MAX_BREAKS)


def _address(attributes: str) -> str:
    """Return the first `href` if it is an http or https URL."""
    for name, *values in _ATTRIBUTE.findall(attributes):
        if name.lower() == "href":
            address = "".join(unescaped("".join(values)).split())
            return address if _WEB.fullmatch(address) else ""
    return ""


def _is_same(said: str, address: str) -> bool:
    bare = address.partition("://")[2]
    return said.rstrip("/").lower() in {address.rstrip("/").lower(), bare.rstrip("/").lower()}
