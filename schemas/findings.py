"""A finding: one issue on one page, recognised again over scan runs by its fingerprint."""

import hashlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from schemas.scanner import Issue, Page

#: Parts of the fingerprint are joined with a byte that no accepted text holds.
_SEPARATOR: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class PostbackResult:
    """What a postback came to: how many findings are new, how many were seen before, which exports were prepared."""

    scan_run_id: int
    new: int
    seen: int
    ticket_exports: tuple[str, ...]


def fingerprint(page: Page, issue: Issue) -> str:
    """Return the 64 hex digits by which the same issue on the same page is known again.

    Page, rule and place count; wording, severity and evidence may change without making a new finding.
    """
    where = _same_page(issue.url or page.normalized_url or page.url)
    parts = (where, issue.code.strip().lower(), " ".join(issue.location.split()))
    return hashlib.sha256(_SEPARATOR.join(part.encode() for part in parts)).hexdigest()


def postback_answer(result: PostbackResult) -> dict[str, object]:
    """Return the body of the 202."""
    return {
        "scan_run_id": result.scan_run_id,
        "status": "accepted",
        "findings": {"new": result.new, "seen": result.seen},
        "ticket_exports": list(result.ticket_exports),
    }


def _same_page(url: str) -> str:
    """Fold what does not tell pages apart: the case of scheme and host, a fragment, an empty path."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path or "/", parts.query, ""))
