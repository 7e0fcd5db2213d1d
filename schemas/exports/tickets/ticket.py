"""A ticket, and the exact bytes that are approved, frozen and delivered.

Equal tickets have equal bytes, so a digest identifies one. `ticket_text` makes tickets from each source.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from schemas.base.strict_json import canonical

#: The length that trackers commonly accept for a title.
MAX_TITLE: Final = 250

#: The version of the delivered body.
BODY_VERSION: Final = 1

#: The source type of a ticket that was written by hand.
MANUAL: Final = "manual"
#: The sources of exports.
SOURCE_TYPES: Final = ("finding", "evidence_capture", "diagnostics", "inbound_email", MANUAL)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an export."""

    type: str
    id: str
    scan_run_id: int | None = None

    def record(self) -> dict[str, Any]:
        """Return the source as JSON for responses and deliveries."""
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
        """Return the ticket as JSON for responses and deliveries."""
        return {
            "title": self.title,
            "description": self.description,
            "severity": self.severity,
            "page_url": self.page_url,
            "labels": list(self.labels),
            "evidence": self.evidence,
        }


#: Replaces a ticket after the person that it is about was erased.
REDACTED_TICKET: Final = Ticket(title="Redacted", description="", severity="info", page_url=None, labels=(), evidence={})


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
