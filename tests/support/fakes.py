"""Fakes: a wake-up queue that records notifications, DNS resolvers with fixed results, and misbehaving loopback servers."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Self, cast

import falcon

from runtime.dns_resolver import Addresses, DnsError, DnsFailure, DnsResolver
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import RateLimited
from service.http.limits.rate_limits import RateLimits
from worker.trackers.runner import TrackerRunner

#: For tests of webhooks: a task for a tracker would raise AttributeError.
NO_TRACKERS: Final = cast("TrackerRunner", None)


class FakeWakeUpQueue(WakeUpQueue):
    """Counts notifications, and calls `on_notify` at each one to record its result."""

    def __init__(self, on_notify: Callable[[], object] = lambda: None) -> None:
        self.on_notify = on_notify
        self.seen: list[object] = []
        self.is_connected = True

    @property
    def notifications(self) -> int:
        """The number of notifications."""
        return len(self.seen)

    def notify(self) -> bool:
        self.seen.append(self.on_notify())
        return self.is_connected

    def acknowledge(self) -> None:
        """Do nothing: it has no jobs."""

    def is_reachable(self) -> bool:
        return self.is_connected


class FakeResolver(DnsResolver):
    """Resolves a name to its addresses in `table`, or fails with its DnsFailure there; an address resolves to itself."""

    def __init__(self, table: Mapping[str, Sequence[str] | DnsFailure]) -> None:
        super().__init__()
        self.table = dict(table)
        self.asked: list[str] = []

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        self.asked.append(host)
        found = self.table.get(host, [host] if _is_literal(host) else DnsFailure.NOT_FOUND)
        if isinstance(found, DnsFailure):
            raise DnsError(found)
        return tuple(ip_address(address) for address in found)


class SlowResolver(FakeResolver):
    """Resolves each name after `delay_s` seconds."""

    def __init__(self, table: Mapping[str, Sequence[str] | DnsFailure], delay_s: float) -> None:
        super().__init__(table)
        self._delay_s = delay_s

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        time.sleep(self._delay_s)
        return super().resolve(host, port, timeout_s, account_id)


class FakeMonotonic:
    """Monotonic seconds that change only when a test sets `now`."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rollback(Exception):
    """Raised in a transaction to roll it back."""


class OvertakenLimits(RateLimits):
    """Blocks a request's address while its token is looked up, as failures of other clients would."""

    def require_unblocked(self, req: falcon.Request) -> None:
        super().require_unblocked(req)
        with suppress(RateLimited):
            while True:
                self.count_failure(req)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as a server read it; header names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """One accepted connection, with the operations of a server that can misbehave."""

    def __init__(self, connection: socket.socket, number: int, stopping: threading.Event) -> None:
        self.connection = connection
        self.number = number
        self._stopping = stopping
        self._stream = connection.makefile("rb")

    def read(self) -> ReceivedRequest | None:
        """Read one request; None if the client has closed the connection."""
        line = self._stream.readline().decode("latin-1").strip()
        if not line:
            return None
        headers = {}
        while header := self._stream.readline().decode("latin-1").strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        return ReceivedRequest(line, headers, self._stream.read(int(headers.get("content-length", "0"))))

    def send(self, data: bytes) -> None:
        """Send the bytes at once."""
        self.connection.sendall(data)

    def answer(self, status: int = 200, body: bytes = b"{}", **headers: str) -> None:
        """Send a complete response; underscores in names of headers become hyphens."""
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def drip(self, data: Iterable[int], every_s: float = 0.05) -> None:
        """Send one byte at a time, every `every_s` seconds."""
        for byte in data:
            self.send(bytes([byte]))
            if self._stopping.wait(every_s):
                return

    def wait(self) -> None:
        """Wait without a response until the server stops."""
        self._stopping.wait()

    def client_has_closed(self) -> bool:
        """Return whether the client has closed the connection, or the server is stopping."""
        try:
            return self._stopping.is_set() or self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self.connection.close()


class LoopbackServer:
    """Accepts connections on loopback, counts them, and calls `behave` for each in its own thread.

    With `tls`, it calls `behave` after the handshake. The thread ends without an error if the client closes the connection.
    """

    def __init__(
        self, behave: Callable[[Peer], None], tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.connections = 0
        self._behave = behave
        self._tls = tls
        self._stopping = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, port), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        """The URL to post to."""
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):  # the client closed first
                # SSLSocket.shutdown would discard the TLS session while another thread reads from it.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the listening socket was closed
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        if self._tls:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._open.add(connection)
        peer = Peer(connection, number, self._stopping)
        with suppress(OSError):  # includes TLS errors: the client rejected the certificate, or closed the connection
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            self._behave(peer)
        self._open.discard(connection)
        peer.close()


class HangingNames:
    """Replaces getaddrinfo: names that contain `hanging` block until `release`; other names resolve to loopback at once."""

    def __init__(self) -> None:
        self.hanging: list[str] = []
        self._free = threading.Event()

    def __call__(self, host: str, port: int, **_hints: int) -> Sequence[tuple[object, ...]]:
        if "hanging" in host:
            self.hanging.append(host)
            self._free.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    def release(self) -> None:
        """Resolve every name from now on, including those that wait."""
        self._free.set()
