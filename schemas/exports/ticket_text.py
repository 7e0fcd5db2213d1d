"""How each source reads as a ticket: its title, what somebody said, then what is known, a fact a line.

A long line is shortened here; the whole of it stands in the evidence. A ticket is searched once more for forbidden content,
because its parts may make together what none of them was by itself; such a ticket cannot be approved.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.base.errors import FieldProblem
from schemas.base.shop_domain import normalised_shop_domain
from schemas.base.timestamps import rfc3339_or_none
from schemas.content_policy import rules
from schemas.exports.ticket import MAX_TITLE, Ticket
from schemas.intake.diagnostics import (
    CmsDiagnosticsForm,
    Diagnostics,
    Platform,
    StorefrontDiagnosticsForm,
    submitted_facts,
)
from schemas.intake.email import InboundEmail, attachment_records, first_web_address
from schemas.intake.evidence import Capture, CaptureForm, Heading, captured_facts
from schemas.intake.scanner import Issue, ScannedPage

#: A path in a title leaves most of it to what the ticket is about.
MAX_PLACE: Final = 100
#: One fact is one line, which a person reads without scrolling far; the whole of it stands in the evidence.
MAX_FACT: Final = 500
#: Enough headings to know a page by, and enough symptoms or plugins to begin with; the evidence has them all.
MAX_LISTED_HEADINGS: Final = 10
MAX_LISTED: Final = 20

#: The members of a ticket's record, of which the paths of its problems are made.
_NAMES: Final = frozenset({"title", "description", "severity", "page_url", "labels", "evidence", "rule", "location"}).union(
    {"sender", "recipients", "attachments", "name", "content_type", "size_bytes"},
    *(form().member_names() for form in (CaptureForm, CmsDiagnosticsForm, StorefrontDiagnosticsForm)),
)


def ticket_for_finding(page: ScannedPage, issue: Issue, scan_run_id: int) -> Ticket:
    """Return the ticket of a finding: where it is, what is wrong and by which rule."""
    page_url = issue.url or page.url
    facts = (
        ("Page", page_url),
        ("Where", issue.location),
        ("Severity", issue.severity),
        ("Rule", issue.code),
        ("Found by", f"scan run {scan_run_id}"),
    )
    return Ticket(
        title=_title(issue.title, page_url),
        description=_description(issue.description or issue.title, facts),
        severity=issue.severity,
        page_url=page_url,
        labels=_labels(f"severity:{issue.severity}", page.page_type and f"page:{page.page_type}"),
        evidence={**issue.evidence, "rule": issue.code, "location": issue.location},
    )


def ticket_by_hand(
    title: str, description: str, severity: str, page_url: str | None, labels: Iterable[str], evidence: dict[str, Any]
) -> Ticket:
    """Return a ticket as somebody wrote it; where it says nothing but its title, the description says that and where."""
    told = description or _description(title, (("Page", page_url),))
    return Ticket(title, told, severity, page_url, tuple(labels), evidence)


def ticket_for_capture(capture: Capture) -> Ticket:
    """Return the ticket of an evidence capture: on which page, what was selected there, how the page is built up."""
    facts = (
        ("Page", capture.page_url),
        ("Title", _line(capture.page_title)),
        ("Canonical URL", capture.canonical_url),
        ("Meta description", _line(capture.meta_description)),
        ("Headings", _outline(capture.heading_outline or ())),
        ("Captured at", rfc3339_or_none(capture.captured_at)),
        ("Captured with", _client("browser extension", capture.extension_version)),
    )
    selected = (capture.selected_text or "").strip()
    return Ticket(
        title=_capture_title(capture),
        description=_description(selected or "This page was captured as evidence; no text was selected on it.", facts),
        severity="info",
        page_url=capture.page_url,
        labels=_labels("severity:info", "source:browser-extension"),
        evidence=_known(captured_facts(capture)),
    )


def ticket_for_diagnostic(diagnostics: Diagnostics) -> Ticket:
    """Return the ticket of a plugin's or the storefront app's diagnostics: what was seen there, and what the site runs."""
    is_cms = diagnostics.platform is Platform.CMS_COMMERCE
    site = (urlsplit(diagnostics.site_url or "").hostname if is_cms else diagnostics.shop_domain) or "the site"
    symptoms = diagnostics.symptoms
    severity = "medium" if symptoms else "info"
    title = f"Visible symptoms on {site}: {symptoms[0]}" if symptoms else f"Diagnostics of {site}"
    return Ticket(
        title=_shortened(title, MAX_TITLE),
        description=_description(_symptoms(symptoms), _cms_facts(diagnostics) if is_cms else _shop_facts(diagnostics)),
        severity=severity,
        page_url=_cms_page(diagnostics) if is_cms else _shop_page(diagnostics),
        labels=_labels(f"severity:{severity}", "source:cms-commerce" if is_cms else "source:storefront"),
        evidence=_known(submitted_facts(diagnostics)),
    )


def ticket_for_email(email: InboundEmail) -> Ticket:
    """Return the ticket of an inbound email: what it says, who wrote it to whom and when, and what came with it."""
    names = [_line(attachment.name) or "without a name" for attachment in email.attachments]
    facts = (
        ("From", _line(email.sender)),
        ("Received", rfc3339_or_none(email.sent_at)),
        ("Attachments", f"{len(names)}: {_some(names, MAX_LISTED, ', ')}" if names else None),
    )
    subject = _shortened(email.subject, MAX_TITLE)
    return Ticket(
        title=subject or _shortened(f"Email from {email.sender}", MAX_TITLE),
        description=_description(email.text.strip() or "This email has no text.", facts),
        severity="info",
        page_url=first_web_address(email.text),
        labels=_labels("severity:info", "source:email"),
        evidence={
            "sender": email.sender,
            "recipients": list(email.recipients),
            "attachments": attachment_records(email),
        },
    )


def preview_problems(tickets: Sequence[dict[str, Any]]) -> list[tuple[FieldProblem, ...]]:
    """Return what keeps each ticket's record from being approved: forbidden content that its parts make together."""
    return rules.find_each(tickets, _NAMES)


def _title(text: str, page_url: str) -> str:
    """Name the page, so that the same flaw on two pages reads as two tickets."""
    place = f" on {urlsplit(page_url).path or '/'}"
    room = max(MAX_TITLE - len(place), MAX_TITLE // 2)
    return f"{_shortened(text, room)}{place}"[:MAX_TITLE]


def _shortened(text: str, room: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def _description(lead: str, facts: Iterable[tuple[str, str | None]]) -> str:
    """Put what somebody said before what is known, a fact a line; an empty fact has none."""
    told = "\n".join(f"{name}: {fact}" for name, fact in facts if fact)
    return "\n\n".join(filter(None, (lead, told)))


def _labels(*labels: str | None) -> tuple[str, ...]:
    return tuple(filter(None, ("website-risk", *labels)))


def _capture_title(capture: Capture) -> str:
    parts = urlsplit(capture.page_url)
    about = _line(capture.page_title) or _line(capture.selected_text) or parts.hostname
    return _shortened(f"Evidence from {_shortened(parts.path or '/', MAX_PLACE)}: {about}", MAX_TITLE)


def _outline(headings: Sequence[Heading]) -> str:
    return _some(
        [f"{heading.level} {_shortened(heading.text, MAX_PLACE)}" for heading in headings], MAX_LISTED_HEADINGS, "; "
    )


def _symptoms(symptoms: Sequence[str]) -> str:
    """Put what was seen as it was said, or a line each where it was several things."""
    if len(symptoms) == 1:
        return symptoms[0].strip()
    lines = [f"- {' '.join(symptom.split())}" for symptom in symptoms]
    return _some(lines, MAX_LISTED, "\n") or "No visible symptoms were reported."


def _cms_facts(diagnostics: Diagnostics) -> Iterable[tuple[str, str | None]]:
    told = diagnostics.told
    return (
        ("Site", diagnostics.site_url),
        ("Checkout page", told["checkout_page_url"]),
        ("CMS version", _line(told["cms_version"])),
        ("Commerce plugin", _line(told["commerce_plugin_version"])),
        ("Commerce plugin status", _line(told["commerce_plugin_status"])),
        ("Active theme", _line(told["active_theme"])),
        ("Active plugins", _some([_line(name) for name in told["active_plugin_names"] or ()], MAX_LISTED, ", ")),
        ("Reported by", _client("CMS plugin", diagnostics.client_version)),
    )


def _shop_facts(diagnostics: Diagnostics) -> Iterable[tuple[str, str | None]]:
    told = diagnostics.told
    return (
        ("Shop", diagnostics.shop_domain),
        ("Shop name", _line(diagnostics.shop_name)),
        ("Primary domain", _line(told["primary_domain"])),
        ("Published theme", _line(told["published_theme_name"])),
        ("Themes", None if told["theme_count"] is None else str(told["theme_count"])),
        ("Products", _line(told["product_count_bucket"])),
        ("Checkout profile", _line(told["checkout_profile_status"])),
        ("App embed", _line(told["app_embed_status"])),
        ("Granted scopes", ", ".join(diagnostics.granted_scopes or ())),
        ("Reported by", _client("storefront app", diagnostics.client_version)),
    )


def _cms_page(diagnostics: Diagnostics) -> str | None:
    checkout: str | None = diagnostics.told["checkout_page_url"]
    return checkout or diagnostics.site_url


def _shop_page(diagnostics: Diagnostics) -> str:
    """Return the page that customers see: the primary domain is the sender's text, and only sometimes a domain."""
    primary = normalised_shop_domain(diagnostics.told["primary_domain"] or "")
    return f"https://{primary or diagnostics.shop_domain}/"


def _client(name: str, version: str | None) -> str:
    return f"{name} {_line(version)}".rstrip()


def _line(text: str | None) -> str:
    return _shortened(text or "", MAX_FACT)


def _some(entries: Sequence[str], count: int, joint: str) -> str:
    """Join the first `count` entries and say how many there are besides."""
    more = len(entries) - count
    return joint.join([*entries[:count], *([f"… and {more} more"] if more > 0 else [])])


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not sent."""
    inner = {name: _known(fact) if isinstance(fact, dict) else fact for name, fact in facts.items()}
    return {name: fact for name, fact in inner.items() if fact is not None}
