"""Groups issues by page into postbacks, each with an Idempotency-Key derived from the report.

URLs are cleaned before they are sent: no user, password, session, or value entered by an attacker or visitor. A query keeps
its names, and values that are plain words or small numbers, which distinguish pages; a path loses its parameters and the
owners of mailboxes. The issues of one page may need several postbacks; issues that the service distinguishes by their
order on the page stay in one postback.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_plus, urlsplit

from schemas.base.fields import is_page_url
from schemas.content_policy.field_names import meaning
from schemas.content_policy.rules import find_each
from schemas.intake.page_url import page_key, without_session
from schemas.intake.scanner import MAX_ISSUES, SEVERITIES
from schemas.intake.selector import stable_selector
from schemas.report_files.issues import MAX_CODE, MAX_TITLE, ScanIssue, VisitedPages, one_line, without_mailbox_owner

#: Half of the service's default limit, for installations with a lower one.
MAX_POSTBACK_BYTES: Final = 512 * 1024
#: Generated scan runs have twelve digits: unlike numbers given by people, and unlike card numbers, which have 13 or more.
_FIRST_RUN: Final = 10**11

_NAME: Final = re.compile(r"[\w.~\[\]-]{1,64}", re.ASCII)
_PLAIN: Final = re.compile(r"[0-9]{1,9}|[A-Za-z_-]{1,30}", re.ASCII)
#: A query may be just a token: 16 or more characters with letters and digits mixed.
_TOKEN: Final = re.compile(r"(?=(?:[^0-9]*+[0-9]){4})(?=(?:[^A-Za-z]*+[A-Za-z]){4}).{16,}")
#: Parameters whose values may be personal or secret, even if they are plain words.
_PERSONAL_NAME: Final = re.compile(
    r"(?i)token|key|auth|sig|sess|sid|code|nonce|pass|secret|mail|name|phone|user|jwt|ticket|birth|address|account|card"
    r"|(?<![a-z])(?:otp|pin|tel|zip|dob|ssn)(?![a-z])"
)
#: `/cart;jsessionid=…`: some servers put the session there instead of in a cookie.
_PARAMETERS: Final = re.compile(r";[^/]*")
#: A fragment that identifies a page of a single-page application.
_ROUTE: Final = re.compile(r"!?/[\w/.-]{0,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PagePostback:
    """One request: the page's URL, the body, and the Idempotency-Key."""

    url: str
    body: dict[str, Any]
    key: str

    @property
    def content(self) -> bytes:
        """The serialized body."""
        return _json(self.body)


@dataclass(frozen=True, slots=True)
class PreparedImport:
    """The postbacks of a report, and the skipped issues with the reason, one line each."""

    scan_run_id: int
    pages: int
    issues: int
    postbacks: tuple[PagePostback, ...]
    skipped: tuple[str, ...]


def run_number(content: bytes) -> int:
    """Return a scan run number of twelve digits derived from the report's bytes."""
    return _FIRST_RUN + int(hashlib.sha256(content).hexdigest(), 16) % (9 * _FIRST_RUN)


def prepare(issues: Iterable[ScanIssue], scan_run_id: int, report: bytes, visited: VisitedPages) -> PreparedImport:
    """Return the postbacks of a report's issues, in the order of the report.

    `visited` pages without issues have a postback, too, so that their findings can be fixed. Any other page counts as
    visited only by the scanners of its issues.

    Idempotency-Keys depend on the bytes of the report: another report with the same issues is not a repeat.
    """
    by_page: dict[str, dict[tuple[str, str], ScanIssue]] = {}
    urls: dict[str, str] = {}
    without_page = 0
    for issue in issues:
        url = clean_url(issue.url, issue.parameter)
        if url is None:
            without_page += 1
            continue
        key = page_key(url)
        urls.setdefault(key, url)
        found, place = by_page.setdefault(key, {}), (_code(issue).lower(), issue.location)
        first = found.setdefault(place, issue)
        found[place] = replace(first, severity=max(first.severity, issue.severity, key=SEVERITIES.index))
    checked: dict[str, Sequence[str]] = {}
    for url in filter(None, map(clean_url, visited.urls)):
        by_page.setdefault(page_key(url), {})
        urls.setdefault(page_key(url), url)
        checked[page_key(url)] = visited.rules
    parts = [(key, part) for key, found in by_page.items() for part in _parts([*found.values()])]
    digest = hashlib.sha256(report).digest()
    postbacks = tuple(
        _postback(urls[key], part, scan_run_id, digest, checked.get(key) or _all_of_scanners(part)) for key, part in parts
    )
    included = sum(len(part) for _, part in parts)
    too_many = sum(map(len, by_page.values())) - included
    return PreparedImport(scan_run_id, len(urls), included, postbacks, _skipped(without_page, too_many))


def clean_url(url: str, parameter: str = "") -> str | None:
    """Return a URL without secrets and personal data; None if it is not the URL of a page."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in {"http", "https"} or not host:
        return None
    host = f"[{host}]" if ":" in host else host
    authority = host if port is None else f"{host}:{port}"
    query, route = _query(parts.query, parameter), parts.fragment if _ROUTE.fullmatch(parts.fragment) else ""
    path = _path(parts.path)
    address = f"{parts.scheme.lower()}://{authority}{path}{'?' + query if query else ''}{'#' + route if route else ''}"
    # A terminal can print it.
    return address if address.isprintable() and is_page_url(address) else None


def _path(path: str) -> str:
    segments = _PARAMETERS.sub("", without_session(path)).split("/")
    return "/".join(map(without_mailbox_owner, segments)) or "/"


def _query(query: str, attacked: str) -> str:
    members = [member.partition("=") for member in query.split("&")]
    named = [(name, value) for name, _, value in members if _is_name(unquote_plus(name))]
    return "&".join(f"{name}={_value(name, value, attacked)}" for name, value in named)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and _TOKEN.fullmatch(name) is None


def _value(name: str, value: str, attacked: str) -> str:
    decoded = unquote_plus(name)
    is_personal = decoded == attacked or _PERSONAL_NAME.search(decoded) or meaning(decoded).forbidden
    return value if _PLAIN.fullmatch(value) and not is_personal else ""


def _parts(issues: Sequence[ScanIssue]) -> Iterator[list[ScanIssue]]:
    """Split the issues of a page into postbacks.

    Issues whose locations differ only in generated parts stay together: the service distinguishes them by their order.
    """
    groups: dict[tuple[str, str], list[ScanIssue]] = {}
    for issue in issues:
        groups.setdefault((_code(issue).lower(), stable_selector(issue.location)), []).append(issue)
    part: list[ScanIssue] = []
    part_bytes = 0
    for group in map(_truncated, groups.values()):
        group_bytes = _size_bytes(group)
        if part and (len(part) + len(group) > MAX_ISSUES or part_bytes + group_bytes > MAX_POSTBACK_BYTES):
            yield part
            part, part_bytes = [], 0
        part, part_bytes = part + group, part_bytes + group_bytes
    yield part


def _truncated(group: list[ScanIssue]) -> list[ScanIssue]:
    """Truncate a group to one postback; in a second postback, the service would take further issues for the same ones."""
    fitting = group[:MAX_ISSUES]
    while len(fitting) > 1 and _size_bytes(fitting) > MAX_POSTBACK_BYTES:
        fitting = fitting[: len(fitting) // 2]
    return fitting


def _size_bytes(issues: Iterable[ScanIssue]) -> int:
    return sum(len(_json(_entry(issue))) for issue in issues)


def _postback(
    url: str, issues: Sequence[ScanIssue], scan_run_id: int, digest: bytes, checked: Sequence[str]
) -> PagePostback:
    """Return the postback of some issues of a page on which the rules `checked` were checked."""
    is_home = urlsplit(url).path == "/" and "?" not in url and "#" not in url
    body = {
        "scanRunId": scan_run_id,
        "status": "completed",
        "page": {"url": url, "pageType": "home" if is_home else "page", "rules": [*checked]},
        "issues": _allowed_entries(issues),
    }
    return PagePostback(url, body, hashlib.sha256(digest + _json(body)).hexdigest())


def _all_of_scanners(issues: Sequence[ScanIssue]) -> list[str]:
    """Return all rules of the scanners that found the issues of a page; another scanner may not have visited the page."""
    return sorted({f"{_code(issue).partition(':')[0]}:*" for issue in issues})


def _allowed_entries(issues: Sequence[ScanIssue]) -> list[dict[str, Any]]:
    """Return entries of a postback; an entry with forbidden content is reduced to the fields that identify the issue."""
    entries = [_entry(issue) for issue in issues]
    found = find_each(entries, frozenset())
    return [
        {name: entry[name] for name in ("code", "title", "severity", "location")} if problems else entry
        for entry, problems in zip(entries, found, strict=True)
    ]


def _entry(issue: ScanIssue) -> dict[str, Any]:
    return {
        "code": _code(issue),
        "title": one_line(issue.title, MAX_TITLE),
        "severity": issue.severity,
        "description": issue.description,
        "location": issue.location,
        **issue.evidence,
    }


def _code(issue: ScanIssue) -> str:
    """Return the code; the end of a code that is too long is replaced by a digest."""
    code = one_line(issue.code, len(issue.code) + 1)
    if len(code) <= MAX_CODE:
        return code
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    return f"{code[: MAX_CODE - len(digest) - 1]}-{digest}"


def _skipped(without_page: int, too_many: int) -> tuple[str, ...]:
    counts = {
        "without a valid http or https URL": without_page,
        "that differ from others on their page only in order, beyond one postback": too_many,
    }
    return tuple(f"{number} issue{'s' * (number > 1)} {reason}" for reason, number in counts.items() if number)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
