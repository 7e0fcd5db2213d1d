"""Slow clients: many connections that send one byte at an interval, half of them in a header, half in a body.

    python -m bench.load.slow_connections

reads its parameters as one JSON object from standard input, prints a line once all connections are open, and sends until it
reads another line; then it prints how many connections were reopened because the server had closed them. One thread: at a
byte every 0.2 s, five hundred connections take a twentieth of a core here, so that they are not the load themselves.
"""

import json
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from bench.servers.receiver_process import child, pipe
from tests.support.factories import SCANNER_SECRET

#: Seconds between two bytes: shorter than every timeout of the server.
DRIP_S: Final = 0.2
#: The clients send in this many groups, spread over DRIP_S, so that not all bytes arrive at once.
_GROUPS: Final = 20
_CONNECT_WITHIN_S: Final = 10.0

#: Sent at once, before the slow bytes: the first stops inside a header; the second stops inside the body, which the service
#: reads because the secret is valid.
_HEAD: Final = (
    b"POST /api/scanner/results HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"X-Scanner-Secret: %s\r\n" % SCANNER_SECRET.encode()
)
_BEGINNINGS: Final = (_HEAD + b"X-Slow: ", _HEAD + b"Content-Length: 100000\r\n\r\n")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A service's port on loopback; with TLS, the file of the certificate authority to trust and the expected host name."""

    port: int
    authority: str | None = None
    name: str | None = None

    def connect(self, source: str, patience_s: float) -> socket.socket:
        """Return a connection from the address `source`. Raises OSError."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=patience_s, source_address=(source, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.authority is None:
            return plain
        try:
            return _context(self.authority).wrap_socket(plain, server_hostname=self.name)
        except OSError:
            plain.close()
            raise


_contexts: Final[dict[str, ssl.SSLContext]] = {}


def _context(authority: str) -> ssl.SSLContext:
    if authority not in _contexts:
        _contexts[authority] = ssl.create_default_context(cafile=authority)
    return _contexts[authority]


@contextmanager
def dripping(address: ServiceAddress, count: int, sources: list[str]) -> Iterator[list[int]]:
    """Keep `count` slow connections open, spread over `sources`; at the end the list holds the number of reopened ones."""
    reopened: list[int] = []
    with child("bench.load.slow_connections") as process:
        parameters = {
            "port": address.port,
            "authority": address.authority,
            "name": address.name,
            "count": count,
            "sources": sources,
        }
        pipe(process.stdin).write(json.dumps(parameters) + "\n")
        pipe(process.stdin).flush()
        assert pipe(process.stdout).readline(), "The slow clients could not connect."
        yield reopened
        pipe(process.stdin).write("\n")
        pipe(process.stdin).flush()
        reopened.append(int(pipe(process.stdout).readline()))


class _Slow:
    """One slow client, which reconnects when the server closes its connection."""

    def __init__(self, address: ServiceAddress, source: str, beginning: bytes) -> None:
        self._address = address
        self._source = source
        self._beginning = beginning
        self._socket = self._begin()

    def drip(self) -> bool:
        """Send a byte; return whether the connection was still open."""
        try:
            self._socket.send(b"x")
        except (BlockingIOError, ssl.SSLWantWriteError):
            return True
        except OSError:
            self._socket.close()
            self._socket = self._begin()
            return False
        return True

    def _begin(self) -> socket.socket:
        made = self._address.connect(self._source, _CONNECT_WITHIN_S)
        made.sendall(self._beginning)
        made.setblocking(False)
        return made


def _drip(slow: list[_Slow]) -> int:
    """Send bytes from every client until standard input has a line; return how many connections the server closed."""
    groups = [slow[number::_GROUPS] for number in range(_GROUPS)]
    lost, next_at = 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for group in cycle(groups):
            next_at += DRIP_S / _GROUPS
            if selector.select(max(0.0, next_at - time.monotonic())):
                return lost
            lost += sum(not each.drip() for each in group)
    raise AssertionError("cycle() never ends")


def _main(parameters: dict[str, Any]) -> None:
    address = ServiceAddress(parameters["port"], parameters["authority"], parameters["name"])
    sources = list(islice(cycle(parameters["sources"]), parameters["count"]))
    # Each source gets equally many of each kind.
    kinds = [_BEGINNINGS[number // len(parameters["sources"]) % len(_BEGINNINGS)] for number in range(len(sources))]
    slow = [_Slow(address, source, beginning) for source, beginning in zip(sources, kinds, strict=True)]
    print("dripping", flush=True)
    print(_drip(slow), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.stdin.readline()))
