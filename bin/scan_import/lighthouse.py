"""Lighthouse's JSON report: one page, its audits that did not pass.

An audit passes from a score of 0.9 on, as in Lighthouse's own report; one that is informative, manual, not applicable
or in error says nothing. Those in the group `hidden` tell again what another audit tells, and are left out. An
audit of accessibility is a flaw for each element, any other is one of the page.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bin.scan_import.document import Node, UnreadableReport
from bin.scan_import.issues import MAX_LOCATION, MAX_TITLE, Flaw, evidence, one_line, paragraphs, references

#: The impact of an audit of accessibility (`details.debugData.impact`).
SEVERITIES: Final[Mapping[str, str]] = {"critical": "critical", "serious": "high", "moderate": "medium", "minor": "low"}
#: Any other audit by its score: the words of the table, the least score that is better, the severity.
SCORES: Final = (("score below 0.5", 0.5, "medium"), ("score from 0.5 to 0.9", 0.9, "low"))

#: `scoreDisplayMode` of what says nothing, whatever its score; old versions spell one of them with a hyphen.
_NO_JUDGEMENT: Final = frozenset({"informative", "manual", "notApplicable", "not-applicable", "error"})
_MAY_BE_AT: Final = ("finalDisplayedUrl", "finalUrl", "requestedUrl")


def looks_so(value: Any) -> bool:
    """Tell whether a report is Lighthouse's."""
    return isinstance(value, dict) and "audits" in value and "lighthouseVersion" in value


def flaws(report: Node) -> Iterator[Flaw]:
    """Yield the flaws of a report. Raises UnreadableReport, also where the page could not be loaded."""
    failure = one_line(report.member("runtimeError").member("code").text(), MAX_TITLE)
    if failure not in {"", "NO_ERROR"}:
        raise UnreadableReport(f"Lighthouse could not load the page ({failure}); its report holds no audits.")
    if _made_none(report):
        raise UnreadableReport("Lighthouse could make none of its audits; run it again.")
    url = next((told for name in _MAY_BE_AT if (told := report.member(name).text())), "")
    categories = _categories(report)
    for name, audit in report.member("audits").members():
        score = audit.member("score").number()
        is_judged = audit.member("scoreDisplayMode").text() not in _NO_JUDGEMENT
        if is_judged and score is not None and score < SCORES[-1][1] and name in categories:
            yield from _of_audit(url, name, audit, score, categories[name])


def _made_none(report: Node) -> bool:
    """Tell whether every audit that was tried ended in an error: that is not to be taken for a page without flaws."""
    modes = {audit.member("scoreDisplayMode").text() for _, audit in report.member("audits").members()}
    return "error" in modes and modes <= _NO_JUDGEMENT


def _categories(report: Node) -> dict[str, str]:
    """Return the audits that are shown, each with the category that shows it first."""
    shown: dict[str, str] = {}
    for category, told in report.member("categories").members():
        for audit in told.member("auditRefs").entries():
            if audit.member("group").text() != "hidden":
                shown.setdefault(audit.member("id").text(), category)
    return shown


def _of_audit(url: str, name: str, audit: Node, score: float, category: str) -> Iterator[Flaw]:
    impact = audit.member("details").member("debugData").member("impact").text()
    description = audit.member("description").text()
    for place in _elements(audit) if impact else ("page",):
        yield Flaw(
            url=url,
            code=f"lighthouse:{name}",
            title=audit.member("title").text() or name,
            severity=SEVERITIES.get(impact) or next(severity for _, better, severity in SCORES if score < better),
            description=paragraphs(description),
            location=place,
            evidence=evidence(category=category, references=references(description)),
        )


def _elements(audit: Node) -> list[str]:
    """Return the selectors of the elements, each once; many links may stand in one place of the same look."""
    nodes = [entry.member("node") for entry in audit.member("details").member("items").entries()]
    named = (one_line(node.member("selector").text(), MAX_LOCATION) for node in nodes)
    return list(dict.fromkeys(name for name in named if name)) or ["page"]
