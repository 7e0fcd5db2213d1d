"""A receiver that responds at once, or after a delay, and counts, so that the sender is what is measured.

    python -m bench.servers.instant_receiver ADDRESS DELAY_S PORTS [CERTIFICATE]

It prints a control port and PORTS ports that accept posts, over TLS with a CERTIFICATE (and its key). On the control port,
`GET /` returns the counts as JSON, `GET /times` the first arrival of each key, `DELETE /` resets both. Posts to `/hang` are
counted separately and get no response. It parses just enough HTTP to find the end of a request and does not support
pipelining or bodies without a length. It exits at the end of standard input.

It shares the cores with the measured programs, so it is a plain epoll loop, which takes 0.03 ms per request (asyncio: 0.07).
"""

import json
import select
import socket
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

_ACCEPTED: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_END_OF_HEADERS: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_KEY: Final = b"\r\nidempotency-key:"
_HANG: Final = b"POST /hang "
#: Larger than any request here, so that one read returns everything that has arrived.
_READ_BYTES: Final = 65_536
#: Connections that may wait to be accepted: as many as two workers open at the same time.
_BACKLOG: Final = 1024


@dataclass
class Arrivals:
    """Counts of the requests since the last reset; times are seconds of the machine's monotonic clock.

    `keys` has the first arrival of each Idempotency-Key in milliseconds since 1970, as the tables have.
    """

    requests: int = 0
    hung: int = 0
    keys: dict[bytes, float] = field(default_factory=dict)
    first_at: float | None = None
    last_at: float | None = None

    def add(self, key: bytes) -> None:
        """Count a request with this Idempotency-Key."""
        now = time.monotonic()
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.requests += 1
        self.keys.setdefault(key, time.time() * 1000)

    def clear(self) -> None:
        """Reset all counts."""
        self.__init__()  # type: ignore[misc]  # sets the defaults of a dataclass

    def record(self) -> dict[str, float | int | None]:
        """Return the reported counts and the processor time of this process."""
        return {
            "requests": self.requests,
            "hung": self.hung,
            "distinct": len(self.keys),
            "first_at": self.first_at,
            "last_at": self.last_at,
            "cpu_s": time.process_time(),
        }

    def times(self) -> dict[str, float]:
        """Return the time of the first arrival of each key, in milliseconds since 1970."""
        return {key.decode(): at_ms for key, at_ms in self.keys.items()}


class _Connection:
    """One connection, and the part of its next request that has arrived."""

    __slots__ = ("received", "recv", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.recv = sock.recv
        self.received = b""

    def request(self) -> tuple[bytes, bytes] | None:
        """Read from the connection; return the head of a complete request, unchanged and in lower case, or None."""
        data = self.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("The client closed the connection.")
        if self.received:
            data = self.received + data
        end = data.find(_END_OF_HEADERS)
        head = data[: end + 2]
        headers = head.lower()
        if end < 0 or len(data) - end - 4 < int(_value(head, headers, _LENGTH) or 0):
            self.received = data
            return None
        self.received = b""
        return head, headers


class _TlsConnection(_Connection):
    """A TLS connection: does the handshake first, and reads all records that the TLS layer has buffered."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        self._tls = sock
        self._is_open = False

    def request(self) -> tuple[bytes, bytes] | None:
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            request = super().request()
            while request is None and self._tls.pending():
                request = super().request()
        except ssl.SSLWantReadError:
            return None
        return request


class _Receiver:
    """Serves all connections in one epoll loop."""

    def __init__(self, address: str, delay_s: float, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._arrivals = Arrivals()
        self._delay_s = delay_s
        self._context = context
        self._epoll = select.epoll()
        self._listening: dict[int, tuple[socket.socket, bool]] = {}
        self._connections: dict[int, _Connection] = {}
        #: Delayed responses, in the order in which they are due, since all have the same delay.
        self._waiting: deque[tuple[float, socket.socket]] = deque()

    def listen(self, *, takes_posts: bool) -> int:
        """Listen on a free port and return it."""
        sock = socket.create_server((self._address, 0), backlog=_BACKLOG)
        sock.setblocking(False)
        self._listening[sock.fileno()] = (sock, takes_posts)
        self._epoll.register(sock, select.EPOLLIN)
        port: int = sock.getsockname()[1]
        return port

    def run(self, until_closed: int) -> None:
        """Serve until the other end of the descriptor `until_closed` is closed."""
        self._epoll.register(until_closed, select.EPOLLIN)
        connections = self._connections
        while True:
            for fd, _ in self._epoll.poll(self._timeout_s()):
                connection = connections.get(fd)
                if connection is not None:
                    self._serve(fd, connection)
                elif fd == until_closed:
                    return
                else:
                    self._accept(*self._listening[fd])
            self._send_due_responses()

    def _timeout_s(self) -> float | None:
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def _accept(self, listening: socket.socket, takes_posts: bool) -> None:
        sock, _ = listening.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock)
        if self._context is not None and takes_posts:
            wrapped = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = _TlsConnection(wrapped)
        self._connections[connection.sock.fileno()] = connection
        self._epoll.register(connection.sock, select.EPOLLIN)

    def _serve(self, fd: int, connection: _Connection) -> None:
        try:
            request = connection.request()
            if request is not None:
                self._respond(connection.sock, *request)
        except OSError:  # the client closed the connection, or the TLS handshake failed
            del self._connections[fd]
            connection.sock.close()

    def _respond(self, sock: socket.socket, head: bytes, headers: bytes) -> None:
        if not head.startswith(b"POST "):
            self._send_counts(sock, head)
        elif head.startswith(_HANG):
            self._arrivals.hung += 1
        else:
            self._arrivals.add(_value(head, headers, _KEY))
            if self._delay_s:
                self._waiting.append((time.monotonic() + self._delay_s, sock))
            else:
                sock.send(_ACCEPTED)

    def _send_due_responses(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, sock = self._waiting.popleft()
            try:
                sock.send(_ACCEPTED)
            except OSError:  # the client closed the connection; the next read fails, too
                continue

    def _send_counts(self, sock: socket.socket, head: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        body = json.dumps(self._arrivals.times() if path == b"/times" else self._arrivals.record()).encode()
        if method == b"DELETE":
            self._arrivals.clear()
        # The times of many keys exceed the send buffer of a socket.
        sock.setblocking(True)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        sock.setblocking(False)


def _value(head: bytes, headers: bytes, name: bytes) -> bytes:
    """Return the value of a header, empty if it is missing; `name` is in lower case, with the CRLF before and the colon."""
    at = headers.find(name)
    if at < 0:
        return b""
    at += len(name)
    return head[at : head.find(b"\r\n", at)].strip()


def main(address: str, delay_s: float, ports: int, certificate: str | None = None) -> None:
    """Listen, print the ports, and serve until standard input ends."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    receiver = _Receiver(address, delay_s, context)
    print(*(receiver.listen(takes_posts=number > 0) for number in range(ports + 1)), flush=True)
    receiver.run(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
