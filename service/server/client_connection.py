"""A client's connection with time limits for its headers, body and response, and a size limit for its headers.

A stalled client holds a connection that other clients may need. Only the time that the service waits for the client counts,
not the service's own time: a request that has arrived is read even if the machine is busy. A body may be slow, because some
networks are slow; headers are short even for a slow network. gunicorn has one timeout for idling and headers, and none for a
body or for sending the response.
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

#: The maximum size of all headers together. Tokens, signatures and the headers that proxies add are a few hundred bytes.
#: gunicorn alone accepts 800 KB, and searches the buffered headers again with every packet. nginx accepts 32 KiB.
MAX_HEADERS_BYTES: Final = 64 * 1024

#: The shortest socket timeout; zero would mean non-blocking.
_MIN_TIMEOUT_S: Final = 0.001
_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """The time limits of a connection; tests use shorter ones."""

    #: The time limit for the first byte of a new connection, and for the headers from their first byte to their last.
    #: Browsers and proxies that open connections in advance open them again; headers fit into a few packets.
    head_s: float = 20.0
    #: The time limit for a body without progress, and for a response that the client does not read.
    body_s: float = 20.0
    #: Each byte extends the limit by the time it takes at this rate. Even the slowest real networks are faster.
    bytes_per_s: int = 1024
    #: The time limit for a whole body. 1 MiB, the default maximum, fits at 2 KB/s.
    most_body_s: float = 600.0
    #: How long the rest of a rejected request is read and discarded. A client that reads responses stops sending within this
    #: time.
    linger_s: float = 5.0


class Awaits(Enum):
    """The part of a request that the service waits for, ordered by how much is lost if the connection is closed."""

    REQUEST = auto()
    REST = auto()
    BODY = auto()
    RESPONSE = auto()


class HeadersTimeout(ParseException):  # type: ignore[misc]  # gunicorn has no annotations
    """The headers started to arrive but were not complete in time."""


class ClientConnection:
    """The client's socket as gunicorn sees it; `yield_to_others` is called before each read."""

    def __init__(self, client: Any, host: str, yield_to_others: Callable[[], None], timeouts: ConnectionTimeouts) -> None:
        self._socket = client
        self.host = host
        self._yield_to_others = yield_to_others
        self._timeouts = timeouts
        self._is_new = True
        self._is_disconnected = False
        self._sends_since: float | None = None
        self._expect(Awaits.REQUEST, self._timeouts.head_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def expect_request(self, idle_s: float) -> None:
        """Wait up to `idle_s` seconds for the next request; the first request has less time."""
        self._expect(Awaits.REQUEST, self._timeouts.head_s if self._is_new else idle_s)
        self._is_new = False

    def expect_body(self) -> None:
        """Wait for a body as long as it makes progress."""
        self._expect(Awaits.BODY, self._timeouts.body_s)

    def expect_rest(self) -> None:
        """Wait briefly for the rest of a body that is discarded."""
        self._expect(Awaits.REST, self._timeouts.linger_s)

    def recv(self, size: int) -> bytes:
        """Return received bytes, or nothing if either side has disconnected.

        Raises HeadersTimeout, LimitRequestHeaders, and TimeoutError during a body.
        """
        self._yield_to_others()
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
        """Send a response; a slow network gets enough time. Raises BrokenPipeError if the client does not read it."""
        self._socket.settimeout(self._timeouts.body_s + len(data) / self._timeouts.bytes_per_s)
        self._sends_since = time.monotonic()
        try:
            self._socket.sendall(data)
        except OSError as error:
            if not (self._is_disconnected or isinstance(error, TimeoutError)):
                raise
            raise BrokenPipeError(errno.EPIPE, "The client does not read its response.") from None
        finally:
            self._sends_since = None

    def send(self, data: bytes) -> int:
        """Send the bytes that gunicorn sends before a response, with the same limits."""
        self.sendall(data)
        return len(data)

    def disconnect(self) -> None:
        """Disconnect the client: reads and writes in progress end as if the client had disconnected."""
        self._is_disconnected = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD if self._sends_since is None else socket.SHUT_RDWR)

    def linger(self) -> None:
        """Shut down sending, then briefly read and discard the bytes that the client still sends.

        Closing at once would reset the connection, and a client that is still sending would lose the response.
        """
        self.expect_rest()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < self._since + self._timeouts.linger_s and self.recv(_CHUNK_BYTES):
                pass

    @property
    def eviction_order(self) -> tuple[int, float]:
        """The sort key for evictions: the smallest loss first, then the longest wait."""
        if self._sends_since is not None:
            return Awaits.RESPONSE.value, self._sends_since
        return self.awaits.value, self._since

    @property
    def is_evictable(self) -> bool:
        """Whether the service waits for the client to send something or to read its response."""
        return (self._is_read or self._sends_since is not None) and not self._is_disconnected

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
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
        self._socket.settimeout(max(self._left_s, _MIN_TIMEOUT_S))
        self._is_read = True
        try:
            return bytes(self._socket.recv(size))
        finally:
            self._is_read = False

    def _received_bytes(self, count: int) -> None:
        """Extend the time limit for `count` received bytes. Raises LimitRequestHeaders."""
        if self.awaits is Awaits.REQUEST:
            if not self._received:
                self._left_s = self._timeouts.head_s
            if self._received + count > MAX_HEADERS_BYTES:
                raise LimitRequestHeaders("all headers together")
        elif self.awaits is Awaits.BODY:
            self._left_s += count / self._timeouts.bytes_per_s
        self._received += count

    def _end(self, error: OSError) -> bytes:
        # gevent raises in the waiting greenlet when a socket is shut down.
        if self._is_disconnected:
            return self._disconnected()
        if not isinstance(error, TimeoutError) or self.awaits is not Awaits.REQUEST:
            raise error
        if self._received:
            raise HeadersTimeout
        return b""

    def _disconnected(self) -> bytes:
        """End a read after a disconnection. During a body, raise TimeoutError: the client did not cause the partial body."""
        if self.awaits is Awaits.BODY:
            raise TimeoutError
        return b""
