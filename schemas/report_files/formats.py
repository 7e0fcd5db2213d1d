"""The report formats."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from schemas.report_files import lighthouse, nuclei, sarif, wapiti, zap
from schemas.report_files.document import Node, UnreadableReport, read
from schemas.report_files.issues import ScanIssue, VisitedPages

#: Maximum size of the issues of one report, in characters; a real report of 64 MiB needs a tenth of it.
_MAX_SIZE: Final = 150_000_000


@dataclass(frozen=True, slots=True)
class Format:
    """One format: its title, and how to detect and read it.

    `visited` returns the rules of the scanner, and the pages that it visited if the report names also those without issues.
    """

    title: str
    is_report: Callable[[Any], bool]
    read_issues: Callable[[Node], Iterable[ScanIssue]]
    visited: Callable[[Node], VisitedPages]
    may_be_lines: bool = False


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The content of a report: issues, and the visited pages that it names."""

    issues: list[ScanIssue]
    visited: VisitedPages


def _all_rules_of(scanner: str) -> Callable[[Node], VisitedPages]:
    rules = VisitedPages(rules=(f"{scanner}:*",))
    return lambda _: rules


FORMATS: Final = {
    "zap": Format("ZAP", zap.is_report, zap.read_issues, _all_rules_of("zap")),
    "lighthouse": Format("Lighthouse", lighthouse.is_report, lighthouse.read_issues, lighthouse.visited),
    "nuclei": Format("Nuclei", nuclei.is_report, nuclei.read_issues, _all_rules_of("nuclei"), may_be_lines=True),
    "wapiti": Format("Wapiti", wapiti.is_report, wapiti.read_issues, _all_rules_of("wapiti")),
    "sarif": Format("SARIF", sarif.is_report, sarif.read_issues, sarif.visited),
}


def read_report(content: bytes, name: str) -> ScanReport:
    """Return the content of a report in the format `name`, after checking all of it. Raises UnreadableReport."""
    format_ = FORMATS[name]
    report = read(content, may_be_lines=format_.may_be_lines)
    if not (format_.is_report(report.value) or (format_.may_be_lines and report.value == [])):
        raise UnreadableReport(_wrong_format(report.value, format_))
    return ScanReport(list(_limited(format_.read_issues(report))), format_.visited(report))


def recognize(content: bytes, max_values: int | None = None) -> str:
    """Return the name of a report's format. Raises UnreadableReport, also for more than `max_values` values."""
    report = read(content, may_be_lines=bool(content.strip()), max_values=max_values)
    found = next((name for name, each in FORMATS.items() if each.is_report(report.value)), None)
    if found is None and report.value == []:
        found = next(name for name, each in FORMATS.items() if each.may_be_lines)
    if found is None:
        titles = ", ".join(each.title for each in FORMATS.values())
        raise UnreadableReport(f"The file is not a report of a supported scanner. Supported: {titles}.")
    return found


def _limited(issues: Iterable[ScanIssue]) -> Iterator[ScanIssue]:
    """Yield issues until they need too much memory: thousands of results may repeat the texts of one rule."""
    size = 0
    for issue in issues:
        size += issue.size()
        if size > _MAX_SIZE:
            raise UnreadableReport("The issues of the report need too much memory; scan fewer pages at once.")
        yield issue


def _wrong_format(value: Any, expected: Format) -> str:
    found = next((name for name, each in FORMATS.items() if each.is_report(value)), None)
    if found is None:
        return f"The file is not a {expected.title} report, nor a report of another supported format."
    return f"The file is a {FORMATS[found].title} report; use --format {found}."
