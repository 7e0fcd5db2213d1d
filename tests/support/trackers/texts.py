"""Tickets with untrusted text, and models of the markup that trackers recognize in a text outside of code."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, Final

from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from schemas.base.places import Place
from schemas.trackers.exchange import TrackerTicket
from tests.support.corpora import tracker_file

#: A ticket whose untrusted text has no effect.
PLAIN: Final = TrackerTicket(
    export_id="exp_01JD0000000000000000000000",
    title="A title",
    description="What is wrong.",
    severity="high",
    page_url="https://shop.example/cart",
    places=(Place("https://shop.example/cart", "main > img"), Place("https://shop.example/", "")),
    places_total=5,
    evidence={"rule": "image-alt"},
    console_url="https://risk.example/console/exports/exp_01JD0000000000000000000000",
)
MARKER: Final = f"RiskRelay export {PLAIN.export_id}"

#: Parts of markup, so that random texts contain much of it.
_WORDS: Final = re.findall(
    r"\S+",
    r"""
    @victim #1 !1 owner/pub#2 /close ``` ~~~ ` `` ![i](http://evil.example/p.png) [a](http://evil.example) [a]
    http://evil.example <img src=x> </pre> <pre> </details> <details> </code> <!-- --> </ &#64;victim &lt; \ {noformat}
    {NoFormat} {code} [~victim] {{toc}} [[Page]] !p.png! r12 commit:abc user:"v" attachment:a.png source:a version:1.0
    exp_01JD0000000000000000000000
    $1 %1 ~bug &1 ^alert#1 www.evil.example a@b.example é 🚀 " ' *** ___ === --- | * - > # x
    """,
)
_SPACES: Final = [
    " ",
    "    ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\v",
    "\u2028",
    "\x00",
    "\u202e",
    "\u200b",
    "\u200d",
    "\u0301",
]
_LINES: Final = ["\n/close", "\n  /close", "\n```\n", "[a]: http://evil.example\n", "\n---\n", "\n# a\n", "\n| a |\n|---|\n"]
_TOKENS: Final = st.sampled_from([*_WORDS, *_SPACES, *_LINES])
HOSTILE: Final = st.lists(_TOKENS | st.text(max_size=4), max_size=20).map("".join)


def tickets(texts: st.SearchStrategy[str] = HOSTILE) -> st.SearchStrategy[TrackerTicket]:
    """Return a strategy for tickets like PLAIN with drawn texts. Parts that must be visible start with "x"."""
    visible = texts.map(lambda text: f"x{text}")
    places = st.tuples(st.builds(Place, visible, visible), st.builds(Place, visible, st.just("")))
    return st.builds(
        replace,
        st.just(PLAIN),
        title=texts,
        description=visible,
        page_url=visible,
        places=places,
        evidence=st.dictionaries(texts, texts, min_size=1, max_size=3),
    )


def everywhere(text: str) -> TrackerTicket:
    """Return a ticket with `text` in every untrusted part."""
    return replace(
        PLAIN,
        title=text,
        description=text,
        page_url=f"https://shop.example/{text}",
        places=(Place(f"https://shop.example/{text}", text), Place(text, "")),
        evidence={text: text},
    )


def recorded_bodies() -> list[dict[str, Any]]:
    """Return the hostile bodies, each with the HTML of a real Gitea. Skips the test if they are absent."""
    bodies: list[dict[str, Any]] = json.loads(tracker_file("gitea-1.26.0-markdown.json").read_bytes())["bodies"]
    return bodies


def recorded_titles() -> list[dict[str, Any]]:
    """Return the hostile titles, each with the HTML of a real Gitea. Skips the test if they are absent."""
    titles: list[dict[str, Any]] = json.loads(tracker_file("gitea-1.26.0-markdown.json").read_bytes())["titles"]
    return titles


#: Patterns that trackers recognize in plain text, by name.
_IN_TEXT: Final = {
    "mention": re.compile(r"(?<!\w)@\w"),
    "reference": re.compile(r"(?<!&)[#!]\d"),
    "link": re.compile(r"[a-z]://\w|(?<!\w)www\.\w|\w@\w+\.\w", re.IGNORECASE),
}
#: A quick action, which older versions of GitLab execute even in code.
_QUICK_ACTION: Final = re.compile(r"^\s*/\w", re.MULTILINE)

_CODE: Final = frozenset({"code_inline", "code_block", "fence"})

_MARKDOWN: Final = MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: Like Redmine's older Markdown, it does not recognize HTML tags.
_MARKDOWN_WITHOUT_HTML: Final = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def effects_in_text(text: str) -> set[str]:
    """Return the names of the patterns that a tracker recognizes in a text without markup."""
    return {name for name, pattern in _IN_TEXT.items() if pattern.search(text)}


def effects(markdown: str, *, html: bool = True) -> set[str]:
    """Return the names of the markup that a tracker recognizes in Markdown outside of code, such as mentions and links."""
    found = {"quick action"} if _QUICK_ACTION.search(markdown) else set()
    for token in _tokens(markdown, html=html):
        if token.type == "text":
            found |= effects_in_text(token.content)
        elif token.type in {"html_block", "html_inline"}:
            found.add("html")
        elif token.type in {"image", "link_open"}:
            found.add(token.type.removesuffix("_open"))
    return found


def skeleton(markdown: str, *, html: bool = True) -> list[tuple[str, str]]:
    """Return the tokens of Markdown with their attributes; the content of code is left out."""
    return [
        (f"{token.type} {token.attrs}", "" if token.type in _CODE else token.content)
        for token in _tokens(markdown, html=html)
    ]


def in_code(markdown: str) -> list[str]:
    """Return the content of each piece of code in Markdown."""
    return [token.content for token in _tokens(markdown) if token.type in _CODE]


def html_of(markdown: str) -> str:
    """Return the HTML that a renderer makes of Markdown."""
    return str(_MARKDOWN.render(markdown))


class HtmlTags(HTMLParser):
    """Collects the tags and the text of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect a tag and its attributes."""
        self.tags.append(" ".join((tag, *(f"{name}={value}" for name, value in attrs))))

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.text += data


def _tokens(markdown: str, *, html: bool = True) -> Iterator[Token]:
    for token in (_MARKDOWN if html else _MARKDOWN_WITHOUT_HTML).parse(markdown):
        # An inline token has no content except that of its children.
        yield from token.children or () if token.type == "inline" else (token,)
