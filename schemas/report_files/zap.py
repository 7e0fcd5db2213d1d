"""ZAP's traditional JSON report (`-J` of its packaged scans, template `traditional-json`): alerts with their instances.

Alerts marked as false positives (confidence 0) are skipped. Attacks, evidence, and the content of requests and responses
are not copied.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.intake.html_text import text_of
from schemas.report_files.document import Node
from schemas.report_files.issues import MAX_TITLE, ScanIssue, evidence, one_line, paragraphs, references

#: The severity by `riskcode`.
SEVERITIES: Final[Mapping[str, str]] = {"3": "high", "2": "medium", "1": "low", "0": "info"}

_CONFIDENCE: Final[Mapping[str, str]] = {"1": "low", "2": "medium", "3": "high", "4": "confirmed"}
_FALSE_POSITIVE: Final = "0"
#: Values that ZAP writes if there is no number.
_NO_NUMBER: Final = frozenset({"", "-1", "0"})


def is_report(value: Any) -> bool:
    """Return whether a value is a ZAP report."""
    return isinstance(value, dict) and "site" in value and any(name.startswith("@") for name in value)


def read_issues(report: Node) -> Iterator[ScanIssue]:
    """Yield the issues of a report. Raises UnreadableReport."""
    sites = report.member("site")
    for site in sites.entries() if isinstance(sites.value, list) else (sites,):
        for alert in site.member("alerts").entries():
            if alert.member("confidence").text() != _FALSE_POSITIVE:
                yield from _instances(site, alert)


def _instances(site: Node, alert: Node) -> Iterator[ScanIssue]:
    rule = alert.member("alertRef").text() or alert.member("pluginid").text()
    title = alert.member("name").text() or alert.member("alert").text()
    description = paragraphs(text_of(alert.member("desc").text()), text_of(alert.member("solution").text()))
    details = _evidence(alert)
    # A report can be configured to omit instances; then the alert becomes an issue of the site.
    for instance in [*alert.member("instances").entries()] or [Node({"uri": site.member("@name").text()})]:
        parameter = one_line(instance.member("param").text(), MAX_TITLE)
        method = one_line(instance.member("method").text(), 20)
        yield ScanIssue(
            url=instance.member("uri").text(),
            code=f"zap:{rule or title}",
            title=title or f"ZAP rule {rule}",
            severity=SEVERITIES.get(alert.member("riskcode").text(), "info"),
            description=description,
            location=_location(method, parameter),
            parameter=parameter,
            evidence=evidence(parameter=parameter, method=method, **details),
        )


def _location(method: str, parameter: str) -> str:
    """Return the location on a page: a POST request has another location than a GET of the same URL."""
    request = f"{method} request" if method not in {"", "GET"} else ""
    return ", ".join(filter(None, [request, parameter and f"parameter {parameter}"])) or "page"


def _evidence(alert: Node) -> dict[str, Any]:
    numbers = {name: alert.member(member).text() for name, member in (("cwe", "cweid"), ("wasc", "wascid"))}
    known = {name: f"{name.upper()}-{number}" for name, number in numbers.items() if number not in _NO_NUMBER}
    confidence = _CONFIDENCE.get(alert.member("confidence").text(), "")
    return evidence(confidence=confidence, **known, references=references(alert.member("reference").text()))
