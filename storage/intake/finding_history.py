"""The history of a finding over scan runs, the other findings of its page, and the findings at the places of a ticket."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from schemas.findings.life_cycle import RunOutcome
from storage.db.columns import columns, read
from storage.db.models import FindingRow, FindingSightingRow


@dataclass(frozen=True, slots=True)
class ScanRunSighting:
    """A scan run that reported a finding, or visited its page without reporting it."""

    scan_run_id: int
    seen_at: datetime
    outcome: RunOutcome

    @property
    def is_report(self) -> bool:
        """Whether the run reported the finding."""
        return self.outcome in {RunOutcome.SEEN, RunOutcome.REOPENED}


@dataclass(frozen=True, slots=True)
class PageFinding:
    """A finding of a page; `export_id` is the export of its ticket."""

    id: str
    title: str
    severity: str
    location: str
    export_id: str | None


@dataclass(frozen=True, slots=True)
class PlaceFinding:
    """A finding at a place of a ticket."""

    id: str
    page_url: str
    location: str
    fixed_at: datetime | None


def list_runs(finding_id: str, limit: int) -> list[ScanRunSighting]:
    """Return up to `limit` scan runs that have visited the page of a finding, latest first.

    Sorted by time, because the ids of runs have no order if they are derived from reports or several scanners count.
    """
    s = FindingSightingRow
    found = s.select(*columns(ScanRunSighting, s, scan_run_id=s.scan_run)).where(s.finding == finding_id)
    return read(ScanRunSighting, found.order_by(s.seen_at.desc(), s.scan_run.desc()).limit(limit))


def list_others_of_page(finding_id: str, limit: int) -> list[PageFinding]:
    """Return up to `limit` other findings of the same page that are not fixed, newest first.

    Returns an empty list if the finding does not exist.
    """
    one = FindingRow.alias("one")
    project, page = (one.select(column).where(one.id == finding_id) for column in (one.project, one.page_digest))
    f = FindingRow
    of_page = (f.project == project, f.page_digest == page, f.fixed_at.is_null(), f.id != finding_id)
    found = f.select(*columns(PageFinding, f)).where(*of_page)
    return read(PageFinding, found.order_by(f.id.desc()).limit(limit))


def list_of_exports(export_ids: Collection[str], page_urls: Collection[str], limit: int) -> list[PlaceFinding]:
    """Return up to `limit` findings of the tickets of some exports, on some pages."""
    f = FindingRow
    found = f.select(*columns(PlaceFinding, f)).where(f.export_id.in_(export_ids), f.page_url.in_(page_urls))
    return read(PlaceFinding, found.limit(limit))
