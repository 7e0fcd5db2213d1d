"""Post the pages of a scan to a RiskRelay, near or far, so that what broke off is resumed by doing the same again.

Each page has an Idempotency-Key made of what it says: one that was accepted before is answered as it was then. What may
pass is tried again a few times, within bounds; a page that is refused is told and the others still go; what every other
page would be refused for ends it at once. Redirects are not followed: they would carry the secret elsewhere.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from bin.checks.machine import is_loopback
from bin.scan_import.pages import PagePostback

ROUTE: Final = "/api/scanner/results"
#: For a connection, and for an answer; a full page takes the service a second on a small machine.
TIMEOUTS_S: Final = (10.0, 60.0)
#: Before each further try. Half a minute bridges a restart of the service; for longer there is the next import.
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
#: A limit of requests a minute asks for no more than a minute.
MAX_RETRY_AFTER_S: Final = 90.0

#: What may be another answer a little later; a key whose first request still runs is told by 409 and Retry-After.
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_IN_PROGRESS: Final = "IDEMPOTENCY_IN_PROGRESS"
_UNTRUSTED: Final = "its certificate is not trusted"
#: Of an answer that is told.
_MAX_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class Accepted:
    """A page was accepted, now or, `is_repeat`, by an import before."""

    new: int
    seen: int
    ticket_exports: tuple[str, ...]
    is_repeat: bool


@dataclass(frozen=True, slots=True)
class RefusedPage:
    """The service refused this page, and only this one: the fields, with what is wrong with them."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """Nothing more can be sent, for this reason."""

    why: str


@dataclass
class Tally:
    """What came of an import."""

    sent: int = 0
    sent_before: int = 0
    new: int = 0
    seen: int = 0
    ticket_exports: list[str] = field(default_factory=list)
    refused: list[tuple[str, RefusedPage]] = field(default_factory=list)
    failed: str | None = None

    def count(self, postback: PagePostback, answer: Accepted | RefusedPage) -> None:
        """Count a page; what was accepted before has prepared its tickets before."""
        if isinstance(answer, RefusedPage):
            self.refused.append((postback.url, answer))
        elif answer.is_repeat:
            self.sent_before += 1
            self.seen += answer.new + answer.seen
        else:
            self.sent += 1
            self.new += answer.new
            self.seen += answer.seen
            self.ticket_exports += answer.ticket_exports


class Relay:
    """A RiskRelay to post to."""

    def __init__(self, url: str, secret: bytes, *, is_dry_run: bool = False, pauses_s: Iterable[float] = PAUSES_S) -> None:
        self._url = url.rstrip("/") + ROUTE + ("?dry_run=true" if is_dry_run else "")
        self._headers: dict[str, str | bytes] = {
            "X-Scanner-Secret": secret,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        self._accepts = requests.codes.ok if is_dry_run else requests.codes.accepted
        self._pauses_s = tuple(pauses_s)
        self._session = requests.Session()
        # A proxy of the environment leads out of here, and would answer for a service on this machine.
        self._session.trust_env = not is_loopback(urlsplit(url).hostname or "")
        # Otherwise a .netrc on this machine would add a login of its own.
        self._session.auth = _as_it_is

    def send(self, postback: PagePostback) -> Accepted | RefusedPage | BrokenOff:
        """Send one page; it takes at most a few minutes."""
        why = ""
        for pause_s in (*self._pauses_s, None):
            try:
                answer = self._post(postback)
            except requests.RequestException as failed:
                why, asked_s = _failure(failed), None
                if not isinstance(failed, requests.ConnectionError | requests.Timeout) or why == _UNTRUSTED:
                    return BrokenOff(f"{self._host} could not be asked: {why}.")
            else:
                if not _is_passing(answer):
                    return self._judged(answer)
                why, asked_s = f"it answers {answer.status_code}", _retry_after_s(answer)
            if asked_s is not None and asked_s > MAX_RETRY_AFTER_S:
                return BrokenOff(f"{self._host} asks to wait for {asked_s:.0f} s.")
            if pause_s is not None:
                time.sleep(pause_s if asked_s is None else asked_s)
        return BrokenOff(f"{self._host} did not take it in {len(self._pauses_s) + 1} tries: {why}.")

    @property
    def _host(self) -> str:
        return urlsplit(self._url).netloc

    def _post(self, postback: PagePostback) -> requests.Response:
        headers = {**self._headers, "Idempotency-Key": postback.key}
        return self._session.post(
            self._url, data=postback.content, headers=headers, timeout=TIMEOUTS_S, allow_redirects=False
        )

    def _judged(self, answer: requests.Response) -> Accepted | RefusedPage | BrokenOff:
        body = _object(answer)
        if answer.status_code == self._accepts:
            return _accepted(answer, body) or BrokenOff(f"{self._host} answers, but not as RiskRelay does; is --to right?")
        told = _problems(body)
        if answer.status_code == requests.codes.unprocessable and not any(each.startswith("/scanRunId") for each in told):
            return RefusedPage(tuple(told) or ("refused without a reason",))
        if answer.status_code == requests.codes.request_entity_too_large:
            return RefusedPage(("larger than the service's MAX_BODY_BYTES",))
        return BrokenOff(f"{self._host} answers {answer.status_code}: {_remedy(answer.status_code)}")


def send_all(postbacks: Iterable[PagePostback], relay: Relay, on_done: Callable[[PagePostback], object]) -> Tally:
    """Send the pages one after the other and say what came of them; `on_done` is called after each."""
    tally = Tally()
    try:
        for postback in postbacks:
            answer = relay.send(postback)
            if isinstance(answer, BrokenOff):
                tally.failed = answer.why
                break
            tally.count(postback, answer)
            on_done(postback)
    except KeyboardInterrupt:
        tally.failed = "Stopped by Ctrl-C."
    return tally


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_passing(answer: requests.Response) -> bool:
    if answer.status_code == requests.codes.conflict:
        error = _object(answer).get("error")
        return isinstance(error, dict) and error.get("code") == _IN_PROGRESS
    return answer.status_code in _PASSING


def _retry_after_s(answer: requests.Response) -> float | None:
    told = answer.headers.get("Retry-After", "")
    return float(told) if told.isascii() and told.isdecimal() else None


def _failure(failed: requests.RequestException) -> str:
    """Name a failure without what it quotes."""
    match failed:
        case requests.exceptions.SSLError():
            return _UNTRUSTED
        case requests.exceptions.ProxyError():
            return "the proxy of the environment did not let it through"
        case requests.Timeout():
            return "no answer in time"
        case requests.ConnectionError():
            return "no connection"
        case requests.exceptions.InvalidHeader():
            return "the secret has characters that no header can carry"
        case _:
            return type(failed).__name__


def _object(answer: requests.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _accepted(answer: requests.Response, body: dict[str, Any]) -> Accepted | None:
    match body:
        case {"findings": {"new": int(new), "seen": int(seen)}, "ticket_exports": list(exports)}:
            return Accepted(new, seen, tuple(map(str, exports)), "Idempotency-Replayed" in answer.headers)
        case _:
            return None


def _problems(body: dict[str, Any]) -> list[str]:
    """Return what a refusal says of each field: its path and the sentence."""
    match body:
        case {"error": {"details": {"fields": list(fields)}}}:
            told = [f"{each.get('path', '')} {each.get('message', '')}".strip() for each in fields if isinstance(each, dict)]
            return told[:_MAX_TOLD]
        case _:
            return []


def _remedy(status: int) -> str:
    match status:
        case 401:
            return "its scanner secret is another one. If `riskrelay secret set scanner` gave it one, use --secret-stdin."
        case 404:
            return f"it has no {ROUTE}. Is --to right? In webhook-only mode it needs EXTRA_ROUTE_FAMILIES=scanner."
        case 422:
            return (
                "the scan run is not registered and it has no DEFAULT_PROJECT_ID. "
                "There, type: riskrelay scan-run add --project ID --id N, and here: --scan-run N"
            )
        case _ if 300 <= status < 400:
            return "a redirect, which is not followed. Give --to the address that it leads to."
        case _:
            return "RiskRelay does not answer so; is --to right?"
