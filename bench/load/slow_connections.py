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

#: A byte now and then, well within every timeout of a server's.
DRIP_S: Final = 0.2
#: Who sends a byte when: so many groups share the time between two bytes, so that they do not come all at once.
_GROUPS: Final = 20
_CONNECT_WITHIN_S: Final = 10.0

#: As far as a request comes before it drips: one that is let in, since its secret is right, and one that is not read yet.
_HEAD: Final = (
    b"POST /api/scanner/results HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"X-Scanner-Secret: %s\r\n" % SCANNER_SECRET.encode()
)
_BEGINNINGS: Final = (_HEAD + b"X-Slow: ", _HEAD + b"Content-Length: 100000\r\n\r\n")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where a service is reached: a port of loopback, and whom to believe there over TLS, by which name."""

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
def dripping(place: ServiceAddress, count: int, sources: list[str]) -> Iterator[list[int]]:
    """Keep `count` slow connections open, spread over `sources`; at the end the list holds the number of reopened ones."""
    reopened: list[int] = []
    with child("bench.load.slow_connections") as process:
        asked = {"port": place.port, "authority": place.authority, "name": place.name, "count": count, "sources": sources}
        pipe(process.stdin).write(json.dumps(asked) + "\n")
        pipe(process.stdin).flush()
        assert pipe(process.stdout).readline(), "The slow clients found no way in."
        yield reopened
        pipe(process.stdin).write("\n")
        pipe(process.stdin).flush()
        reopened.append(int(pipe(process.stdout).readline()))


class _Slow:
    """One slow client, which comes back when it is thrown out."""

    def __init__(self, place: ServiceAddress, source: str, beginning: bytes) -> None:
        self._place = place
        self._source = source
        self._beginning = beginning
        self._socket = self._begin()

    def drip(self) -> bool:
        """Send a byte; tell whether the connection was still there."""
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
        made = self._place.connect(self._source, _CONNECT_WITHIN_S)
        made.sendall(self._beginning)
        made.setblocking(False)
        return made


def _drip(slow: list[_Slow]) -> int:
    """Let every client drip until standard input has something to say; return how many connections were lost meanwhile."""
    groups = [slow[number::_GROUPS] for number in range(_GROUPS)]
    lost, next_at = 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for group in cycle(groups):
            next_at += DRIP_S / _GROUPS
            if selector.select(max(0.0, next_at - time.monotonic())):
                return lost
            lost += sum(not each.drip() for each in group)
    raise AssertionError("There is always a next group.")


def _main(asked: dict[str, Any]) -> None:
    place = ServiceAddress(asked["port"], asked["authority"], asked["name"])
    sources = list(islice(cycle(asked["sources"]), asked["count"]))
    # As many of each kind from each source.
    kinds = [_BEGINNINGS[number // len(asked["sources"]) % len(_BEGINNINGS)] for number in range(len(sources))]
    slow = [_Slow(place, source, beginning) for source, beginning in zip(sources, kinds, strict=True)]
    print("dripping", flush=True)
    print(_drip(slow), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.stdin.readline()))
