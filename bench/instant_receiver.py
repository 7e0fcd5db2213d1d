"""A receiver that answers at once and counts, so that what is measured is the sender.

It reads just enough HTTP to find the end of a request; a client that pipelines, or sends a body without a length, is not
served. It listens on as many ports as it is asked for, and prints them. `GET /` tells the counts as JSON, `GET /times` when
each key arrived first, `DELETE /` sets all that to zero. What is posted to `/hang` is counted apart and never answered. The
receiver ends when its standard input does.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Final

_ACCEPTED: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_END_OF_HEADERS: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_KEY: Final = b"idempotency-key:"
_HANG: Final = b"/hang"


@dataclass
class Arrivals:
    """What arrived since the counts were last set to zero; times are of the machine's monotonic clock, in seconds.

    Those of single keys are wall time, in milliseconds since 1970, as the tables' are.
    """

    requests: int = 0
    hung: int = 0
    keys: dict[bytes, float] = field(default_factory=dict)
    first_at: float | None = None
    last_at: float | None = None

    def add(self, key: bytes) -> None:
        """Count one request."""
        now = time.monotonic()
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.requests += 1
        self.keys.setdefault(key, time.time() * 1000)

    def clear(self) -> None:
        """Begin anew."""
        self.__init__()  # type: ignore[misc]  # a dataclass's own way to its defaults

    def record(self) -> dict[str, float | int | None]:
        """Return the counts as they are told."""
        return {
            "requests": self.requests,
            "hung": self.hung,
            "distinct": len(self.keys),
            "first_at": self.first_at,
            "last_at": self.last_at,
        }

    def times(self) -> dict[str, float]:
        """Return when each key arrived first."""
        return {key.decode(): at_ms for key, at_ms in self.keys.items()}


class _Exchange(asyncio.Protocol):
    """One connection."""

    def __init__(self, arrivals: Arrivals, delay_s: float) -> None:
        self._arrivals = arrivals
        self._delay_s = delay_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(_END_OF_HEADERS)
        if not found:
            return
        headers = head.lower()
        if len(rest) < int(_header(headers, _LENGTH) or 0):
            return
        self._received = b""
        method, path, _ = head.split(b" ", 2)
        self._answer(method, path, headers)

    def _answer(self, method: bytes, path: bytes, headers: bytes) -> None:
        if method == b"POST" and path == _HANG:
            self._arrivals.hung += 1
            return
        if method == b"POST":
            self._arrivals.add(_header(headers, _KEY))
            self._send_later(_ACCEPTED)
            return
        body = json.dumps(self._arrivals.times() if path == b"/times" else self._arrivals.record()).encode()
        if method == b"DELETE":
            self._arrivals.clear()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def _send_later(self, answer: bytes) -> None:
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, answer)
        else:
            self._transport.write(answer)


def _header(headers: bytes, name: bytes) -> bytes:
    """Return the value of the header `name` (lower case, with its colon), or nothing."""
    return headers.partition(b"\r\n" + name)[2].partition(b"\r\n")[0].strip()


async def _serve(delay_s: float, ports: int) -> None:
    arrivals = Arrivals()
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Exchange(arrivals, delay_s), "127.0.0.1", 0, backlog=1024) for _ in range(ports)
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
