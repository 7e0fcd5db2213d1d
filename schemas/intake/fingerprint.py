"""Fingerprints: recognize the same issue on the same page in later scan runs."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.intake.page_url import page_key
from schemas.intake.scanner import SEVERITIES, Issue, ScannedPage
from schemas.intake.selector import stable_selector

#: Parts of the fingerprint are joined with a byte that no accepted text holds.
_SEPARATOR: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class PostbackResult:
    """The result of a postback: counts of findings, and the exports that were prepared.

    `seen` were open before; `fixed` are now missing in the reports of enough runs; `reopened` were fixed and are reported
    again.
    """

    scan_run_id: int
    new: int
    seen: int
    ticket_exports: tuple[str, ...]
    fixed: int = 0
    reopened: int = 0


def by_fingerprint(page: ScannedPage, issues: Iterable[Issue], checkpoint: Checkpoint = no_checkpoint) -> dict[str, Issue]:
    """Return the issues of one postback by fingerprint, 64 hex digits; of duplicates, the last of the highest severity.

    Fingerprints depend on page, rule and location. Wording, severity and evidence may change without a new finding, and so
    may parts of the URL and the location that a campaign, a session, a build of the site or another visit changes. Locations
    that differ now but have the same stable form are distinguished by their order on the page. `checkpoint` is called after
    each normalized location.
    """
    alike: dict[tuple[str, str, str], list[Issue]] = {}
    for issue in issues:
        alike.setdefault(_parts(page, issue), []).append(issue)
        checkpoint()
    return {
        _digest(*parts, *([str(number)] if number else [])): issue
        for parts, those in alike.items()
        for number, issue in enumerate(_one_of_each_place(those))
    }


def _parts(page: ScannedPage, issue: Issue) -> tuple[str, str, str]:
    where = page_key(issue.url or page.normalized_url or page.url)
    return where, issue.code.strip().lower(), stable_selector(issue.location)


def _one_of_each_place(issues: list[Issue]) -> Collection[Issue]:
    """Return one issue of each location, the most severe one."""
    if len(issues) == 1:
        return issues
    by_place: dict[str, Issue] = {}
    for issue in issues:
        place = " ".join(issue.location.split())
        # Of two equally severe issues, max returns its first argument: the newer one, with its wording.
        by_place[place] = max(issue, by_place.get(place, issue), key=lambda each: SEVERITIES.index(each.severity))
    return by_place.values()


def _digest(*parts: str) -> str:
    return hashlib.sha256(_SEPARATOR.join(part.encode() for part in parts)).hexdigest()
