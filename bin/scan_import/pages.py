"""Flaws by page, as postbacks that the service takes, each with a key that is the same whenever the report is.

An address of a report is made fit to be kept: no user, no password, no session, no value that an attack or a visitor put
there. Of a query the names stay, and values that are plain words or small numbers, which is how pages are told apart; a path
stays but for its parameters and for who has a mailbox. One page's flaws may need several postbacks; those that the service
tells apart by their order on the page stay together.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus, urlsplit

from marshmallow import ValidationError

from bin.scan_import.issues import MAX_CODE, MAX_TITLE, Flaw, one_line, without_who
from schemas.base.fields import WebUrl
from schemas.content_policy.field_names import meaning
from schemas.content_policy.rules import find_each
from schemas.intake.page_url import page_key, without_session
from schemas.intake.scanner import MAX_ISSUES
from schemas.intake.selector import stable_selector

#: Half of what the service takes by default, for an installation that takes less.
MAX_POSTBACK_BYTES: Final = 512 * 1024
#: Numbers of a run have twelve digits: apart from those that people give, and no card number, which has thirteen or more.
_FIRST_RUN: Final = 10**11

_NAME: Final = re.compile(r"[\w.~\[\]-]{1,64}", re.ASCII)
_PLAIN: Final = re.compile(r"[0-9]{1,9}|[A-Za-z_-]{1,30}", re.ASCII)
#: A query may be a token alone: long, of letters and digits mixed.
_TOKEN: Final = re.compile(r"(?=(?:[^0-9]*+[0-9]){4})(?=(?:[^A-Za-z]*+[A-Za-z]){4}).{16,}")
#: Values of these may be somebody's, however plain they are.
_TELLING: Final = re.compile(
    r"(?i)token|key|auth|sig|sess|sid|code|nonce|pass|secret|mail|name|phone|user|jwt|ticket|birth|address|account|card"
    r"|(?<![a-z])(?:otp|pin|tel|zip|dob|ssn)(?![a-z])"
)
#: `/cart;jsessionid=…`: servers put there what they do not want to keep in a cookie.
_PARAMETERS: Final = re.compile(r";[^/]*")
#: Where the fragment is what tells the pages of a single-page application apart.
_ROUTE: Final = re.compile(r"!?/[\w/.-]{0,200}", re.ASCII)

_web_url: Final = WebUrl()


@dataclass(frozen=True, slots=True)
class PagePostback:
    """One request: the page it is about, the body, the key that tells a repeat."""

    url: str
    body: dict[str, Any]
    key: str

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        return _json(self.body)


@dataclass(frozen=True, slots=True)
class Import:
    """What becomes of a report: the postbacks, and what is left out with the reason, a line each."""

    scan_run_id: int
    pages: int
    flaws: int
    postbacks: tuple[PagePostback, ...]
    left_out: tuple[str, ...]


def run_number(content: bytes) -> int:
    """Return the number of a scan run that belongs to these bytes alone, twelve digits."""
    return _FIRST_RUN + int(hashlib.sha256(content).hexdigest(), 16) % (9 * _FIRST_RUN)


def prepare(flaws: Iterable[Flaw], scan_run_id: int, report: bytes = b"") -> Import:
    """Return the postbacks of a report's flaws, in the order of the report.

    Their keys are of these bytes of the report: the next one is no repeat, though it may find the same.
    """
    by_page: dict[str, dict[tuple[str, str], Flaw]] = {}
    urls: dict[str, str] = {}
    homeless: list[Flaw] = []
    for flaw in flaws:
        url = page_address(flaw.url, flaw.parameter)
        if url is None:
            homeless.append(flaw)
            continue
        key = page_key(url)
        urls.setdefault(key, url)
        # What is told twice of one place is one flaw, as it was told first.
        by_page.setdefault(key, {}).setdefault((_code(flaw).lower(), flaw.location), flaw)
    parts = [(urls[key], part) for key, found in by_page.items() for part in _parts([*found.values()])]
    seal = hashlib.sha256(report).digest()
    postbacks = tuple(_postback(url, part, scan_run_id, seal) for url, part in parts)
    kept = sum(len(part) for _, part in parts)
    too_many = sum(map(len, by_page.values())) - kept
    return Import(scan_run_id, len(urls), kept, postbacks, _left_out(homeless, too_many))


def page_address(url: str, parameter: str = "") -> str | None:
    """Return an address that is fit to be kept; None for what is no address of a page."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme.lower() not in {"http", "https"} or not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port is None else f"{shown}:{port}"
    query, route = _query(parts.query, parameter), parts.fragment if _ROUTE.fullmatch(parts.fragment) else ""
    path = _path(parts.path)
    address = f"{parts.scheme.lower()}://{authority}{path}{'?' + query if query else ''}{'#' + route if route else ''}"
    return address if _is_taken(address) else None


def _path(path: str) -> str:
    segments = _PARAMETERS.sub("", without_session(path)).split("/")
    return "/".join(map(without_who, segments)) or "/"


def _query(query: str, attacked: str) -> str:
    members = [member.partition("=") for member in query.split("&")]
    named = [(name, value) for name, _, value in members if _is_name(unquote_plus(name))]
    return "&".join(f"{name}={_value(name, value, attacked)}" for name, value in named)


def _is_name(called: str) -> bool:
    return _NAME.fullmatch(called) is not None and _TOKEN.fullmatch(called) is None


def _value(name: str, value: str, attacked: str) -> str:
    called = unquote_plus(name)
    is_somebodys = called == attacked or _TELLING.search(called) or meaning(called).forbidden
    return value if _PLAIN.fullmatch(value) and not is_somebodys else ""


def _is_taken(address: str) -> bool:
    """Tell whether the service takes an address, and a terminal shows it as it is."""
    try:
        _web_url.deserialize(address)
    except ValidationError:
        return False
    return address.isprintable()


def _parts(flaws: Sequence[Flaw]) -> Iterator[list[Flaw]]:
    """Cut the flaws of a page into postbacks; those that may look alike after the next build of the site stay together."""
    alike: dict[tuple[str, str], list[Flaw]] = {}
    for flaw in flaws:
        alike.setdefault((_code(flaw).lower(), stable_selector(flaw.location)), []).append(flaw)
    part: list[Flaw] = []
    size = 0
    for group in map(_that_fit, alike.values()):
        more = _size(group)
        if part and (len(part) + len(group) > MAX_ISSUES or size + more > MAX_POSTBACK_BYTES):
            yield part
            part, size = [], 0
        part, size = part + group, size + more
    yield part


def _that_fit(group: list[Flaw]) -> list[Flaw]:
    """Return as many flaws that look alike as one postback takes; the service would know the others for the same."""
    fitting = group[:MAX_ISSUES]
    while len(fitting) > 1 and _size(fitting) > MAX_POSTBACK_BYTES:
        fitting = fitting[: len(fitting) // 2]
    return fitting


def _size(flaws: Iterable[Flaw]) -> int:
    return sum(len(_json(_issue(flaw))) for flaw in flaws)


def _postback(url: str, flaws: Sequence[Flaw], scan_run_id: int, seal: bytes) -> PagePostback:
    is_home = urlsplit(url).path == "/" and "?" not in url and "#" not in url
    body = {
        "scanRunId": scan_run_id,
        "status": "completed",
        "page": {"url": url, "pageType": "home" if is_home else "page"},
        "issues": _innocent(flaws),
    }
    return PagePostback(url, body, hashlib.sha256(seal + _json(body)).hexdigest())


def _innocent(flaws: Sequence[Flaw]) -> list[dict[str, Any]]:
    """Return entries without the texts that the service would refuse a page for: what is left still names the flaw."""
    issues = [_issue(flaw) for flaw in flaws]
    found = find_each(issues, frozenset())
    return [_bare(issue) if problems else issue for issue, problems in zip(issues, found, strict=True)]


def _issue(flaw: Flaw) -> dict[str, Any]:
    return {
        "code": _code(flaw),
        "title": one_line(flaw.title, MAX_TITLE),
        "severity": flaw.severity,
        "description": flaw.description,
        "location": flaw.location,
        **flaw.evidence,
    }


def _bare(issue: dict[str, Any]) -> dict[str, Any]:
    return {name: issue[name] for name in ("code", "title", "severity", "location")}


def _code(flaw: Flaw) -> str:
    """Return the code; what is too long for one keeps its difference in a digest."""
    code = one_line(flaw.code, len(flaw.code) + 1)
    if len(code) <= MAX_CODE:
        return code
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    return f"{code[: MAX_CODE - len(digest) - 1]}-{digest}"


def _left_out(homeless: Sequence[Flaw], too_many: int) -> tuple[str, ...]:
    told = []
    if homeless:
        example = one_line(homeless[0].code, MAX_TITLE)
        told.append(f"{len(homeless)} without the http or https address of a page, the first by the rule {example}")
    if too_many:
        told.append(f"{too_many} that only their order tells from others on their page, more than a postback takes")
    return tuple(told)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
