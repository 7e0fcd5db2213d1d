"""Sends requests to one RiskRelay, and retries transient failures within bounds.

Redirects are not followed: they would send the secret or the token to another host. Responses are read to a limit of bytes.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.exceptions import ChunkedEncodingError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

from bin.checks.machine import is_loopback
from bin.cli.output import Refused
from runtime.deadline import within

#: Timeouts to connect and to read a response; the service takes a second for a full page on a small machine.
TIMEOUTS_S: Final = (10.0, 60.0)
#: More than a page of 200 exports of maximum size.
MAX_RESPONSE_BYTES: Final = 64 * 1024**2
#: Pauses before each retry. Half a minute covers a restart of the service; after a longer outage, run the command again.
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
#: A limit of requests per minute never needs a longer pause than a minute.
MAX_RETRY_AFTER_S: Final = 90.0

#: Bodies are not compressed: a decompressed body could be a thousand times larger than the bytes received.
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
#: Statuses that are retried. A request with the key of a running request gets 409 with Retry-After, which is retried, too.
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_TRANSIENT_ERRORS: Final = (requests.ConnectionError, requests.Timeout, ChunkedEncodingError)
_IN_PROGRESS: Final = "IDEMPOTENCY_IN_PROGRESS"
_UNTRUSTED: Final = "its certificate is not trusted"
_PIECE_BYTES: Final = 1024**2


class TransientFailure(Exception):
    """A failure that a later retry may not have; `response` is the response that caused it, None without a response."""

    def __init__(self, cause: str, response: requests.Response | None = None) -> None:
        super().__init__(cause)
        self.response = response


class RetryingSession:
    """Sends requests to the RiskRelay at `url`, each attempt within `deadline_s` if given."""

    def __init__(
        self, url: str, headers: Mapping[str, Any], pauses_s: Iterable[float], deadline_s: float | None = None
    ) -> None:
        self.host = urlsplit(url).netloc
        self._url = url.rstrip("/")
        self._session = _session_to(url)
        self._session.headers.update(_HEADERS)
        self._session.headers.update(headers)
        self._retrying = _retrying(pauses_s)
        self._deadline_s = deadline_s

    @property
    def attempts(self) -> int:
        """How many times the last request was sent."""
        return int(self._retrying.statistics["attempt_number"])

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        """Return the response; a transient one only if its Retry-After is too long. `options` are those of requests.

        Raises TransientFailure after the last attempt, Refused for a failure that every retry would have, and TimeoutError
        at the deadline: another attempt would take as long.
        """
        return self._retrying(self._attempt, partial(self._read, method, self._url + path, **options))

    def _read(self, method: str, url: str, **options: Any) -> requests.Response:
        """Send a request and read its response. Raises Refused for more than MAX_RESPONSE_BYTES."""
        with self._session.request(
            method, url, timeout=TIMEOUTS_S, allow_redirects=False, stream=True, **options
        ) as response:
            received = bytearray()
            for piece in response.iter_content(_PIECE_BYTES):
                received += piece
                if len(received) > MAX_RESPONSE_BYTES:
                    raise Refused(f"{self.host} sent more than {MAX_RESPONSE_BYTES // 1024**2} MiB; check the URL.")
        # Where requests stores a body that it has read itself.
        response._content = bytes(received)
        return response

    def _attempt(self, request: partial[requests.Response]) -> requests.Response:
        try:
            response = request() if self._deadline_s is None else within(self._deadline_s, request)
        except requests.RequestException as error:
            # Leave out the message of the error: it may quote the request.
            cause = _cause_of(error)
            if isinstance(error, _TRANSIENT_ERRORS) and cause != _UNTRUSTED:
                raise TransientFailure(cause) from None
            raise Refused(f"Cannot send to {self.host}: {cause}.") from None
        if is_transient(response) and (retry_after_s(response) or 0) <= MAX_RETRY_AFTER_S:
            raise TransientFailure(f"it responds {response.status_code}", response)
        return response


def is_transient(response: requests.Response) -> bool:
    """Return whether the same request may be repeated."""
    if response.status_code == requests.codes.conflict:
        error = json_object(response).get("error")
        return isinstance(error, dict) and error.get("code") == _IN_PROGRESS
    return response.status_code in _TRANSIENT


def retry_after_s(response: requests.Response) -> float | None:
    """Return the seconds of `Retry-After`, or None without a number."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() else None


def json_object(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of a response, or an empty one."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def field_problems(body: Mapping[str, Any]) -> list[str]:
    """Return the path and message of each invalid field."""
    match body:
        case {"error": {"details": {"fields": list(fields)}}}:
            invalid = [each for each in fields if isinstance(each, dict)]
            return [": ".join(str(each[name]) for name in ("path", "message") if each.get(name)) for each in invalid]
        case _:
            return []


def _retrying(pauses_s: Iterable[float]) -> Retrying:
    """Return the loop that retries a TransientFailure: after its Retry-After, else after the next of the pauses."""
    pauses = [wait_fixed(pause_s) for pause_s in pauses_s]
    pause = wait_chain(*pauses)

    def wait_s(state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        response = failure.response if isinstance(failure, TransientFailure) else None
        requested_s = None if response is None else retry_after_s(response)
        return pause(state) if requested_s is None else requested_s

    is_transient_failure = retry_if_exception_type(TransientFailure)
    return Retrying(retry=is_transient_failure, stop=stop_after_attempt(len(pauses) + 1), wait=wait_s, reraise=True)


def _session_to(url: str) -> requests.Session:
    """Return a session for a RiskRelay, which sends no credentials of this machine."""
    session = requests.Session()
    # Ignore a proxy of the environment for this machine's service: the proxy cannot reach it.
    session.trust_env = not is_loopback(urlsplit(url).hostname or "")
    # Without this, requests would add a login from a .netrc on this machine.
    session.auth = _no_auth
    return session


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _cause_of(error: requests.RequestException) -> str:
    """Describe an error without its message, which may quote the secret."""
    match error:
        case requests.exceptions.SSLError():
            return _UNTRUSTED
        case requests.exceptions.ProxyError():
            return "the proxy of the environment rejected the request"
        case ChunkedEncodingError():
            return "the connection was closed"
        case requests.Timeout():
            return "timeout"
        case requests.ConnectionError():
            return "no connection"
        case requests.exceptions.InvalidHeader():
            return "the secret contains characters that are not allowed in a header"
        case _:
            return type(error).__name__
