"""SARIF 2.1.0 of tickets and findings: rules, results and addresses, as consumers read them.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/sarif-v2.1.0-errata01-os-complete.html, and for uploads
https://docs.github.com/en/code-security/reference/code-scanning/sarif-files/sarif-support
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Final[Mapping[str, str]] = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}
#: Scores by which consumers distinguish critical from high, within the ranges that they share.
_SCORES: Final[Mapping[str, str]] = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.0", "info": "0.0"}

#: Characters that a URI may have unencoded (RFC 3986); a percent sign is encoded only where no two hex digits follow.
_URI_CHARACTERS: Final = "%:/?#@!$&'()*+,;=~"
_BARE_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")


def sarif_log(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a SARIF log with these runs."""
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [*runs]}


def sarif_rule(rule_id: str, title: str, text: str, severity: str, tags: Collection[str] = ()) -> dict[str, Any]:
    """Return a rule of a tool's driver."""
    return {
        "id": rule_id,
        "shortDescription": {"text": title},
        "fullDescription": {"text": text},
        "defaultConfiguration": {"level": LEVELS[severity]},
        "properties": {"tags": sorted({*tags}), "security-severity": _SCORES[severity], "severity": severity},
    }


def logical_locations(location: str) -> dict[str, Any]:
    """Return the member `logicalLocations` for a location on a page; no member for an empty location."""
    return {"logicalLocations": [{"fullyQualifiedName": location, "kind": "element"}]} if location else {}


def uri_of(url: str) -> str:
    """Return a URL as a URI, with characters encoded that a URI may not contain."""
    return quote(_BARE_PERCENT.sub("%25", url), safe=_URI_CHARACTERS)


def path_of(url: str) -> str:
    """Return a URL as a relative URI, such as `shop.example/cart?step=2`.

    GitHub refuses a whole file in which a scheme differs from that of its checkout, `file`.
    """
    return uri_of(_SCHEME.sub("", url, count=1)).lstrip("/") or "unknown"
