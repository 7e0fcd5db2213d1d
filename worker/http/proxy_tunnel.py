"""Opens a tunnel to an address through an HTTP proxy (CONNECT).

The proxy gets the address, never the target's name: the policy was checked for the address. The proxy's refusals have
error codes of their own; nothing else of its response is kept.
"""

import socket
import time
from typing import Final

from schemas.settings.egress import EgressProxy
from schemas.version import VERSION
from worker.http.errors import transport_error
from worker.http.response_parser import InvalidResponse, ResponseParser

#: 407 is the status of the standard; tinyproxy responds to a wrong password with 401.
_AUTH_REQUIRED: Final = frozenset({407, 401})
#: The end of the headers.
_END: Final = b"\r\n\r\n"


class ProxyGatewayError(Exception):
    """The proxy responded with 5xx: it may reach another address of the target."""


def open_tunnel(connected: socket.socket, proxy: EgressProxy, address: str, port: int, until: float) -> None:
    """Open a tunnel to `address` and `port` over a connection to a proxy, by the monotonic time `until`.

    Raises TransportError, ProxyGatewayError, TimeoutError, OSError; ConnectionError for an incomplete response.
    """
    destination = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    head = f"CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: RiskRelay/{VERSION}\r\n{authorization}\r\n"
    connected.settimeout(_left_s(until))
    connected.sendall(head.encode("ascii"))
    status = _read_status(connected, until)
    if 200 <= status < 300:
        return
    if status >= 500:
        raise ProxyGatewayError
    raise transport_error("proxy_auth_required" if status in _AUTH_REQUIRED else "proxy_refused")


def _read_status(connected: socket.socket, until: float) -> int:
    """Return the status of the proxy's response."""
    received = bytearray()

    def receive(most: int) -> bytes:
        connected.settimeout(_left_s(until))
        piece = connected.recv(most)
        received.extend(piece)
        return piece

    parser = ResponseParser()
    try:
        parser.read_head(receive)
    except InvalidResponse:
        raise transport_error("proxy_bad_answer") from None
    status = parser.read_body(receive, 0).status
    if 200 <= status < 300 and received.partition(_END)[2]:
        # Bytes after a success would be the target's, which sends nothing before our request; a success never has a body.
        raise transport_error("proxy_bad_answer")
    return status


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
