"""A ticket: what a person reads, and the exact bytes that are approved, frozen and delivered."""

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.scanner import Issue, Page
from schemas.strict_json import canonical

#: What trackers commonly take as a title.
MAX_TITLE: Final = 250

#: The version of the delivered body.
BODY_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Source:
    """What an export was prepared from."""

    type: str
    id: str
    scan_run_id: int | None = None

    def record(self) -> dict[str, Any]:
        """Return it as it stands in answers and deliveries."""
        known = {"type": self.type, "id": self.id}
        return known if self.scan_run_id is None else {**known, "scan_run_id": self.scan_run_id}


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket."""

    title: str
    description: str
    severity: str
    page_url: str | None
    labels: tuple[str, ...]
    evidence: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """Return it as it stands in answers and deliveries."""
        return {
            "title": self.title,
            "description": self.description,
            "severity": self.severity,
            "page_url": self.page_url,
            "labels": list(self.labels),
            "evidence": self.evidence,
        }


def ticket_for_finding(page: Page, issue: Issue, scan_run_id: int) -> Ticket:
    """Return the ticket of a finding: where it is, what is wrong and by which rule."""
    page_url = issue.url or page.url
    return Ticket(
        title=_title(issue.title, page_url),
        description=_description(issue, page_url, scan_run_id),
        severity=issue.severity,
        page_url=page_url,
        labels=tuple(
            filter(None, ("website-risk", f"severity:{issue.severity}", page.page_type and f"page:{page.page_type}"))
        ),
        evidence={**issue.evidence, "rule": issue.code, "location": issue.location},
    )


def digest(ticket: dict[str, Any]) -> str:
    """Return the digest that an approval may name: `sha256:` and 64 hex digits of the canonical ticket."""
    return f"sha256:{hashlib.sha256(canonical(ticket)).hexdigest()}"


def delivery_body(export_id: str, target_id: str, source: Source, ticket: dict[str, Any], created_at: str) -> bytes:
    """Return the bytes a receiver gets: the same for every attempt.

    `created_at` is the time of approval in RFC 3339, UTC.
    """
    return canonical(
        {
            "id": export_id,
            "type": "ticket.export",
            "version": BODY_VERSION,
            "created_at": created_at,
            "export": {"id": export_id, "target_id": target_id, "source": source.record()},
            "ticket": ticket,
        }
    )


def _title(text: str, page_url: str) -> str:
    """Name the page, so that the same flaw on two pages reads as two tickets."""
    place = f" on {urlsplit(page_url).path or '/'}"
    room = max(MAX_TITLE - len(place), MAX_TITLE // 2)
    return f"{_shortened(text, room)}{place}"[:MAX_TITLE]


def _shortened(text: str, room: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def _description(issue: Issue, page_url: str, scan_run_id: int) -> str:
    facts = [
        f"Page: {page_url}",
        f"Where: {issue.location}" if issue.location else "",
        f"Severity: {issue.severity}",
        f"Rule: {issue.code}",
        f"Found by scan run {scan_run_id}.",
    ]
    return "\n\n".join(filter(None, (issue.description or issue.title, "\n".join(filter(None, facts)))))
