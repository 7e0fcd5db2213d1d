"""Where a ticket's findings are, as rows and tickets show it: hosts, pages, and a location on each."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from schemas.exports.record import Export

#: Paths that one line of a row has room for.
_FEW_PATHS: Final = 2


class TicketPlace(NamedTuple):
    """One place of a ticket; `page` is the URL without its origin."""

    url: str
    page: str
    location: str


def places_of(export: Export) -> list[TicketPlace]:
    """Return the places of a ticket: those of its group, or the page that it is about."""
    evidence = _object(export.ticket.get("evidence"))
    listed = evidence.get("places")
    if isinstance(listed, list) and listed:
        return [_place(each.get("url"), each.get("location")) for each in listed if isinstance(each, dict)]
    url = export.ticket.get("page_url")
    return [_place(url, evidence.get("location"))] if url else []


def row_line(export: Export) -> str:
    """Return what a row says beneath its title: site, pages, rule, and what changed."""
    places = places_of(export)
    hosts = list(dict.fromkeys(filter(None, (_host(place.url) for place in places))))
    pages = list(dict.fromkeys(place.page for place in places))
    total, fixed = export.findings or (len(places), 0)
    parts = [
        hosts[0] if len(hosts) == 1 else f"{len(hosts)} sites" if hosts else "",
        _pages(pages, total),
        export.rule or "",
        f"{fixed} of {total} fixed" if fixed else "",
        "edited" if export.original_ticket is not None else "",
    ]
    return " · ".join(filter(None, parts))


def _pages(pages: Sequence[str], total: int) -> str:
    if len(pages) <= _FEW_PATHS and total <= _FEW_PATHS:
        return ", ".join(pages)
    # A long group lists its first places only.
    return f"{total} places" if total > len(pages) else f"{len(pages)} pages"


def _place(url: Any, location: Any) -> TicketPlace:
    text = str(url or "")
    return TicketPlace(text, _page(text), str(location or ""))


def _page(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}" if parts.netloc else url


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
