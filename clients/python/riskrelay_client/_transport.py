"""Requests and responses without input and output: what to send, what a response means, whether and when to repeat.

Both clients use it.
"""

import json
import random
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

import httpx

from riskrelay_client._version import VERSION
from riskrelay_client.errors import ApiError, RiskRelayError, Unreachable, error_class

TIMEOUT_S = 15.0  # of one request; RiskRelay responds in milliseconds
PING_TIMEOUT_S = 30.0  # of a ping or a validation: RiskRelay waits up to 15 seconds for the receiver
LAST_READ_S = 1.0  # for the last request of a wait, which begins when its time ends
RETRY_FOR_S = 60.0  # for one request with all its repeats
MAX_PAUSE_S = 30.0  # between two repeats or polls, unless Retry-After is longer
MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # more than a page of 200 exports of maximum size

_RETRYABLE = frozenset({408, 429, 502, 503, 504})
_ID = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[ -~]{1,255}")
#: Filters of free text, whose values must be equal: a comma in one separates nothing.
_EXACT = frozenset({"rule", "host"})

_NOT_OURS = "The server may not be RiskRelay: check the URL. Redirects are not followed."

#: Query parameters: texts, numbers, times, or several of them; None is left out.
Query = Mapping[str, object]


class Credential(httpx.Auth):
    """A secret header, set on a request when it is sent, so that nothing that is printed or logged contains it."""

    def __init__(self, header: str, secret: str, prefix: str = "") -> None:
        if not (secret.isascii() and secret.isprintable() and secret.strip() == secret and secret):
            raise ValueError(f"The value of {header} is empty or contains characters that a header does not allow.")
        self._header = header
        self._value = prefix + secret

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]  # sends nothing more
        """Set the header."""
        request.headers[self._header] = self._value
        yield request


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of both clients: the root URL of the API, credentials, limits in seconds."""

    url: str
    token: Credential | None
    scanner_secret: Credential | None
    timeout: float
    retry_for: float


def settings(
    url: str, token: str | None, scanner_secret: str | None, timeout: float, retry_for: float, allow_http: bool
) -> Settings:
    """Check the arguments of a client; raises ValueError."""
    parts = httpx.URL(url)
    is_private = parts.scheme == "https" or (parts.scheme == "http" and (allow_http or _is_loopback(parts.host)))
    if not is_private or not parts.host or parts.userinfo or parts.query or parts.fragment:
        raise ValueError("The URL must be https://…, or http:// on this machine, without user name, query and fragment.")
    return Settings(
        str(parts).rstrip("/"),
        None if token is None else Credential("Authorization", token, "Bearer "),
        None if scanner_secret is None else Credential("X-Scanner-Secret", scanner_secret),
        timeout,
        retry_for,
    )


def direct(url: str) -> dict[str, None]:
    """Return the mounts for httpx that bypass the environment's proxies, none for https to another host.

    A proxy would read the credentials of an http request, and would connect to its own loopback instead of this machine's.
    `trust_env=False` would ignore SSL_CERT_FILE, too.
    """
    parts = httpx.URL(url)
    return {"http://": None, "https://": None} if parts.scheme == "http" or _is_loopback(parts.host) else {}


@dataclass(frozen=True, slots=True)
class Call:
    """One logical request: repeats send the same bytes and headers."""

    method: str
    path: str
    credential: Credential
    headers: Mapping[str, str]
    params: Mapping[str, str]
    content: bytes | None = None
    least_timeout_s: float = 0.0


def call(
    method: str,
    path: str,
    credential: Credential | None,
    body: Any,
    key: str | None,
    query: Query | None,
    least_timeout_s: float = 0.0,
) -> Call:
    """Describe a request; one that changes something gets an idempotency key, a new one unless `key` is given.

    It may take `least_timeout_s` seconds, more if the client's timeout is longer.
    """
    if credential is None:
        raise ValueError(f"{method} {path} needs a token or secret that this client was not given.")
    headers = {"Accept": "application/json", "User-Agent": f"riskrelay-client/{VERSION}"}
    content = None
    if method in ("POST", "PATCH"):
        content = json.dumps(body if body is not None else {}, allow_nan=False).encode()
        headers |= {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid4())}
        if not _KEY.fullmatch(headers["Idempotency-Key"]):
            raise ValueError("An idempotency key has 1 to 255 printable ASCII characters.")
    return Call(method, path, credential, headers, joined(query or {}), content, least_timeout_s)


def path(template: str, *ids: str | int) -> str:
    """Fill ids into a path; raises ValueError for one that could name another path."""
    for each in ids:
        if not _ID.fullmatch(str(each)):
            raise ValueError("An id consists of letters, digits, `_` and `-`.")
    return template.format(*ids)


def given(**members: Any) -> dict[str, Any]:
    """Return the members of a body that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def joined(query: Query) -> dict[str, str]:
    """Return query parameters as text, several values separated by commas; None is left out.

    A comma in one of several values is written `\\,`, and so is one in the single value of a filter that could have several.
    """
    return {
        name: _text([value] if name in _EXACT and isinstance(value, str) else value)
        for name, value in query.items()
        if value is not None
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(_text(each).replace(",", "\\,") for each in value)
    return str(value)


def timestamp(value: datetime | str) -> str:
    """Return a time as RFC 3339; raises ValueError for one without a time zone."""
    if isinstance(value, str):
        return value
    if value.utcoffset() is None:
        raise ValueError("The time has no time zone: use, for example, datetime.now(UTC).")
    return value.isoformat()


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: `data` is its JSON, None without."""

    status: int
    headers: httpx.Headers
    data: Any = None

    @property
    def retry_after(self) -> float:
        """The seconds to wait before the next request, 0 if the response does not say."""
        value = self.headers.get("Retry-After", "")
        if value.isdecimal():
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())  # the form that some proxies send
        except (ValueError, OverflowError):  # no date, or one with a year that no date has
            return 0.0


def reply(status: int, headers: httpx.Headers, content: bytes) -> Reply:
    """Parse a response."""
    try:
        return Reply(status, headers, json.loads(content) if content else None)
    except (ValueError, RecursionError):
        return Reply(status, headers)  # HTML of a proxy


def problem(sent: Call, replied: Reply) -> ApiError | None:
    """Return the error for a response, or None if the response is a success for this request."""
    has_data = isinstance(replied.data, dict)
    if replied.status in (200, 201, 202) and has_data:
        return None
    if (replied.status == 204 and sent.method == "DELETE") or (replied.status == 304 and "If-None-Match" in sent.headers):
        return None
    found = replied.data.get("error") if has_data else None
    error = found if isinstance(found, dict) else {}
    message = error.get("message") or _NOT_OURS
    details = {**error["details"]} if isinstance(error.get("details"), dict) else {}
    listed = details.pop("fields", ())
    fields: list[Any] = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    code, request_id = error.get("code"), error.get("request_id")
    return error_class(replied.status, code)(
        replied.status, code, str(message), fields, details, request_id, replied.retry_after
    )


def page_of(data: Mapping[str, Any], cursor: str | None) -> tuple[list[Any], str | None]:
    """Return the records of a page and the cursor of the next one, None on the last page; `cursor` is that of this page.

    Raises ApiError for invalid pages, such as an empty page that is not the last, or one whose next cursor is its own.
    """
    records, following = data.get("items"), data.get("next_cursor")
    if isinstance(records, list) and (following is None or (isinstance(following, str) and records and following != cursor)):
        return records, following
    raise ApiError(200, None, _NOT_OURS)


def record_with_status(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record that has a status; raises ApiError if it has none."""
    if not isinstance(data.get("status"), str):
        raise ApiError(200, None, _NOT_OURS)
    return data


def unreachable(error: httpx.HTTPError, host: str) -> Unreachable:
    """Return the error for a request without a complete response; `host` is that of RiskRelay."""
    permanent = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.DecodingError)
    is_transient = not isinstance(error, permanent) and not _is_certificate_error(error)
    return Unreachable(f"{host} sent no complete response: {str(error) or type(error).__name__}", is_transient)


def pause_s(error: RiskRelayError, attempt: int) -> float | None:
    """Return the seconds before the next repeat, None if the request must not be repeated.

    Half a second, doubled each time, with jitter, so that clients that failed together do not retry together.
    """
    if isinstance(error, ApiError):
        # A 409 has Retry-After while the first request with its key runs, and while a receipt is incomplete.
        is_retryable = error.status in _RETRYABLE or (error.status == 409 and error.retry_after > 0)
        least = error.retry_after
    else:
        is_retryable, least = isinstance(error, Unreachable) and error.is_transient, 0.0
    jitter = random.uniform(0.5, 1)  # noqa: S311 - spreads load
    return max(least, min(MAX_PAUSE_S, 0.5 * 2.0 ** min(attempt, 9)) * jitter) if is_retryable else None


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
