"""One request to the operator's issuer within a deadline: no redirect, no proxy, a bounded JSON body.

The issuer is named by the operator, so its address is not checked; clients have no influence on the URL.
"""

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event, Timer
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from runtime.openid.errors import IssuerUnavailable
from schemas.base.strict_json import MalformedJson, parse
from schemas.version import USER_AGENT

#: A person waits for each of these requests: a sign-in takes up to three.
DEADLINE_S: Final = 3.0
#: Far above the keys of the largest issuers.
MAX_BODY_BYTES: Final = 256 * 1024

_OK: Final = 200
#: The reason of whatever the deadline ended: the name lookup, connecting, TLS, or the response.
_LATE: Final = "late"
_RESOLVER: Final = DnsResolver()


def fetch_json(
    url: str, tls: ssl.SSLContext, form: Mapping[str, str] | None = None, authorization: str | None = None
) -> dict[str, Any]:
    """Return the JSON object that a GET returns, or a POST of `form`. Raises IssuerUnavailable."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
    if authorization is not None:
        headers["Authorization"] = authorization
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    is_late = Event()
    try:
        response, body = _exchange(url, tls, headers, None if form is None else urlencode(form), is_late)
    except DnsError as failed:
        raise IssuerUnavailable(_LATE if failed.reason is DnsFailure.TIMEOUT else failed.reason) from None
    except (OSError, HTTPException, ValueError) as failed:
        is_over = is_late.is_set() or isinstance(failed, TimeoutError)
        raise IssuerUnavailable(_LATE if is_over else type(failed).__name__) from None
    # A body without a length ends where the connection was cut.
    if is_late.is_set():
        raise IssuerUnavailable(_LATE)
    if response.status != _OK:
        raise IssuerUnavailable(f"status_{response.status}")
    if len(body) > MAX_BODY_BYTES:
        raise IssuerUnavailable("too_large")
    if response.length:
        raise IssuerUnavailable("cut_off")
    return _object(body)


def _exchange(
    url: str, tls: ssl.SSLContext, headers: dict[str, str], form: str | None, is_late: Event
) -> tuple[HTTPResponse, bytes]:
    """Send one request; return the response and its body as far as read. The deadline cuts it off and sets `is_late`.

    Raises DnsError, OSError, HTTPException, ValueError.
    """
    parts, until = urlsplit(url), time.monotonic() + DEADLINE_S
    is_https, host = parts.scheme == "https", parts.hostname or ""
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    with closing(HTTPSConnection(host, parts.port, context=tls) if is_https else HTTPConnection(host, parts.port)) as http:
        connected = _connected(http.host, http.port, until)
        # The handshake follows below, where the deadline ends it too.
        secured = tls.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False) if is_https else connected
        http.sock = secured
        timer = Timer(max(0.0, until - time.monotonic()), _cut, (secured, is_late))
        timer.daemon = True
        timer.start()
        try:
            if isinstance(secured, ssl.SSLSocket):
                secured.do_handshake()
            http.request("GET" if form is None else "POST", path, form, headers)
            # A response without a length holds the socket; closing the connection alone would leave it open.
            with http.getresponse() as response:
                return response, response.read(MAX_BODY_BYTES + 1)
        finally:
            timer.cancel()


def _connected(host: str, port: int, until: float) -> socket.socket:
    """Return a socket to the first address that accepts; each gets its share of the time left. Raises DnsError, OSError."""
    addresses = _RESOLVER.resolve(host, port, until - time.monotonic())
    failure: OSError = TimeoutError()
    for number, address in enumerate(addresses):
        share_s = (until - time.monotonic()) / (len(addresses) - number)
        if share_s <= 0:
            break
        try:
            connected = socket.create_connection((str(address), port), share_s)
        except OSError as failed:
            failure = failed
        else:
            connected.settimeout(DEADLINE_S)
            # A form is sent apart from its headers, and would wait for their acknowledgment.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
    raise failure


def _cut(connected: socket.socket, is_late: Event) -> None:
    """End a connection whose server sends a byte now and then, which no time-out of a single read ends."""
    is_late.set()
    with suppress(OSError):
        # Not the method of a TLS socket, which would drop what another thread reads from.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = parse(body)
    except MalformedJson:
        raise IssuerUnavailable("not_json") from None
    if not isinstance(found, dict):
        raise IssuerUnavailable("not_json")
    return found
