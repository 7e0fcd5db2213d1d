"""The places of a ticket's findings, for lists and tickets: hosts, pages, a location on each, and which are fixed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from schemas.exports.record import Export
from service.console.wording import count
from storage.intake import finding_history
from storage.intake.finding_history import PlaceFinding

#: Number of paths for which one line of a row has room.
_MAX_PATHS: Final = 2
#: Maximum number of findings to compare with the places of a ticket; a ticket lists fewer places.
_MAX_FINDINGS: Final = 500


class TicketPlace(NamedTuple):
    """One place of a ticket; `page` is the URL without its `host`. The finding is an unfixed one, if there is one."""

    url: str
    host: str
    page: str
    location: str
    finding_id: str | None = None
    is_fixed: bool = False


def places_of(export: Export) -> list[TicketPlace]:
    """Return the places of a ticket: the places of its group, or its page."""
    evidence = _object(export.ticket.get("evidence"))
    listed = evidence.get("places")
    if isinstance(listed, list) and listed:
        return [_place(each.get("url"), each.get("location")) for each in listed if isinstance(each, dict)]
    url = export.ticket.get("page_url")
    return [_place(url, evidence.get("location"))] if url else []


def places_with_findings(export: Export) -> list[TicketPlace]:
    """Return the places of a ticket, each with its finding if the ticket still contains it. Makes one query."""
    places = places_of(export)
    if export.findings is None or not places:
        return places
    urls = {place.url for place in places}
    found = finding_history.list_of_exports(export.siblings or (export.id,), urls, _MAX_FINDINGS)
    # Sorted, so that an unfixed finding replaces a fixed one at the same place.
    by_place = {(each.page_url, each.location): each for each in sorted(found, key=lambda each: each.fixed_at is None)}
    return [_with_finding(place, by_place.get((place.url, place.location))) for place in places]


def row_line(export: Export) -> str:
    """Return the line below the title of a row: site, pages, rule, and changes."""
    places = places_of(export)
    hosts = list(dict.fromkeys(place.host for place in places if place.host))
    pages = list(dict.fromkeys(place.page for place in places))
    total, fixed = export.findings or (len(places), 0)
    finding = export.finding
    parts = [
        hosts[0] if len(hosts) == 1 else f"{len(hosts)} sites" if hosts else "",
        _pages(pages, total),
        export.rule or "",
        f"{count(fixed)} of {count(total)} fixed" if fixed else "",
        # For a group, these are the runs of its first finding only.
        f"seen in {count(finding.times_seen)} scan runs" if finding and total == 1 and finding.times_seen > 1 else "",
        "reopened" if finding and finding.times_reopened else "",
        "edited" if export.original_ticket is not None else "",
    ]
    return " · ".join(filter(None, parts))


def _with_finding(place: TicketPlace, found: PlaceFinding | None) -> TicketPlace:
    return place if found is None else place._replace(finding_id=found.id, is_fixed=found.fixed_at is not None)


def _pages(pages: Sequence[str], total: int) -> str:
    if len(pages) <= _MAX_PATHS and total <= _MAX_PATHS:
        return ", ".join(pages)
    # The ticket of a large group lists only its first places.
    return f"{count(total)} places" if total > len(pages) else f"{len(pages)} pages"


def _place(url: Any, location: Any) -> TicketPlace:
    """Return the place of a URL and a location; for a text that is not a URL, `page` is the text."""
    text = str(url or "")
    host, page = "", text
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.netloc:
            host, page = parts.netloc, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return TicketPlace(text, host, page, str(location or ""))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
