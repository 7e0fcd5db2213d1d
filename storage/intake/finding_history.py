"""The history of a finding over scan runs, and the other findings of its page, as the page of an export shows them."""

from dataclasses import dataclass
from datetime import datetime

from schemas.findings.life_cycle import RunOutcome
from storage.db.columns import columns, read
from storage.db.models import FindingRow, FindingSightingRow


@dataclass(frozen=True, slots=True)
class ScanRunSighting:
    """A scan run that reported a finding, or looked at its page without reporting it."""

    scan_run_id: int
    seen_at: datetime
    outcome: RunOutcome

    @property
    def is_report(self) -> bool:
        """Whether the run reported it."""
        return self.outcome in {RunOutcome.SEEN, RunOutcome.REOPENED}


@dataclass(frozen=True, slots=True)
class PageFinding:
    """A finding of a page; `export_id` is the export whose ticket it belongs to."""

    id: str
    title: str
    severity: str
    location: str
    export_id: str | None


def list_runs(finding_id: str, limit: int) -> list[ScanRunSighting]:
    """Return up to `limit` scan runs that have looked at the page of a finding, those with the highest ids first."""
    s = FindingSightingRow
    found = s.select(*columns(ScanRunSighting, s, scan_run_id=s.scan_run)).where(s.finding == finding_id)
    return read(ScanRunSighting, found.order_by(s.scan_run.desc()).limit(limit))


def list_others_of_page(finding_id: str, limit: int) -> list[PageFinding]:
    """Return up to `limit` other findings of the page of a finding, the newest first, without fixed ones.

    None for a finding that does not exist.
    """
    one = FindingRow.alias("one")
    project, page = (one.select(column).where(one.id == finding_id) for column in (one.project, one.page_digest))
    f = FindingRow
    of_page = (f.project == project, f.page_digest == page, f.fixed_at.is_null(), f.id != finding_id)
    found = f.select(*columns(PageFinding, f)).where(*of_page)
    return read(PageFinding, found.order_by(f.id.desc()).limit(limit))
