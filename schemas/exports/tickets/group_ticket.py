"""The ticket of a group: one for all findings of a rule, with the places that break the rule.

A group of one finding has title and text of that finding's ticket. A group grows while its export is prepared: `read_group`
reads the stored ticket, `with_findings` adds findings, `group_ticket` writes the new one. The scanner's own evidence is that
of the first finding, an example for all.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.base.places import Place
from schemas.base.strict_json import canonical
from schemas.exports.tickets.ticket import MAX_TITLE, Ticket
from schemas.exports.tickets.ticket_text import (
    MAX_FACT,
    MAX_LISTED,
    MAX_PLACE,
    PRODUCT_LABEL,
    describe,
    finding_facts,
    finding_title,
    found_by,
    join_first,
    one_line,
    shortened,
    ticket_for_finding,
    ticket_labels,
)
from schemas.intake.scanner import SEVERITIES, Issue, ScannedPage

#: Maximum number of places in the evidence, and of the bytes that they take; the description lists the first MAX_LISTED.
MAX_PLACES: Final = 50
MAX_PLACES_BYTES: Final = 64 * 1024
#: Maximum number of hosts in the evidence.
MAX_SITES: Final = 20

#: Members of a group's evidence that the evidence of its first finding does not have.
GROUP_NAMES: Final = ("places", "findings", "pages", "sites")

#: No line of the places or the facts is empty, so the last occurrence of this text begins the list of places.
_PLACES: Final = "\n\nPlaces:\n"
#: The list as it was written, up to its last line; a person may have edited the text around it.
_PLACES_LIST: Final = re.compile(r"\n\nPlaces:(?:\n- [^\n]*)+(?:\n… and \d+ more)?(?=\n|\Z)")


@dataclass(frozen=True, slots=True)
class Group:
    """A group of findings, from which its ticket is written."""

    #: The title and the reported text of its first finding.
    title: str
    text: str
    severity: str
    rule: str
    scan_run_id: int | None
    #: All labels except the product's own and the severity's.
    labels: tuple[str, ...]
    #: The evidence of its first finding.
    evidence: Mapping[str, Any]
    #: The first places, as many as the evidence holds; the group has `findings` on `pages`.
    places: tuple[Place, ...]
    findings: int
    pages: int
    sites: tuple[str, ...]


def is_group(ticket: Mapping[str, Any]) -> bool:
    """Return whether a ticket is a group's; the evidence of a handwritten ticket may have the same names."""
    evidence = ticket["evidence"]
    if not all(name in evidence for name in GROUP_NAMES):
        return False
    findings, places = evidence["findings"], evidence["places"]
    return type(findings) is int and findings > 0 and isinstance(places, list) and all(map(_is_place, places))


def without_places(description: str) -> str:
    """Return the description of a group's ticket without the list of places, for texts with a list of their own."""
    lists = [*_PLACES_LIST.finditer(description)]
    # The reported text, which precedes the list, may contain such a list, too.
    return description[: lists[-1].start()] + description[lists[-1].end() :] if lists else description


def new_group(page: ScannedPage, issue: Issue, scan_run_id: int, screenshot: str | None) -> Group:
    """Return the group of one finding."""
    return read_group(ticket_for_finding(page, issue, scan_run_id, screenshot).record(), issue.title, scan_run_id)


def read_group(ticket: Mapping[str, Any], title: str, scan_run_id: int | None) -> Group:
    """Return the group from which the ticket of a group or a finding was written; `title` is that of its first finding."""
    evidence, url = dict(ticket["evidence"]), str(ticket["page_url"])
    only = Place(url, evidence["location"])
    facts = finding_facts(only.url, only.location, ticket["severity"], evidence["rule"], scan_run_id)
    findings = evidence.pop("findings", 1)
    text = str(ticket["description"])
    return Group(
        title=title,
        text=text.removesuffix(f"\n\n{describe('', facts)}") if findings == 1 else text.rpartition(_PLACES)[0] or text,
        severity=ticket["severity"],
        rule=evidence["rule"],
        scan_run_id=scan_run_id,
        labels=tuple(each for each in ticket["labels"] if each != PRODUCT_LABEL and not each.startswith("severity:")),
        places=tuple(Place(**each) for each in evidence.pop("places", ())) or (only,),
        findings=findings,
        pages=evidence.pop("pages", 1),
        sites=tuple(evidence.pop("sites", (_site(url),))),
        evidence=evidence,
    )


def with_findings(group: Group, added: Sequence[tuple[Place, str]], known_pages: Collection[str]) -> Group:
    """Return the group with more findings, each a place and a severity; `known_pages` are URLs that it already has."""
    urls = dict.fromkeys(place.url for place, _ in added)
    sites = tuple(dict.fromkeys((*group.sites, *map(_site, urls))))[:MAX_SITES]
    return replace(
        group,
        severity=highest([group.severity, *(severity for _, severity in added)]),
        places=_first_places((*group.places, *(place for place, _ in added))),
        findings=group.findings + len(added),
        pages=group.pages + sum(url not in known_pages for url in urls),
        sites=sites,
    )


def with_stored(group: Group, severity: str, places: Sequence[Place], findings: int, pages: int) -> Group:
    """Return the group as the findings of its export are stored: their highest severity, first places, and counts."""
    # The first places may lack the sites of later ones.
    sites = tuple(dict.fromkeys((*(_site(place.url) for place in places), *group.sites)))[:MAX_SITES]
    return replace(group, severity=severity, places=_first_places(places), findings=findings, pages=pages, sites=sites)


def group_ticket(group: Group) -> Ticket:
    """Return the ticket of a group; for one finding, it is the finding's own ticket with the places in its evidence."""
    ticket = finding_ticket(group)
    if group.findings > 1:
        facts = (("Severity", group.severity), ("Rule", one_line(group.rule)), ("Found by", found_by(group.scan_run_id)))
        # The type of one page does not apply to the others.
        labels = tuple(each for each in ticket.labels if not each.startswith("page:"))
        description = describe(f"{group.text}{_PLACES}{_listed(group)}", facts)
        ticket = replace(ticket, title=_title(group), description=description, labels=labels)
    return replace(ticket, evidence={**ticket.evidence, **_of_places(group)})


def finding_ticket(group: Group) -> Ticket:
    """Return the ticket of a group's first finding alone, as a split leaves it."""
    place = group.places[0]
    facts = finding_facts(place.url, place.location, group.severity, group.rule, group.scan_run_id)
    return Ticket(
        title=finding_title(group.title, place.url, place.location),
        description=describe(group.text, facts),
        severity=group.severity,
        page_url=place.url,
        labels=ticket_labels(f"severity:{group.severity}", *group.labels),
        evidence=dict(group.evidence),
    )


def grown_ticket(edited: Mapping[str, Any], original_severity: str, group: Group) -> Ticket:
    """Return the ticket of a group that a person edited, with the places of `group`.

    It keeps the person's title, description and labels, and the severity too unless a place is more severe than the ticket
    ever was.
    """
    return Ticket(
        title=edited["title"],
        description=edited["description"],
        severity=_edited_severity(edited["severity"], original_severity, group.severity),
        page_url=edited["page_url"],
        labels=tuple(edited["labels"]),
        evidence={**group.evidence, **_of_places(group)},
    )


def highest(severities: Iterable[str]) -> str:
    """Return the highest of some severities."""
    return max(severities, key=SEVERITIES.index)


def _edited_severity(edited: str, original: str, new: str) -> str:
    return new if SEVERITIES.index(new) > SEVERITIES.index(highest((edited, original))) else edited


def _title(group: Group) -> str:
    site = shortened(group.sites[0], MAX_PLACE)
    more = len(group.sites) - 1
    of = f"of {site}" + (f" and {more} more {_plural('site', more)}" if more else "")
    pages = f"{group.pages} {_plural('page', group.pages)} {of}"
    count = pages if group.pages == group.findings else f"{group.findings} places on {pages}"
    return f"{shortened(group.title, MAX_TITLE - len(count) - 2)}: {count}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _listed(group: Group) -> str:
    lines = [f"- {shortened(each.url, MAX_FACT)}{_where(each.location)}" for each in group.places[:MAX_LISTED]]
    # `join_first` counts the places that are not listed.
    return join_first([*lines, *[""] * (group.findings - len(lines))], len(lines), "\n")


def _where(location: str) -> str:
    line = one_line(location)
    return f" ({line})" if line else ""


def _of_places(group: Group) -> dict[str, Any]:
    return {
        "places": [each.record() for each in group.places],
        "findings": group.findings,
        "pages": group.pages,
        "sites": list(group.sites),
    }


def _is_place(value: Any) -> bool:
    has_names = isinstance(value, dict) and value.keys() == {"url", "location"}
    return has_names and all(isinstance(text, str) for text in value.values())


def _first_places(places: Sequence[Place]) -> tuple[Place, ...]:
    """Return the first places that fit into the limits together; no place follows one that does not fit."""
    kept: list[Place] = []
    # One comma fewer than places.
    size = len("[]") - len(",")
    for place in places[:MAX_PLACES]:
        size += len(canonical({**place.record()})) + len(",")
        if size > MAX_PLACES_BYTES:
            break
        kept.append(place)
    return tuple(kept)


def _site(url: str) -> str:
    parts = urlsplit(url)
    return parts.hostname or parts.netloc
