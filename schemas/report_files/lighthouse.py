"""Lighthouse's JSON report: the failed audits of one page.

An audit passes with a score of 0.9 or more, as in Lighthouse's own report; informative, manual, not applicable and failed
audits have no result. Audits in the group `hidden` duplicate other audits and are skipped. An accessibility audit
becomes one issue per element, any other audit one issue of the page.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.report_files.document import Node, UnreadableReport
from schemas.report_files.issues import (
    MAX_LOCATION,
    MAX_TITLE,
    ScanIssue,
    VisitedPages,
    evidence,
    one_line,
    paragraphs,
    references,
)

#: The severity by the impact of an accessibility audit (`details.debugData.impact`).
SEVERITIES: Final[Mapping[str, str]] = {"critical": "critical", "serious": "high", "moderate": "medium", "minor": "low"}
#: The severity of other audits, by score: exclusive upper limit, severity.
SCORES: Final = ((0.5, "medium"), (0.9, "low"))

#: `scoreDisplayMode` of audits without a result, whatever their score; old versions spell one with a hyphen.
_NO_RESULT: Final = frozenset({"informative", "manual", "notApplicable", "not-applicable", "error"})
#: The form of an audit's name, and far more audits than a report has.
_AUDIT: Final = re.compile(r"[a-z0-9-]{1,100}")
_MAX_AUDITS: Final = 1000
_URL_FIELDS: Final = ("finalDisplayedUrl", "finalUrl", "requestedUrl")


def is_report(value: Any) -> bool:
    """Return whether a value is a Lighthouse report."""
    return isinstance(value, dict) and "audits" in value and "lighthouseVersion" in value


def read_issues(report: Node) -> Iterator[ScanIssue]:
    """Yield the issues of a report. Raises UnreadableReport, also if Lighthouse could not load the page."""
    failure = one_line(report.member("runtimeError").member("code").text(), MAX_TITLE)
    if failure not in {"", "NO_ERROR"}:
        raise UnreadableReport(f"Lighthouse could not load the page ({failure}); the report contains no audits.")
    modes = {*_modes(report).values()}
    if "error" in modes and modes <= _NO_RESULT:
        # Such a report must not pass for a page without issues.
        raise UnreadableReport("Every audit of Lighthouse ended in an error; run it again.")
    url = _url(report)
    categories = _categories(report)
    for name, audit in report.member("audits").members():
        score = audit.member("score").number()
        has_result = audit.member("scoreDisplayMode").text() not in _NO_RESULT
        if has_result and score is not None and score < SCORES[-1][0] and name in categories:
            yield from _of_audit(url, name, audit, score, categories[name])


def visited(report: Node) -> VisitedPages:
    """Return the page, if its audits had results, and the audits that ran: an audit that failed has not checked the page."""
    modes = _modes(report)
    ran = [f"lighthouse:{name}" for name, mode in modes.items() if mode != "error" and _AUDIT.fullmatch(name)]
    rules = ran[:_MAX_AUDITS] if "error" in modes.values() else ["lighthouse:*"]
    return (
        VisitedPages((_url(report),), tuple(rules))
        if rules and not _NO_RESULT.issuperset(modes.values())
        else VisitedPages()
    )


def _url(report: Node) -> str:
    return next((text for name in _URL_FIELDS if (text := report.member(name).text())), "")


def _modes(report: Node) -> dict[str, str]:
    return {name: audit.member("scoreDisplayMode").text() for name, audit in report.member("audits").members()}


def _categories(report: Node) -> dict[str, str]:
    """Return the visible audits, each with the first category that contains it."""
    shown: dict[str, str] = {}
    for category, content in report.member("categories").members():
        for audit in content.member("auditRefs").entries():
            if audit.member("group").text() != "hidden":
                shown.setdefault(audit.member("id").text(), category)
    return shown


def _of_audit(url: str, name: str, audit: Node, score: float, category: str) -> Iterator[ScanIssue]:
    impact = audit.member("details").member("debugData").member("impact").text()
    description = audit.member("description").text()
    for location in _elements(audit) if impact else ("page",):
        yield ScanIssue(
            url=url,
            code=f"lighthouse:{name}",
            title=audit.member("title").text() or name,
            severity=SEVERITIES.get(impact) or next(severity for limit, severity in SCORES if score < limit),
            description=paragraphs(description),
            location=location,
            evidence=evidence(category=category, references=references(description)),
        )


def _elements(audit: Node) -> list[str]:
    """Return the distinct selectors of the elements; several similar links may have the same selector."""
    nodes = [entry.member("node") for entry in audit.member("details").member("items").entries()]
    named = (one_line(node.member("selector").text(), MAX_LOCATION) for node in nodes)
    return list(dict.fromkeys(name for name in named if name)) or ["page"]
