"""Nuclei's results: JSON lines (`-jsonl`) or an array (`-json-export`), one entry a match.

`request`, `response`, `curl-command` and what was extracted are not taken over: they hold whatever the site sent.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bin.scan_import.document import Node
from bin.scan_import.issues import MAX_LOCATION, MAX_TITLE, Flaw, evidence, one_line, paragraphs, references

#: `info.severity`.
SEVERITIES: Final[Mapping[str, str]] = {
    "critical": "critical",
    "high": "high",
    "medium": "medium",
    "low": "low",
    "info": "info",
    "unknown": "info",
}

#: What is told of a host by its certificate or its names is told of the site on it.
_OF_A_SITE: Final = frozenset({"ssl", "dns"})
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


def looks_so(value: Any) -> bool:
    """Tell whether a report is Nuclei's."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "template-id" in first


def flaws(report: Node) -> Iterator[Flaw]:
    """Yield the flaws of a report. Raises UnreadableReport."""
    for match in report.entries() if isinstance(report.value, list) else (report,):
        if match.member("matcher-status").value is not False:
            yield _flaw(match)


def _flaw(match: Node) -> Flaw:
    info, rule = match.member("info"), match.member("template-id").text()
    matcher = match.member("matcher-name").text() or match.member("extractor-name").text()
    parameter = one_line(match.member("fuzzing_parameter").text(), MAX_TITLE)
    return Flaw(
        url=_url(match),
        code=f"nuclei:{rule}",
        title=info.member("name").text() or rule,
        severity=SEVERITIES.get(info.member("severity").text().lower(), "info"),
        description=paragraphs(info.member("description").text(), info.member("remediation").text()),
        location=one_line(f"parameter {parameter}" if parameter else matcher, MAX_LOCATION) or "page",
        parameter=parameter,
        evidence=evidence(
            parameter=parameter,
            cve=_several(info.member("classification").member("cve-id")),
            cwe=_several(info.member("classification").member("cwe-id")),
            references=references(*_several(info.member("reference"))),
        ),
    )


def _url(match: Node) -> str:
    """Return where a template matched; for what concerns a site as a whole, the site."""
    at = match.member("matched-at").text() or match.member("url").text() or match.member("host").text()
    if match.member("type").text() not in _OF_A_SITE or "://" in at:
        return at
    return f"https://{at}/" if _HOST.fullmatch(at) else at


def _several(told: Node) -> list[str]:
    """Return what may be one text, an array of them, or null."""
    entries = told.entries() if isinstance(told.value, list) else (told,)
    return [text for entry in entries if (text := entry.text())]
