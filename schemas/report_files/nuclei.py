"""Nuclei's results: JSON lines (`-jsonl`) or an array (`-json-export`), one entry per match.

`request`, `response`, `curl-command` and extracted results are not copied: they contain what the site sent.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.intake import scanner
from schemas.report_files.document import Node
from schemas.report_files.issues import MAX_LOCATION, MAX_TITLE, ScanIssue, evidence, one_line, paragraphs, references

#: The severity by `info.severity`.
SEVERITIES: Final[Mapping[str, str]] = {**{name: name for name in reversed(scanner.SEVERITIES)}, "unknown": "info"}

#: A result about a host's certificate or DNS names becomes an issue of the website on that host.
_OF_A_SITE: Final = frozenset({"ssl", "dns"})
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


def is_report(value: Any) -> bool:
    """Return whether a value is a Nuclei report."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "template-id" in first


def read_issues(report: Node) -> Iterator[ScanIssue]:
    """Yield the issues of a report. Raises UnreadableReport."""
    for match in report.entries() if isinstance(report.value, list) else (report,):
        if match.member("matcher-status").value is not False:
            yield _issue(match)


def _issue(match: Node) -> ScanIssue:
    info, rule = match.member("info"), match.member("template-id").text()
    matcher = match.member("matcher-name").text() or match.member("extractor-name").text()
    parameter = one_line(match.member("fuzzing_parameter").text(), MAX_TITLE)
    return ScanIssue(
        url=_url(match),
        code=f"nuclei:{rule}",
        title=info.member("name").text() or rule,
        severity=SEVERITIES.get(info.member("severity").text().lower(), "info"),
        description=paragraphs(info.member("description").text(), info.member("remediation").text()),
        location=one_line(f"parameter {parameter}" if parameter else matcher, MAX_LOCATION) or "page",
        parameter=parameter,
        evidence=evidence(
            parameter=parameter,
            cve=_texts(info.member("classification").member("cve-id")),
            cwe=_texts(info.member("classification").member("cwe-id")),
            references=references(*_texts(info.member("reference"))),
        ),
    )


def _url(match: Node) -> str:
    """Return the URL at which a template matched; for a result about a host, the website's URL."""
    at = match.member("matched-at").text() or match.member("url").text() or match.member("host").text()
    if match.member("type").text() not in _OF_A_SITE or "://" in at:
        return at
    return f"https://{at}/" if _HOST.fullmatch(at) else at


def _texts(node: Node) -> list[str]:
    """Return the texts of a field that may be a string, an array of strings, or null."""
    entries = node.entries() if isinstance(node.value, list) else (node,)
    return [text for entry in entries if (text := entry.text())]
