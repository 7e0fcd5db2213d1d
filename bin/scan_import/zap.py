"""ZAP's traditional JSON report (`-J` of its packaged scans, template `traditional-json`): alerts with their instances.

An alert that ZAP itself or its user calls a false positive (confidence 0) is left out. The attack, the evidence and what
stands in requests and responses is not taken over.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bin.scan_import.document import Node
from bin.scan_import.issues import MAX_TITLE, Flaw, evidence, one_line, paragraphs, references
from schemas.intake.html_text import text_of

#: `riskcode`.
SEVERITIES: Final[Mapping[str, str]] = {"3": "high", "2": "medium", "1": "low", "0": "info"}

_CONFIDENCE: Final[Mapping[str, str]] = {"1": "low", "2": "medium", "3": "high", "4": "confirmed"}
_FALSE_POSITIVE: Final = "0"
#: What ZAP writes where there is no such number.
_NO_NUMBER: Final = frozenset({"", "-1", "0"})


def looks_so(value: Any) -> bool:
    """Tell whether a report is ZAP's."""
    return isinstance(value, dict) and "site" in value and any(name.startswith("@") for name in value)


def flaws(report: Node) -> Iterator[Flaw]:
    """Yield the flaws of a report. Raises UnreadableReport."""
    sites = report.member("site")
    for site in sites.entries() if isinstance(sites.value, list) else (sites,):
        for alert in site.member("alerts").entries():
            if alert.member("confidence").text() != _FALSE_POSITIVE:
                yield from _instances(site, alert)


def _instances(site: Node, alert: Node) -> Iterator[Flaw]:
    rule = alert.member("alertRef").text() or alert.member("pluginid").text()
    title = alert.member("name").text() or alert.member("alert").text()
    description = paragraphs(text_of(alert.member("desc").text()), text_of(alert.member("solution").text()))
    told = _evidence(alert)
    # Reports may be told to leave the instances out; then it is one of the site.
    for instance in [*alert.member("instances").entries()] or [Node({"uri": site.member("@name").text()})]:
        parameter = one_line(instance.member("param").text(), MAX_TITLE)
        method = one_line(instance.member("method").text(), 20)
        yield Flaw(
            url=instance.member("uri").text(),
            code=f"zap:{rule or title}",
            title=title or f"ZAP rule {rule}",
            severity=SEVERITIES.get(alert.member("riskcode").text(), "info"),
            description=description,
            location=_location(method, parameter),
            parameter=parameter,
            evidence=evidence(parameter=parameter, method=method, **told),
        )


def _location(method: str, parameter: str) -> str:
    """Say where on a page: a form that posts is another place than the address it posts to."""
    words = [f"{method} request"] if method not in {"", "GET"} else []
    return ", ".join([*words, *([f"parameter {parameter}"] if parameter else [])]) or "page"


def _evidence(alert: Node) -> dict[str, Any]:
    numbers = {name: alert.member(member).text() for name, member in (("cwe", "cweid"), ("wasc", "wascid"))}
    known = {name: f"{name.upper()}-{number}" for name, number in numbers.items() if number not in _NO_NUMBER}
    confidence = _CONFIDENCE.get(alert.member("confidence").text(), "")
    return evidence(confidence=confidence, **known, references=references(alert.member("reference").text()))
