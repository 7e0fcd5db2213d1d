"""A client's connection: how long it may take to say what it wants, and how much it may say before anybody looks at it.

A client that stalls costs a place that others may need. What counts is the time that the service spends waiting for the
client, never its own: a request that has arrived is read, however busy the machine is. A body may be as slow as a poor line
is; a head is short on every line.

gunicorn has one time for being idle and sending a head, and none for a body or for taking the answer.
"""

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from gunicorn.http.errors import LimitRequestHeaders, ParseException

#: All headers together. Tokens, signatures and what proxies add are a few hundred bytes; gunicorn alone takes 800 KB, and
#: searches what it has of them again with every packet. nginx takes 32 KiB.
MAX_HEADERS_BYTES: Final = 64 * 1024

#: The least a socket can wait; none at all would mean something else.
_AT_ONCE_S: Final = 0.001
_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """How long a client is waited for; tests have less of it."""

    #: A new connection until its first byte, and a head from its first byte to its last. Browsers and proxies that open
    #: connections ahead open them again; a head fits into a few packets.
    head_s: float = 20.0
    #: A body that does not move at all, and an answer that is not taken.
    body_s: float = 20.0
    #: Every byte buys time, as if a line carried so many a second: the poorest that anybody posts over has more.
    bytes_per_s: int = 1024
    #: What one body may take in all, however it comes. 1 MiB, which is the default's most, passes at 2 KB/s.
    most_body_s: float = 600.0
    #: What a refused client goes on sending is taken and thrown away for so long; who reads answers has stopped by then.
    linger_s: float = 5.0


class Awaits(Enum):
    """What the client is awaited with, or to take; the earlier, the less is lost with the connection."""

    REQUEST = auto()
    REST = auto()
    BODY = auto()
    ANSWER = auto()


class HeadersTimeout(ParseException):  # type: ignore[misc]  # gunicorn has no annotations
    """The head began and did not end in time."""


class ClientConnection:
    """What gunicorn takes for the client's socket. `give_way` is called before each read, so that all take turns."""

    def __init__(self, client: Any, host: str, give_way: Callable[[], None], timeouts: ConnectionTimeouts) -> None:
        self._socket = client
        self.host = host
        self._give_way = give_way
        self._timeouts = timeouts
        self._is_new = True
        self._is_disconnected = False
        self._sends_since: float | None = None
        self._expect(Awaits.REQUEST, self._timeouts.head_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def expect_request(self, idle_s: float) -> None:
        """Wait `idle_s` seconds for the next request to begin; the first one has to begin sooner."""
        self._expect(Awaits.REQUEST, self._timeouts.head_s if self._is_new else idle_s)
        self._is_new = False

    def expect_body(self) -> None:
        """Wait for a body for as long as it keeps coming."""
        self._expect(Awaits.BODY, self._timeouts.body_s)

    def expect_rest(self) -> None:
        """Wait a moment for what is left of a body that nobody wants."""
        self._expect(Awaits.REST, self._timeouts.linger_s)

    def recv(self, size: int) -> bytes:
        """Return what came, or nothing where the client or we have hung up.

        Raises HeadTooSlow, LimitRequestHeaders; TimeoutError in the course of a body.
        """
        self._give_way()
        if self._is_disconnected:
            return self._disconnected()
        began_at = time.monotonic()
        try:
            data = self._read(size, began_at)
        except OSError as error:
            return self._end(error)
        self._left_s -= time.monotonic() - began_at
        self._received_bytes(len(data))
        return data

    def sendall(self, data: bytes) -> None:
        """Send an answer, at the pace of a poor line at least. Raises BrokenPipeError where the client does not read it."""
        self._socket.settimeout(self._timeouts.body_s + len(data) / self._timeouts.bytes_per_s)
        self._sends_since = time.monotonic()
        try:
            self._socket.sendall(data)
        except OSError as error:
            if not (self._is_disconnected or isinstance(error, TimeoutError)):
                raise
            raise BrokenPipeError(errno.EPIPE, "The client does not read its answer.") from None
        finally:
            self._sends_since = None

    def send(self, data: bytes) -> int:
        """Send what gunicorn says before an answer, in the same manner."""
        self.sendall(data)
        return len(data)

    def disconnect(self) -> None:
        """Let whoever reads from the client, or sends to it, find that it hung up."""
        self._is_disconnected = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD if self._sends_since is None else socket.SHUT_RDWR)

    def linger(self) -> None:
        """Say that nothing more follows, and take for a moment what the client still sends.

        Closing at once would reset the connection, and the answer would be lost to a client that is still sending.
        """
        self.expect_rest()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < self._since + self._timeouts.linger_s and self.recv(_CHUNK_BYTES):
                pass

    @property
    def eviction_order(self) -> tuple[int, float]:
        """Who hangs on longest for the least comes first."""
        if self._sends_since is not None:
            return Awaits.ANSWER.value, self._sends_since
        return self.awaits.value, self._since

    @property
    def is_evictable(self) -> bool:
        """Whether the client is being waited for: to say something, or to take its answer."""
        return (self._is_read or self._sends_since is not None) and not self._is_disconnected

    @property
    def is_idle(self) -> bool:
        """Whether there is no request of the client that has begun to be answered."""
        return self.awaits is not Awaits.BODY

    def _expect(self, awaits: Awaits, left_s: float) -> None:
        self.awaits = awaits
        self._since = time.monotonic()
        self._left_s = left_s
        self._received = 0
        self._is_read = False

    def _read(self, size: int, now: float) -> bytes:
        if self.awaits is Awaits.BODY and now > self._since + self._timeouts.most_body_s:
            raise TimeoutError
        self._socket.settimeout(max(self._left_s, _AT_ONCE_S))
        self._is_read = True
        try:
            return bytes(self._socket.recv(size))
        finally:
            self._is_read = False

    def _received_bytes(self, count: int) -> None:
        """Give time for what came."""
        if self.awaits is Awaits.REQUEST:
            if not self._received:
                self._left_s = self._timeouts.head_s
            if self._received + count > MAX_HEADERS_BYTES:
                raise LimitRequestHeaders("all headers together")
        elif self.awaits is Awaits.BODY:
            self._left_s += count / self._timeouts.bytes_per_s
        self._received += count

    def _end(self, error: OSError) -> bytes:
        # gevent raises in whoever waits when a socket is shut.
        if self._is_disconnected:
            return self._disconnected()
        if not isinstance(error, TimeoutError) or self.awaits is not Awaits.REQUEST:
            raise error
        if self._received:
            raise HeadersTimeout
        return b""

    def _disconnected(self) -> bytes:
        """Tell whoever was let go in a body that it took too long: what came of it is no mistake of the client."""
        if self.awaits is Awaits.BODY:
            raise TimeoutError
        return b""
