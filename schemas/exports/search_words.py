"""The words by which a ticket is found, and the hosts of its pages: the same on both databases, since Python forms them.

A word is a run of letters and digits, in one case and one Unicode form. Everything else separates words, so that a URL is
found by its parts.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

#: Longer words are compared by their beginning: no index of either database holds arbitrarily long ones.
MAX_WORD: Final = 64
#: Characters of one ticket's different words; the title's and the page's come first.
MAX_WORDS: Final = 10_000

_WORD: Final = re.compile(r"[^\W_]+")


def words_in(text: str) -> list[str]:
    """Return the different words of a text, in their order."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return list(dict.fromkeys(word[:MAX_WORD] for word in _WORD.findall(folded)))


def words_of(ticket: Mapping[str, Any]) -> str:
    """Return up to MAX_WORDS characters of the different words of a ticket's title, URLs and description, with spaces."""
    parts = (ticket["title"], ticket["page_url"] or "", ticket["description"], *_place_urls(ticket))
    words = " ".join(words_in(" ".join(parts)))
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS].rpartition(" ")[0]


def hosts_of(ticket: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the different hosts of a ticket's page and of the places of a group, in lower case and without a port."""
    urls = (ticket["page_url"] or "", *_place_urls(ticket))
    return tuple(dict.fromkeys(filter(None, map(_host, urls))))


def _place_urls(ticket: Mapping[str, Any]) -> Iterator[str]:
    """Yield the URLs of a group; the evidence of other tickets has any form."""
    places = ticket["evidence"].get("places")
    for place in places if isinstance(places, list) else ():
        url = place.get("url") if isinstance(place, dict) else None
        if isinstance(url, str):
            yield url


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
