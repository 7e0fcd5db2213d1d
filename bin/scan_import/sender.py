"""Posts the pages of a scan to a local or remote RiskRelay; running the same import again resumes an interrupted one.

The Idempotency-Key of a page is derived from its content: a page that was accepted before gets its first response again.
Transient failures are retried within bounds. A page that the service rejects is reported, and the others are still sent.
A failure that applies to every page stops the import. Redirects are not followed: they would send the secret to another
host.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.exceptions import ChunkedEncodingError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed
from urllib3.exceptions import HTTPError

from bin.checks.machine import is_loopback
from schemas.report_files.pages import PagePostback

ROUTE: Final = "/api/scanner/results"
#: To connect, and to read a response; the service takes a second for a full page on a small machine.
TIMEOUTS_S: Final = (10.0, 60.0)
#: More than a page of 200 exports of maximum size.
MAX_RESPONSE_BYTES: Final = 64 * 1024**2
#: Bodies are read as they are sent: a compressed one could be a thousand times larger.
IDENTITY: Final = {"Accept-Encoding": "identity"}
#: Before each retry. Half a minute covers a restart of the service; after a longer outage, run the import again.
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
#: A limit of requests per minute never needs a longer pause than a minute.
MAX_RETRY_AFTER_S: Final = 90.0

#: Retried. A request with the key of a running request gets 409 with Retry-After, which is retried, too.
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_IN_PROGRESS: Final = "IDEMPOTENCY_IN_PROGRESS"
_UNTRUSTED: Final = "its certificate is not trusted"
#: Problems of a rejected page that are reported.
_MAX_PROBLEMS: Final = 5
_PIECE_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True)
class AcceptedPage:
    """The service accepted a page, now or, if `is_repeat`, in an earlier import."""

    new: int
    seen: int
    ticket_exports: tuple[str, ...]
    is_repeat: bool


@dataclass(frozen=True, slots=True)
class RejectedPage:
    """The service rejected this page: the problem with each field."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportStopped:
    """No more pages can be sent."""

    cause: str


@dataclass
class ImportSummary:
    """The counts and results of an import."""

    sent: int = 0
    sent_before: int = 0
    new: int = 0
    seen: int = 0
    ticket_exports: list[str] = field(default_factory=list)
    rejected: list[tuple[str, RejectedPage]] = field(default_factory=list)
    stopped: str | None = None

    def count(self, postback: PagePostback, result: AcceptedPage | RejectedPage) -> None:
        """Count a page; the tickets of a repeat were prepared by the earlier import."""
        if isinstance(result, RejectedPage):
            self.rejected.append((postback.url, result))
        elif result.is_repeat:
            self.sent_before += 1
            self.seen += result.new + result.seen
        else:
            self.sent += 1
            self.new += result.new
            self.seen += result.seen
            self.ticket_exports += result.ticket_exports


class TransientFailure(Exception):
    """A failure to retry, after the service's Retry-After if it sent one."""

    def __init__(self, cause: str, retry_after_s: float | None = None) -> None:
        super().__init__(cause)
        self.retry_after_s = retry_after_s


class PostbackSender:
    """Sends postbacks to one RiskRelay."""

    def __init__(self, url: str, secret: bytes, *, is_dry_run: bool = False, pauses_s: Iterable[float] = PAUSES_S) -> None:
        self._url = url.rstrip("/") + ROUTE + ("?dry_run=true" if is_dry_run else "")
        self._headers: dict[str, str | bytes] = {
            "X-Scanner-Secret": secret,
            "Content-Type": "application/json",
            "Accept": "application/json",
            **IDENTITY,
        }
        self._accepts = requests.codes.ok if is_dry_run else requests.codes.accepted
        pauses = tuple(pauses_s)
        self._retrying = retrying(pauses)
        self._attempts = len(pauses) + 1
        self._session = session_to(url)

    def send(self, postback: PagePostback) -> AcceptedPage | RejectedPage | ImportStopped:
        """Send one page, with retries; takes at most a few minutes."""
        try:
            return self._retrying(self._attempt, postback)
        except TransientFailure as failure:
            return ImportStopped(f"{self._host} did not accept a page in {self._attempts} attempts: {failure}.")

    @property
    def _host(self) -> str:
        return urlsplit(self._url).netloc

    def _attempt(self, postback: PagePostback) -> AcceptedPage | RejectedPage | ImportStopped:
        headers = {**self._headers, "Idempotency-Key": postback.key}
        try:
            response = exchange(self._session, "POST", self._url, data=postback.content, headers=headers)
        except (HTTPError, ChunkedEncodingError):
            raise TransientFailure("the connection was closed") from None
        except requests.RequestException as error:
            cause = cause_of(error)
            if is_outage(error):
                raise TransientFailure(cause) from None
            return ImportStopped(f"Cannot send to {self._host}: {cause}.")
        if not is_transient(response):
            return self._result(response)
        retry_after_s = parse_retry_after(response)
        if retry_after_s is not None and retry_after_s > MAX_RETRY_AFTER_S:
            return ImportStopped(f"{self._host} responds {response.status_code} with Retry-After {retry_after_s:.0f} s.")
        raise TransientFailure(f"it responds {response.status_code}", retry_after_s)

    def _result(self, response: requests.Response) -> AcceptedPage | RejectedPage | ImportStopped:
        body = _object(response)
        if response.status_code == self._accepts:
            wrong_service = ImportStopped(f"The response of {self._host} is not RiskRelay's; check --to.")
            return _accepted(response, body) or wrong_service
        problems = field_problems(body)[:_MAX_PROBLEMS]
        is_of_page = not any(each.startswith("/scanRunId") for each in problems)
        if response.status_code == requests.codes.unprocessable and is_of_page:
            return RejectedPage(tuple(problems) or ("rejected without a reason",))
        if response.status_code == requests.codes.request_entity_too_large:
            return RejectedPage(("larger than the service's MAX_BODY_BYTES",))
        return ImportStopped(f"{self._host} responds {response.status_code}: {_meaning_and_fix(response.status_code)}")


def send_all(
    postbacks: Iterable[PagePostback], sender: PostbackSender, on_done: Callable[[PagePostback], object]
) -> ImportSummary:
    """Send pages in order and return the summary; `on_done` is called after each."""
    summary = ImportSummary()
    try:
        for postback in postbacks:
            result = sender.send(postback)
            if isinstance(result, ImportStopped):
                summary.stopped = result.cause
                break
            summary.count(postback, result)
            on_done(postback)
    except KeyboardInterrupt:
        summary.stopped = "Stopped by Ctrl-C."
    # Pages that share a ticket name it one after the other.
    summary.ticket_exports = [*dict.fromkeys(summary.ticket_exports)]
    return summary


def retrying(pauses_s: Iterable[float]) -> Retrying:
    """Return the loop that retries after TransientFailure: after its Retry-After, else after the next of the pauses."""
    pauses = [wait_fixed(pause_s) for pause_s in pauses_s]
    pause = wait_chain(*pauses)

    def wait_s(state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        retry_after_s = failure.retry_after_s if isinstance(failure, TransientFailure) else None
        return pause(state) if retry_after_s is None else retry_after_s

    is_transient_failure = retry_if_exception_type(TransientFailure)
    return Retrying(retry=is_transient_failure, stop=stop_after_attempt(len(pauses) + 1), wait=wait_s, reraise=True)


def session_to(url: str) -> requests.Session:
    """Return a session for a RiskRelay, which sends no credentials of this machine."""
    session = requests.Session()
    # A proxy of the environment is for other hosts: it cannot reach a service on this machine.
    session.trust_env = not is_loopback(urlsplit(url).hostname or "")
    # Without this, requests would add a login from a .netrc on this machine.
    session.auth = _no_auth
    return session


def exchange(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
    """Send a request and read its response, at most one byte more than MAX_RESPONSE_BYTES. Redirects are not followed."""
    options |= {"timeout": TIMEOUTS_S, "allow_redirects": False, "stream": True}
    with session.request(method, url, **options) as response:
        received = bytearray()
        # The last read is empty, or says that the response is not complete.
        while len(received) <= MAX_RESPONSE_BYTES and (piece := response.raw.read(_PIECE_BYTES, decode_content=False)):
            received += piece
    # As if it had been read at once.
    response._content = bytes(received)
    return response


def is_outage(error: requests.RequestException) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, requests.ConnectionError | requests.Timeout) and cause_of(error) != _UNTRUSTED


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def is_transient(response: requests.Response) -> bool:
    """Return whether the same request may be repeated."""
    if response.status_code == requests.codes.conflict:
        error = _object(response).get("error")
        return isinstance(error, dict) and error.get("code") == _IN_PROGRESS
    return response.status_code in _TRANSIENT


def parse_retry_after(response: requests.Response) -> float | None:
    """Return the seconds of `Retry-After`, or None without a number."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() else None


def cause_of(error: requests.RequestException) -> str:
    """Describe an error without its message, which may quote the secret."""
    match error:
        case requests.exceptions.SSLError():
            return _UNTRUSTED
        case requests.exceptions.ProxyError():
            return "the proxy of the environment rejected the request"
        case requests.Timeout():
            return "timeout"
        case requests.ConnectionError():
            return "no connection"
        case requests.exceptions.InvalidHeader():
            return "the secret contains characters that are not allowed in a header"
        case _:
            return type(error).__name__


def _object(response: requests.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _accepted(response: requests.Response, body: dict[str, Any]) -> AcceptedPage | None:
    match body:
        case {"findings": {"new": int(new), "seen": int(seen), **more}, "ticket_exports": list(exports)}:
            reopened = more.get("reopened")
            known = seen + (reopened if isinstance(reopened, int) else 0)
            return AcceptedPage(new, known, tuple(map(str, exports)), "Idempotency-Replayed" in response.headers)
        case _:
            return None


def field_problems(body: Mapping[str, Any]) -> list[str]:
    """Return the path and message of each invalid field."""
    match body:
        case {"error": {"details": {"fields": list(fields)}}}:
            invalid = [each for each in fields if isinstance(each, dict)]
            return [": ".join(str(each[name]) for name in ("path", "message") if each.get(name)) for each in invalid]
        case _:
            return []


def _meaning_and_fix(status: int) -> str:
    """Return what an unexpected status means, and the fix."""
    match status:
        case 401:
            return (
                "the scanner secret is wrong. "
                "If it was set with `riskrelay secret set scanner`, pass it with --secret-stdin."
            )
        case 404:
            return f"it has no {ROUTE}. Check --to. In webhook-only mode, set EXTRA_ROUTE_FAMILIES=scanner there."
        case 422:
            return (
                "the scan run is not registered, and DEFAULT_PROJECT_ID is not set. "
                "Run `riskrelay scan-run add --project ID --id N` there, then import with --scan-run N."
            )
        case _ if 300 <= status < 400:
            return "redirects are not followed. Set --to to the URL that it redirects to."
        case _:
            return "this is not a response of RiskRelay; check --to."
