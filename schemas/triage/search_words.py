"""The words by which a ticket is found, and the hosts of its pages: the same on both databases, since Python forms them.

A word is a run of letters and digits, in one case and one Unicode form. Everything else separates words, so that a URL is
found by its parts.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.base.shop_domain import MAX_HOST
from schemas.exports.tickets.group_ticket import MAX_SITES

#: Longer words are compared by their beginning: no index of either database holds arbitrarily long ones.
MAX_WORD: Final = 64
#: Maximum length of one ticket's different words, in characters; the title's and the page's come first.
MAX_WORDS: Final = 10_000
#: Pages whose host is cached: all findings of a postback are on one page.
_MAX_URLS: Final = 1024

_WORD: Final = re.compile(r"[^\W_]+")


def folded(text: str) -> str:
    """Return a text in one case and one Unicode form."""
    return unicodedata.normalize("NFKC", text).casefold()


def lowered(text: str) -> str:
    """Return a text in lower case, with its characters in one Unicode form, which keeps ligatures and superscripts."""
    return unicodedata.normalize("NFC", text).lower()


def words_in(text: str, fold: Callable[[str], str] = folded) -> list[str]:
    """Return the different words of a text as `fold` returns it, in their order."""
    words = dict.fromkeys(_WORD.findall(fold(text)))
    # Cutting every word would take longer than finding it, and hardly any word is too long.
    is_short = max(map(len, words), default=0) <= MAX_WORD
    return list(words if is_short else dict.fromkeys(word[:MAX_WORD] for word in words))


def words_of(ticket: Mapping[str, Any]) -> str:
    """Return up to MAX_WORDS characters of the different words of a ticket's title, URLs and description, with spaces."""
    parts = (ticket["title"], ticket["page_url"] or "", ticket["description"], *_place_urls(ticket))
    words = " ".join(words_in(" ".join(parts)))
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS].rpartition(" ")[0]


def hosts_of(ticket: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the different hosts of a ticket's page and of the places of a group, in lower case and without a port."""
    urls = (ticket["page_url"] or "", *_place_urls(ticket))
    return tuple(dict.fromkeys([*filter(None, map(host_of, urls)), *_sites(ticket)]))


@lru_cache(maxsize=_MAX_URLS)
def host_of(url: str) -> str | None:
    """Return the host of a URL, in lower case and without a port; None for a URL that has none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _sites(ticket: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hosts of a group, whose evidence has only the first places; other evidence may have any form."""
    sites = ticket["evidence"].get("sites")
    for site in sites[:MAX_SITES] if isinstance(sites, list) else ():
        if isinstance(site, str) and 0 < len(site) <= MAX_HOST:
            yield site


def _place_urls(ticket: Mapping[str, Any]) -> Iterator[str]:
    """Yield the URLs of a group; the evidence of other tickets may have any form."""
    places = ticket["evidence"].get("places")
    for place in places if isinstance(places, list) else ():
        url = place.get("url") if isinstance(place, dict) else None
        if isinstance(url, str):
            yield url
