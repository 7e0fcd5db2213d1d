"""Asks an HTTP proxy for a tunnel to an address (CONNECT).

The address goes to the proxy, never the target's name: the policy was checked for the address. The proxy's refusals have
error codes of their own; nothing else of its response is kept.
"""

import socket
import time
from typing import Final

from schemas.settings.egress import EgressProxy
from schemas.version import VERSION
from worker.http.errors import transport_error

#: The head of a proxy's response; a longer one is no response to CONNECT.
_MAX_HEAD: Final = 16 * 1024
_END: Final = b"\r\n\r\n"
#: The first is that of the standard; tinyproxy answers a wrong password with the second.
_AUTH_REQUIRED: Final = frozenset({407, 401})


class ProxyGatewayError(Exception):
    """The proxy responded with 5xx: it may reach another address of the target."""


def open_tunnel(connected: socket.socket, proxy: EgressProxy, address: str, port: int, until: float) -> None:
    """Let a connection to a proxy reach `address` and `port`, until `until` (monotonic).

    Raises TransportError, ProxyGatewayError, TimeoutError, OSError.
    """
    destination = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    head = f"CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: RiskRelay/{VERSION}\r\n{authorization}\r\n"
    connected.settimeout(_left_s(until))
    connected.sendall(head.encode("ascii"))
    status = _status(_read_head(connected, until))
    if 200 <= status < 300:
        return
    if status >= 500:
        raise ProxyGatewayError
    raise transport_error("proxy_auth_required" if status in _AUTH_REQUIRED else "proxy_refused")


def _read_head(connected: socket.socket, until: float) -> bytes:
    """Return the head of a response; what follows a success belongs to the target, which speaks only after us."""
    head = b""
    while _END not in head and len(head) <= _MAX_HEAD:
        connected.settimeout(_left_s(until))
        piece = connected.recv(_MAX_HEAD)
        if not piece:
            break
        head += piece
    return head


def _status(head: bytes) -> int:
    """Return the status of a whole head. Raises TransportError."""
    line = head.split(b"\r\n", 1)[0].split(b" ", 2)
    is_response = line[0] in {b"HTTP/1.1", b"HTTP/1.0"} and len(line) > 1 and len(line[1]) == 3 and line[1].isdigit()
    body = head.partition(_END)[2]
    if not is_response or _END not in head or (body and line[1].startswith(b"2")):
        raise transport_error("proxy_bad_answer")
    return int(line[1])


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
