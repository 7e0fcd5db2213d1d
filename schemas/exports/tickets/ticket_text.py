"""Makes the ticket of each source: a title, the reported text, then one fact per line.

Long lines are shortened; the evidence has the whole text. A ticket is checked for forbidden content again, because its parts
may form such content only together; such a ticket cannot be approved.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import FieldProblem
from schemas.base.shop_domain import normalized_shop_domain
from schemas.base.timestamps import format_rfc3339_or_none
from schemas.content_policy import rules
from schemas.exports.tickets.ticket import MAX_TITLE, Ticket
from schemas.intake.diagnostics import CmsDiagnosticsForm, Diagnostics, Platform, StorefrontDiagnosticsForm, submitted_facts
from schemas.intake.email import Attachment, InboundEmail, attachment_records, first_web_address
from schemas.intake.evidence import Capture, CaptureForm, Heading, captured_facts
from schemas.intake.scanner import Issue, ScannedPage

#: Pages whose host and path are cached: all findings of a postback are on one page.
_MAX_PAGES: Final = 1024
#: A path in a title leaves most of the title to the subject.
MAX_PLACE: Final = 100
#: The last part of a selector is shorter.
MAX_ELEMENT: Final = 60
#: A fact is one short line; the evidence has the whole text.
MAX_FACT: Final = 500
#: Enough to recognize a page and to start with; the evidence has all headings, symptoms and plugins.
MAX_LISTED_HEADINGS: Final = 10
MAX_LISTED: Final = 20

#: The first label of every ticket that the product writes.
PRODUCT_LABEL: Final = "website-risk"

#: Names that RiskRelay uses in a finding's evidence: a scanner's fields with these names are left out.
RESERVED_EVIDENCE: Final = frozenset({"screenshot", "help_url", "places", "findings", "pages", "sites"})

#: The field names of a ticket, which the paths of its problems consist of.
_NAMES: Final = RESERVED_EVIDENCE.union(
    {"rule", "location", "url", "sender", "recipients", "attachments"},
    (each.name for each in (*fields(Ticket), *fields(Attachment))),
    *(form().member_names() for form in (CaptureForm, CmsDiagnosticsForm, StorefrontDiagnosticsForm)),
)


def ticket_for_finding(page: ScannedPage, issue: Issue, scan_run_id: int, screenshot: str | None = None) -> Ticket:
    """Return the ticket of a finding: page, location, severity and rule; `screenshot` is a path in the scanner's storage."""
    page_url = issue.url or page.url
    return Ticket(
        title=finding_title(issue.title, page_url, issue.location),
        description=describe(
            issue.description or issue.title,
            finding_facts(page_url, issue.location, issue.severity, issue.code, scan_run_id),
        ),
        severity=issue.severity,
        page_url=page_url,
        labels=ticket_labels(f"severity:{issue.severity}", page.page_type and f"page:{page.page_type}"),
        evidence=finding_evidence(issue, screenshot),
    )


def reopened_text(text: str, export_id: str | None) -> str:
    """Return the text of a finding that is open again, with the id of the export of its earlier ticket."""
    earlier = "" if export_id is None else f" Its earlier ticket: {export_id}."
    return f"{text}\n\nThis was fixed, and is reported again.{earlier}"


def finding_title(text: str, page_url: str, location: str) -> str:
    """Return a title with host, path and element, so that the same issue in two places has two titles."""
    where, element = _host_and_path(page_url), shortened(_element(location), MAX_ELEMENT)
    end = f" ({element})" if element else ""
    room = max(MAX_TITLE - len(f" on {where}{end}"), MAX_TITLE // 2)
    title = f"{shortened(text, room)} on "
    return f"{title}{shortened(where, MAX_TITLE - len(title) - len(end))}{end}"


def finding_facts(
    page_url: str, location: str, severity: str, rule: str, scan_run_id: int | None
) -> tuple[tuple[str, str | None], ...]:
    """Return the facts of a finding's ticket."""
    return (
        ("Page", page_url),
        ("Where", location),
        ("Severity", severity),
        ("Rule", rule),
        ("Found by", found_by(scan_run_id)),
    )


def found_by(scan_run_id: int | None) -> str | None:
    """Return the name of a scan run in a ticket."""
    return None if scan_run_id is None else f"scan run {scan_run_id}"


def finding_evidence(issue: Issue, screenshot: str | None) -> dict[str, Any]:
    """Return the evidence of a finding's ticket: the scanner's own fields, and known fields under RiskRelay's names."""
    known = {"screenshot": screenshot, "help_url": issue.help_url}
    reported = {name: value for name, value in issue.evidence.items() if name not in RESERVED_EVIDENCE}
    return {**reported, "rule": issue.code, "location": issue.location, **_known(known)}


def ticket_by_hand(
    title: str, description: str, severity: str, page_url: str | None, labels: Iterable[str], evidence: dict[str, Any]
) -> Ticket:
    """Return a handwritten ticket; the title and the page URL replace a missing description."""
    text = description or describe(title, (("Page", page_url),))
    return Ticket(title, text, severity, page_url, tuple(labels), evidence)


def ticket_for_capture(capture: Capture) -> Ticket:
    """Return the ticket of an evidence capture: the page, the selected text and the outline of headings."""
    facts = (
        ("Page", capture.page_url),
        ("Title", one_line(capture.page_title)),
        ("Canonical URL", capture.canonical_url),
        ("Meta description", one_line(capture.meta_description)),
        ("Headings", _outline(capture.heading_outline or ())),
        ("Captured at", format_rfc3339_or_none(capture.captured_at)),
        ("Captured with", _client("browser extension", capture.extension_version)),
    )
    selected = (capture.selected_text or "").strip()
    return Ticket(
        title=_capture_title(capture),
        description=describe(selected or "This page was captured as evidence; no text was selected on it.", facts),
        severity="info",
        page_url=capture.page_url,
        labels=ticket_labels("severity:info", "source:browser-extension"),
        evidence=_known(captured_facts(capture)),
    )


def ticket_for_diagnostic(diagnostics: Diagnostics) -> Ticket:
    """Return the ticket of a plugin's or the storefront app's diagnostics: the symptoms, and the site's software."""
    is_cms = diagnostics.platform is Platform.CMS_COMMERCE
    site = (urlsplit(diagnostics.site_url or "").hostname if is_cms else diagnostics.shop_domain) or "the site"
    symptoms = diagnostics.symptoms
    severity = "medium" if symptoms else "info"
    title = f"Visible symptoms on {site}: {symptoms[0]}" if symptoms else f"Diagnostics of {site}"
    return Ticket(
        title=shortened(title, MAX_TITLE),
        description=describe(_symptoms(symptoms), _cms_facts(diagnostics) if is_cms else _shop_facts(diagnostics)),
        severity=severity,
        page_url=diagnostics.reported["checkout_page_url"] or diagnostics.site_url if is_cms else _shop_page(diagnostics),
        labels=ticket_labels(f"severity:{severity}", "source:cms-commerce" if is_cms else "source:storefront"),
        evidence=_known(submitted_facts(diagnostics)),
    )


def ticket_for_email(email: InboundEmail) -> Ticket:
    """Return the ticket of an inbound email: its text, sender, recipients, date and attachments."""
    names = [one_line(attachment.name) or "without a name" for attachment in email.attachments]
    facts = (
        ("From", one_line(email.sender)),
        ("Received", format_rfc3339_or_none(email.sent_at)),
        ("Attachments", f"{len(names)}: {join_first(names, MAX_LISTED, ', ')}" if names else None),
    )
    subject = shortened(email.subject, MAX_TITLE)
    return Ticket(
        title=subject or shortened(f"Email from {email.sender}", MAX_TITLE),
        description=describe(email.text.strip() or "This email has no text.", facts),
        severity="info",
        page_url=first_web_address(email.text),
        labels=ticket_labels("severity:info", "source:email"),
        evidence={"sender": email.sender, "recipients": list(email.recipients), "attachments": attachment_records(email)},
    )


def preview_problems(
    tickets: Sequence[dict[str, Any]], checkpoint: Checkpoint = no_checkpoint
) -> list[tuple[FieldProblem, ...]]:
    """Return the problems that prevent approval of each ticket: forbidden content that its parts form together."""
    return rules.find_each(tickets, _NAMES, checkpoint)


@lru_cache(maxsize=_MAX_PAGES)
def _host_and_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or ''}{parts.path or '/'}"


def _element(location: str) -> str:
    """Return the last part of a selector or a path, other text as it is; "" for the page as a whole."""
    last = location.rpartition("/" if location.startswith(("/", "(/")) else ">")[2].strip()
    return "" if last.lower() == "page" else last


def shortened(text: str, room: int) -> str:
    """Return a text as one line of at most `room` characters."""
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def describe(lead: str, facts: Iterable[tuple[str, str | None]]) -> str:
    """Join the reported text and the facts, one per line, without empty ones."""
    lines = "\n".join(f"{name}: {fact}" for name, fact in facts if fact)
    return "\n\n".join(filter(None, (lead, lines)))


def ticket_labels(*labels: str | None) -> tuple[str, ...]:
    """Return the labels that are not empty, after the product's own."""
    return tuple(filter(None, (PRODUCT_LABEL, *labels)))


def _capture_title(capture: Capture) -> str:
    parts = urlsplit(capture.page_url)
    about = one_line(capture.page_title) or one_line(capture.selected_text) or parts.hostname
    return shortened(f"Evidence from {shortened(parts.path or '/', MAX_PLACE)}: {about}", MAX_TITLE)


def _outline(headings: Sequence[Heading]) -> str:
    return join_first(
        [f"{heading.level} {shortened(heading.text, MAX_PLACE)}" for heading in headings], MAX_LISTED_HEADINGS, "; "
    )


def _symptoms(symptoms: Sequence[str]) -> str:
    """Return one symptom as it is, several as a list."""
    if len(symptoms) == 1:
        return symptoms[0].strip()
    lines = [f"- {' '.join(symptom.split())}" for symptom in symptoms]
    return join_first(lines, MAX_LISTED, "\n") or "No visible symptoms were reported."


def _cms_facts(diagnostics: Diagnostics) -> Iterable[tuple[str, str | None]]:
    reported = diagnostics.reported
    return (
        ("Site", diagnostics.site_url),
        ("Checkout page", reported["checkout_page_url"]),
        ("CMS version", one_line(reported["cms_version"])),
        ("Commerce plugin", one_line(reported["commerce_plugin_version"])),
        ("Commerce plugin status", one_line(reported["commerce_plugin_status"])),
        ("Active theme", one_line(reported["active_theme"])),
        ("Active plugins", join_first([one_line(name) for name in reported["active_plugin_names"] or ()], MAX_LISTED, ", ")),
        ("Reported by", _client("CMS plugin", diagnostics.client_version)),
    )


def _shop_facts(diagnostics: Diagnostics) -> Iterable[tuple[str, str | None]]:
    reported = diagnostics.reported
    return (
        ("Shop", diagnostics.shop_domain),
        ("Shop name", one_line(diagnostics.shop_name)),
        ("Primary domain", one_line(reported["primary_domain"])),
        ("Published theme", one_line(reported["published_theme_name"])),
        ("Themes", None if reported["theme_count"] is None else str(reported["theme_count"])),
        ("Products", one_line(reported["product_count_bucket"])),
        ("Checkout profile", one_line(reported["checkout_profile_status"])),
        ("App embed", one_line(reported["app_embed_status"])),
        ("Granted scopes", ", ".join(diagnostics.granted_scopes or ())),
        ("Reported by", _client("storefront app", diagnostics.client_version)),
    )


def _shop_page(diagnostics: Diagnostics) -> str:
    """Return the URL of the shop: the primary domain is free text and may not be a domain."""
    primary = normalized_shop_domain(diagnostics.reported["primary_domain"] or "")
    return f"https://{primary or diagnostics.shop_domain}/"


def _client(name: str, version: str | None) -> str:
    return f"{name} {one_line(version)}".rstrip()


def one_line(text: str | None) -> str:
    return shortened(text or "", MAX_FACT)


def join_first(entries: Sequence[str], count: int, joint: str) -> str:
    """Join the first `count` entries and add how many more there are."""
    more = len(entries) - count
    return joint.join([*entries[:count], *([f"… and {more} more"] if more > 0 else [])])


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """Drop fields that were not sent."""
    inner = {name: _known(fact) if isinstance(fact, dict) else fact for name, fact in facts.items()}
    return {name: fact for name, fact in inner.items() if fact is not None}
