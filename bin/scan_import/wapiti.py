"""Wapiti's JSON report (`-f json`): vulnerabilities, anomalies and further findings by category.

`http_request` and `curl_command` are not taken over: they hold cookies, and payloads with a word that each scan makes anew.
Its reports name a page by its path alone, so a flaw that is none of a parameter is known again by what Wapiti says of it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urljoin

from bin.scan_import.document import Node
from bin.scan_import.issues import MAX_LOCATION, MAX_TITLE, Flaw, evidence, one_line, paragraphs, references

#: `level`.
SEVERITIES: Final[Mapping[str, str]] = {"4": "critical", "3": "high", "2": "medium", "1": "low", "0": "info"}

_SECTIONS: Final = ("vulnerabilities", "anomalies", "additionals")
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
#: From here on a sentence of Wapiti's quotes what it sent or got.
_QUOTED: Final = re.compile(r"[\"'`<{\[]|https?://|\d{3,}")


def looks_so(value: Any) -> bool:
    """Tell whether a report is Wapiti's."""
    return isinstance(value, dict) and "vulnerabilities" in value and "infos" in value


def flaws(report: Node) -> Iterator[Flaw]:
    """Yield the flaws of a report. Raises UnreadableReport."""
    target = report.member("infos").member("target").text()
    for section in _SECTIONS:
        for category, found in report.member(section).members():
            rule = report.member("classifications").member(category)
            description, pages = _told(rule), [page.text() for _, page in rule.member("ref").members()]
            for entry in found.entries():
                yield _flaw(target, category, entry, description, references(*pages))


def _told(rule: Node) -> str:
    return paragraphs(rule.member("desc").text(), rule.member("sol").text())


def _flaw(target: str, category: str, entry: Node, description: str, pages: list[str]) -> Flaw:
    parameter = one_line(entry.member("parameter").text(), MAX_TITLE)
    method = one_line(entry.member("method").text(), 20)
    said = _lasting(entry.member("info").text())
    return Flaw(
        url=_url(target, entry.member("path").text()),
        code=f"wapiti:{_NO_NAME.sub('-', category.lower()).strip('-')}",
        title=category,
        severity=SEVERITIES.get(entry.member("level").text(), "info"),
        description=paragraphs(said, description),
        location=f"parameter {parameter}" if parameter else said or "page",
        parameter=parameter,
        evidence=evidence(parameter=parameter, method=method, references=pages),
    )


def _url(target: str, path: str) -> str:
    try:
        return urljoin(target, path)
    except ValueError:  # a path that begins as an address and is none
        return ""


def _lasting(info: str) -> str:
    """Return what Wapiti says up to where it quotes; of a technology that it recognised, the name."""
    try:
        recognised = json.loads(info)
    except ValueError:
        recognised = None
    except RecursionError:
        recognised = None
    if isinstance(recognised, dict):
        info = str(recognised.get("name", ""))
    return one_line(_QUOTED.split(info, maxsplit=1)[0].rstrip(" :=("), MAX_LOCATION)
