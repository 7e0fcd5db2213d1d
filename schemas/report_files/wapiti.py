"""Wapiti's JSON report (`-f json`): vulnerabilities, anomalies and further findings by category.

`http_request` and `curl_command` are not copied: they contain cookies, and payloads with a value generated for each scan.
A report locates an issue by path only, so an issue without a parameter is identified by Wapiti's message about it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urljoin

from schemas.report_files.document import Node
from schemas.report_files.issues import MAX_LOCATION, MAX_TITLE, ScanIssue, evidence, one_line, paragraphs, references

#: The severity by `level`.
SEVERITIES: Final[Mapping[str, str]] = {"4": "critical", "3": "high", "2": "medium", "1": "low", "0": "info"}

_SECTIONS: Final = ("vulnerabilities", "anomalies", "additionals")
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
#: Where a message of Wapiti begins to quote a request or response.
_QUOTED: Final = re.compile(r"[\"'`<{\[]|https?://|\d{3,}")


def is_report(value: Any) -> bool:
    """Return whether a value is a Wapiti report."""
    return isinstance(value, dict) and "vulnerabilities" in value and "infos" in value


def read_issues(report: Node) -> Iterator[ScanIssue]:
    """Yield the issues of a report. Raises UnreadableReport."""
    target = report.member("infos").member("target").text()
    for section in _SECTIONS:
        for category, found in report.member(section).members():
            rule = report.member("classifications").member(category)
            description = paragraphs(rule.member("desc").text(), rule.member("sol").text())
            pages = references(*(page.text() for _, page in rule.member("ref").members()))
            for entry in found.entries():
                yield _issue(target, category, entry, description, pages)


def _issue(target: str, category: str, entry: Node, description: str, pages: list[str]) -> ScanIssue:
    parameter = one_line(entry.member("parameter").text(), MAX_TITLE)
    method = one_line(entry.member("method").text(), 20)
    message = _stable_part(entry.member("info").text())
    return ScanIssue(
        url=_url(target, entry.member("path").text()),
        # A category in another script stays as it is: without its name, all such categories would have one code.
        code=f"wapiti:{_NO_NAME.sub('-', category.lower()).strip('-') or category}",
        title=category,
        severity=SEVERITIES.get(entry.member("level").text(), "info"),
        description=paragraphs(message, description),
        location=f"parameter {parameter}" if parameter else message or "page",
        parameter=parameter,
        evidence=evidence(parameter=parameter, method=method, references=pages),
    )


def _url(target: str, path: str) -> str:
    try:
        return urljoin(target, path)
    except ValueError:  # a path that starts like a URL but is not one
        return ""


def _stable_part(info: str) -> str:
    """Return Wapiti's message up to the first quotation; for a detected technology, its name."""
    try:
        technology = json.loads(info)
    except (ValueError, RecursionError):
        technology = None
    if isinstance(technology, dict):
        info = str(technology.get("name", ""))
    return one_line(_QUOTED.split(info, maxsplit=1)[0].rstrip(" :=("), MAX_LOCATION)
