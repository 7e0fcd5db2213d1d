"""Details of the finding of an export: its help link, screenshot, history and neighbors on the page."""

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

#: Scan runs, and findings of the page, that are listed.
MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """The details of a finding; the texts are the scanner's, and a link is None where its text may not be one."""

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
        """When the finding was last reported again after it was fixed, if one of the listed scan runs did so."""
        return max((each.seen_at for each in self.sightings if each.outcome is RunOutcome.REOPENED), default=None)


def finding_details(export: Export, artifacts_base_url: str) -> FindingDetails | None:
    """Return the details of an export's finding, the first one of a group; None for other sources. Two queries."""
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
    """Return the link to a screenshot. Tickets have its URL if ARTIFACTS_BASE_URL was set when they were written."""
    if screenshot and base_url and screenshot.startswith(f"{base_url.rstrip('/')}/"):
        path = screenshot.removeprefix(f"{base_url.rstrip('/')}/")
        return safe_link(screenshot) if not {"", ".", ".."}.intersection(path.split("/")) else None
    return safe_link(artifact_url(base_url, screenshot))


def _text(evidence: Any, name: str) -> str | None:
    value = evidence.get(name) if isinstance(evidence, Mapping) else None
    return value if isinstance(value, str) and value else None
