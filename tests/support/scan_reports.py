"""The reports in `tests/schemas/report_files/reports`, whose README names each report's tool, and their postbacks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from schemas.report_files.formats import read_report
from schemas.report_files.issues import ScanIssue, VisitedPages
from schemas.report_files.pages import PreparedImport, prepare

REPORTS: Final = Path(__file__).resolve().parents[1] / "schemas" / "report_files" / "reports"
FILES: Final = {
    "zap": REPORTS / "zap.json",
    "lighthouse": REPORTS / "lighthouse.json",
    "nuclei": REPORTS / "nuclei.jsonl",
    "wapiti": REPORTS / "wapiti.json",
    "sarif": REPORTS / "sarif.json",
}
SHOP: Final = "https://shop.example/"


def read_issues(content: bytes, name: str) -> list[ScanIssue]:
    """Return the issues of a report. Raises UnreadableReport."""
    return read_report(content, name).issues


def prepared(issues: Iterable[ScanIssue], scan_run_id: int, report: bytes = b"") -> PreparedImport:
    """Return the postbacks for issues of a report, without a list of rules and without further pages."""
    return prepare(issues, scan_run_id, report, VisitedPages())


def imported(name: str, content: bytes | None = None) -> PreparedImport:
    """Return the postbacks of a report, or of other bytes in its format, as scan run 7."""
    report = read_report(FILES[name].read_bytes() if content is None else content, name)
    return prepare(report.issues, 7, b"", report.visited)
