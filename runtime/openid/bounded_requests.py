"""One request to the operator's issuer within a deadline: no redirect, no proxy, a bounded JSON body.

The caller waits no longer than the deadline, whatever takes the time: the name lookup, an address that does not accept, TLS,
or a server that sends a byte now and then. The issuer is named by the operator, so its address is not checked; clients have
no influence on the URL.
"""

import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import gaierror
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from runtime.deadline import within
from runtime.openid.errors import IssuerUnavailable
from schemas.base.strict_json import MalformedJson, parse
from schemas.version import USER_AGENT

#: A person waits for each of these requests: a sign-in takes up to three.
DEADLINE_S: Final = 3.0
#: Far above the keys of the largest issuers.
MAX_BODY_BYTES: Final = 256 * 1024

_OK: Final = 200
#: The part of the deadline for connecting to an address: if it does not accept, as much time is left for the next one.
_CONNECT_PART: Final = 0.5


def fetch_json(
    url: str, tls: ssl.SSLContext, form: Mapping[str, str] | None = None, authorization: str | None = None
) -> dict[str, Any]:
    """Return the JSON object that a GET returns, or a POST of `form`. Raises IssuerUnavailable."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
    if authorization is not None:
        headers["Authorization"] = authorization
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        response, body = within(DEADLINE_S, partial(_exchange, url, tls, headers, None if form is None else urlencode(form)))
    except (OSError, HTTPException, ValueError) as failed:
        raise IssuerUnavailable(_reason(failed)) from None
    if response.status != _OK:
        raise IssuerUnavailable(f"status_{response.status}")
    if len(body) > MAX_BODY_BYTES:
        raise IssuerUnavailable("too_large")
    if response.length:
        raise IssuerUnavailable("cut_off")
    return _object(body)


def _exchange(url: str, tls: ssl.SSLContext, headers: dict[str, str], form: str | None) -> tuple[HTTPResponse, bytes]:
    """Return the response to one request, and its body as far as the deadline allows.

    Raises OSError, HTTPException, ValueError.
    """
    parts, until = urlsplit(url), time.monotonic() + DEADLINE_S
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    connection = partial(HTTPSConnection, context=tls) if parts.scheme == "https" else HTTPConnection
    with closing(connection(parts.hostname or "", parts.port, timeout=DEADLINE_S * _CONNECT_PART)) as http:
        http.connect()
        http.sock.settimeout(DEADLINE_S)
        http.request("GET" if form is None else "POST", path, form, headers)
        # A response without a length keeps the socket open; closing only the connection would not close it.
        with http.getresponse() as response:
            body = b""
            while time.monotonic() < until and len(body) <= MAX_BODY_BYTES and (piece := response.read1()):
                body += piece
            return response, body


def _reason(failed: Exception) -> str:
    if isinstance(failed, TimeoutError):
        return "late"
    return "dns_failed" if isinstance(failed, gaierror) else type(failed).__name__


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = parse(body)
    except MalformedJson:
        raise IssuerUnavailable("not_json") from None
    if not isinstance(found, dict):
        raise IssuerUnavailable("not_json")
    return found
