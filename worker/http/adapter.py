"""A transport adapter for requests that connects only to addresses the policy allows, under one deadline.

    session = requests.Session()
    session.mount("https://", adapter)
    session.mount("http://", adapter)

The adapter resolves a name once, classifies every address, and dials an address that it has classified; with a proxy of the
installation, the proxy opens a tunnel to that address. Host, SNI and the certificate's name stay those of the URL. Redirects
are never followed, not even by a session that allows them. Proxies and certificate authorities of the environment or of a
session are ignored; cookies of receivers are not stored. Responses are read to 64 KiB, never decompressed. Refused: a header
that contains a line end, which would begin another header; `verify=False`; a client certificate of a session.
"""

import ssl
from collections.abc import Callable
from datetime import timedelta
from http.client import responses
from io import BytesIO
from typing import Any, Final, Literal, TypeVar

import requests
from requests.adapters import BaseAdapter
from requests.exceptions import InvalidHeader
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers

from runtime.account_shares import AccountId
from runtime.dns_resolver import DnsResolver
from schemas.settings.egress import DIRECT, Egress
from schemas.url_policy.policy import TargetPolicy
from worker.http.connection_pool import ConnectionPool, GuardedConnection
from worker.http.deadline import Exchange, Watchdog
from worker.http.dialer import Dialer
from worker.http.errors import TransportError, transport_error
from worker.http.response_parser import InvalidResponse, ParsedResponse

Result = TypeVar("Result")

#: How long a DNS answer is valid for kept connections. The TTL of a receiver's name is 30 s or more, so this adds no visible
#: delay when the receiver moves. One lookup per host in this time is no load.
CONFIRMED_FOR_S: Final = 5.0
#: How long an unused connection is kept. Load balancers and firewalls often drop idle connections after 60 s, some silently.
KEPT_IDLE_S: Final = 30.0
#: Lines of a request head besides the caller's headers: request line, Host, Accept-Encoding, Content-Length, empty line.
_OWN_LINES: Final = 5
#: Headers that the adapter sets itself.
_OWN_HEADERS: Final = frozenset({"host", "accept-encoding", "content-length", "transfer-encoding"})


class GuardedResponse(requests.Response):
    """A response that is never a redirect for requests, so that a session does not follow it."""

    @property
    def is_redirect(self) -> bool:
        return False


class GuardedAdapter(BaseAdapter):
    """Sends requests over guarded connections; one for all threads of a process.

    `deadline_s` bounds DNS, connect, TLS, headers and body together, `connect_timeout_s` bounds connecting. `verify` is True
    for the usual certificate authorities, or the path of a bundle. An origin keeps up to `connections` connections. A kept
    connection is reused only if its name was looked up within the last `confirmed_for_s` seconds, and closed after about
    `kept_idle_s` seconds without use. `egress` adds authorities, a client certificate, a proxy and source addresses.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        resolver: DnsResolver,
        deadline_s: float,
        connect_timeout_s: float,
        connections: int = 10,
        verify: Literal[True] | str = True,
        confirmed_for_s: float = CONFIRMED_FOR_S,
        kept_idle_s: float = KEPT_IDLE_S,
        egress: Egress = DIRECT,
    ) -> None:
        super().__init__()
        self._deadline_s = deadline_s
        self._connect_timeout_s = connect_timeout_s
        self._pool = ConnectionPool(policy, Dialer(policy, resolver, confirmed_for_s, egress), connections, verify, egress)
        self._watchdog = Watchdog(lambda: self._pool.close_idle(kept_idle_s), kept_idle_s / 6)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send the request once and return its response.

        `timeout` is None for the adapter's own limits, the seconds of the whole exchange, or a pair: seconds to connect, and
        seconds for the rest. `stream` and `proxies` have no effect; `verify` may be anything but False.
        Raises TargetRefused, TransportError and its subclasses, InvalidHeader.
        """
        if not verify or cert is not None:
            raise ValueError(
                "The guarded adapter always verifies certificates and reads no client certificate from a session."
            )
        exchange = self._begin(timeout)
        headers = {name: _text(value) for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        try:
            parsed = self.exchange(exchange, request.method or "GET", request.url or "", headers, _body_of(request))
        except requests.RequestException as failed:
            failed.request = request
            raise
        return self._response(request, parsed, exchange)

    def exchange(self, exchange: Exchange, method: str, url: str, headers: dict[str, str], body: bytes) -> ParsedResponse:
        """Send one request within an exchange. Creates no objects of the requests library: they cost more than sending.

        `headers` must not contain Host, Accept-Encoding, Content-Length or Transfer-Encoding. Raises as `send` does.
        """
        route = self._pool.route(url, exchange.account_id, exchange.certificate)
        message = _message(method, route.start, headers, body)
        if method == "HEAD":
            # The parser cannot know that the length in a response announces no body.
            exchange.max_response_bytes = 0
        return self._within_deadline(exchange, lambda: route.origin.perform(message, exchange))

    def begin(self, account_id: AccountId = None, certificate: str | None = None) -> Exchange:
        """Return an exchange with the adapter's own limits, which begins now, for an account and its client certificate."""
        return Exchange(self._deadline_s, self._connect_timeout_s, account_id, certificate)

    def connect(self, exchange: Exchange, url: str) -> GuardedConnection:
        """Open and return a connection like that of a request, with TLS; it is never kept. Raises as `send` does."""
        route = self._pool.route(url, exchange.account_id, exchange.certificate)
        return self._within_deadline(exchange, lambda: route.origin.connect(exchange))

    def close(self) -> None:
        """Close every kept connection."""
        self._pool.close()

    def _within_deadline(self, exchange: Exchange, work: Callable[[], Result]) -> Result:
        self._watchdog.watch(exchange)
        try:
            return work()
        except TransportError:
            raise
        except (InvalidResponse, OSError) as failed:
            raise _error_of(failed, exchange) from failed
        finally:
            self._watchdog.unwatch(exchange)

    def _begin(self, timeout: Any) -> Exchange:
        if timeout is None:
            return self.begin()
        if not isinstance(timeout, tuple):
            return Exchange(timeout, timeout)
        connect_s, read_s = timeout
        connect_s = self._connect_timeout_s if connect_s is None else connect_s
        return Exchange(self._deadline_s if read_s is None else connect_s + read_s, connect_s, rest_s=read_s)

    def _response(self, request: requests.PreparedRequest, parsed: ParsedResponse, exchange: Exchange) -> requests.Response:
        response = GuardedResponse()
        response.status_code = parsed.status
        response.reason = responses.get(parsed.status, "")
        response.headers = headers_of(parsed)
        response.encoding = get_encoding_from_headers(response.headers)
        response.raw = BytesIO(parsed.body)
        response.url = request.url or ""
        response.request = request
        response.elapsed = timedelta(milliseconds=exchange.outcome().timings.total_ms)
        response.connection = self  # type: ignore[assignment]  # the stubs know one adapter only
        return response


def headers_of(parsed: ParsedResponse) -> CaseInsensitiveDict[str]:
    """Return the headers as requests represents them: case-insensitive names, repeated headers joined by commas."""
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict()
    for name, value in parsed.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1").strip()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _message(method: str, start: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return the whole request as it goes over the wire. Raises InvalidHeader."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"{method}{start}{''.join(lines)}Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
    # One check of the whole head costs a third of checking each header.
    ends = len(lines) + _OWN_LINES
    if head.count("\r") != ends or head.count("\n") != ends or "\0" in head:
        raise InvalidHeader("A header contains a line end or a zero byte; it would be read as another header.")
    return head.encode("latin-1") + body


def _error_of(failed: InvalidResponse | OSError, exchange: Exchange) -> TransportError:
    """Return the error, with its code, for a failure after connecting and before the end of the headers."""
    if exchange.is_over():
        return transport_error("deadline_exceeded")
    if isinstance(failed, InvalidResponse):
        return transport_error("bad_answer")
    if isinstance(failed, ssl.SSLCertVerificationError):
        return transport_error("tls_certificate")
    if isinstance(failed, ssl.SSLError):
        # With TLS 1.3, the alert of a peer that requires a client certificate or refuses ours arrives after the handshake.
        alert = (failed.reason or "").partition("_ALERT_")[2]
        is_refused = "CERTIFICATE" in alert or alert == "UNKNOWN_CA"
        return transport_error("client_certificate_refused" if is_refused else "tls_failed")
    return transport_error("connection_closed")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _body_of(request: requests.PreparedRequest) -> bytes:
    """Return the body as bytes: a prepared request may hold text, a file or an iterator."""
    body: Any = request.body
    if body is None or isinstance(body, bytes):
        return body or b""
    if isinstance(body, str):
        return body.encode()
    return bytes(body.read() if hasattr(body, "read") else b"".join(body))
