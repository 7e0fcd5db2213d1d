"""Details of the finding of an export: its help link, its screenshot, its history, and other findings on the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.exports.record import Export
from schemas.findings.life_cycle import RunOutcome
from schemas.intake.artifacts import artifact_url
from service.console.untrusted_text import SafeLink, safe_link
from storage.intake import finding_history
from storage.intake.finding_history import PageFinding, ScanRunSighting

#: Maximum number of scan runs, and of other findings on the page, that are listed.
MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """The details of a finding. The texts come from the scanner; a link is None if its text must not be a link."""

    help_url: str | None
    help_link: SafeLink | None
    screenshot: str | None
    screenshot_link: SafeLink | None
    sightings: Sequence[ScanRunSighting]
    has_more_sightings: bool
    others: Sequence[PageFinding]
    has_more_others: bool

    @property
    def reopened_at(self) -> datetime | None:
        """When one of the listed scan runs last reported the finding again after it was fixed; None if none did."""
        return max((each.seen_at for each in self.sightings if each.outcome is RunOutcome.REOPENED), default=None)


def finding_details(export: Export, artifacts_base_url: str) -> FindingDetails | None:
    """Return the details of an export's finding, or of a group's first one; None for other sources. Makes two queries."""
    if export.finding is None:
        return None
    finding_id = export.finding.finding_id
    sightings = finding_history.list_runs(finding_id, MAX_LISTED + 1)
    others = finding_history.list_others_of_page(finding_id, MAX_LISTED + 1)
    evidence = export.ticket.get("evidence")
    help_url, screenshot = _text(evidence, "help_url"), _text(evidence, "screenshot")
    return FindingDetails(
        help_url,
        safe_link(help_url),
        screenshot,
        _screenshot_link(screenshot, artifacts_base_url),
        sightings[:MAX_LISTED],
        len(sightings) > MAX_LISTED,
        others[:MAX_LISTED],
        len(others) > MAX_LISTED,
    )


def _screenshot_link(screenshot: str | None, base_url: str) -> SafeLink | None:
    """Return the link to a screenshot; a ticket contains its URL if ARTIFACTS_BASE_URL was set when it was written."""
    if screenshot and base_url and screenshot.startswith(f"{base_url.rstrip('/')}/"):
        path = screenshot.removeprefix(f"{base_url.rstrip('/')}/")
        return safe_link(screenshot) if not {"", ".", ".."}.intersection(path.split("/")) else None
    return safe_link(artifact_url(base_url, screenshot))


def _text(evidence: Any, name: str) -> str | None:
    value = evidence.get(name) if isinstance(evidence, Mapping) else None
    return value if isinstance(value, str) and value else None
