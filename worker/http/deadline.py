"""One deadline for a whole exchange: when it passes, the watchdog shuts the connection down under the waiting thread.

A timeout per read does not bound how long a peer may take. So each request of an exchange is watched from the DNS lookup to
the last byte of the response, over a new connection or a kept one, and only the connection that it uses is shut down.
"""

import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from runtime.account_shares import AccountId
from schemas.exports.delivery import Outcome, Timings
from worker.http.response_parser import MAX_RESPONSE_BYTES

#: How late the watchdog may notice that a deadline has passed.
_WATCH_S: Final = 0.05


class Exchange:
    """One request, or several one after the other, under one deadline: the connection it uses, the duration of its parts.

    It begins now and ends after `deadline_s` seconds. Connecting may take `connect_timeout_s` of them, and everything after
    that `rest_s` if given. Its name lookups use the slots of `account_id`. `certificate` is the target's own client
    certificate with its key. `has_sent` says whether the receiver may have received bytes of the request. At most
    `max_response_bytes` of a response are read.
    """

    def __init__(
        self,
        deadline_s: float,
        connect_timeout_s: float = math.inf,
        account_id: AccountId = None,
        certificate: str | None = None,
        rest_s: float | None = None,
    ) -> None:
        self.account_id = account_id
        self.certificate = certificate
        self.began_at = time.monotonic()
        self.deadline = self.began_at + deadline_s
        self.connect_timeout_s = connect_timeout_s
        self.address: str | None = None
        self.dns_ms: int | None = None
        self.connect_ms: int | None = None
        self.tls_ms: int | None = None
        self.first_byte_at: float | None = None
        self.has_sent = False
        self.max_response_bytes = MAX_RESPONSE_BYTES
        self._rest_s = rest_s
        self._expired = False
        self._watched: WatchedSocket | None = None

    def remaining_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        """Return whether the deadline has passed, noticed by the watchdog or not."""
        return self._expired or self.remaining_s() == 0

    def use(self, watched: "WatchedSocket", address: str) -> None:
        """Use a connection from now on, new or kept."""
        watched.holder = self
        self._watched, self.address = watched, address
        if self._rest_s is not None:
            self.deadline = min(self.deadline, time.monotonic() + self._rest_s)
        if self._expired:
            # The watchdog expired this exchange before it had a connection to shut down.
            watched.shut_down(self)

    def expire(self) -> None:
        """Shut the connection down under the waiting thread."""
        self._expired = True
        watched = self._watched
        if watched is not None:
            watched.shut_down(self)

    def outcome(
        self,
        status: int | None = None,
        error: str | None = None,
        refused: bool = False,
        retry_after: str | None = None,
        body: bytes = b"",
    ) -> Outcome:
        """Return the result of the exchange, with the address and the timings."""
        first_byte_ms = None if self.first_byte_at is None else milliseconds(self.first_byte_at - self.began_at)
        total_ms = milliseconds(time.monotonic() - self.began_at)
        timings = Timings(self.dns_ms, self.connect_ms, self.tls_ms, first_byte_ms, total_ms)
        return Outcome(status, error, refused, retry_after, body, self.address, timings)


class WatchedSocket:
    """A connected socket that the watchdog can shut down while another thread waits for it.

    Two races are prevented. (1) Shutting down a descriptor that now belongs to another socket, because this one was just
    closed: the lock prevents it. (2) Shutting down a connection that the next exchange already uses, because the previous
    exchange has reached its deadline: an exchange first releases the connection and then reads the clock. If its deadline
    has passed, the watchdog may have seen that while the connection was held, and the connection is not reused. So taking
    and releasing a connection, a thousand times a second, needs no lock.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        #: The exchange that uses the connection.
        self.holder: Exchange | None = None
        self._lock = threading.Lock()

    def shut_down(self, exchange: Exchange) -> None:
        """End the connection, if `exchange` still uses it."""
        with self._lock:
            if self.holder is exchange:
                # The peer may have closed it already.
                with suppress(OSError):
                    # The method of the plain socket: SSLSocket.shutdown would drop the TLS session that another thread uses.
                    socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def release(self, exchange: Exchange) -> bool:
        """End the use of the connection; return whether another exchange may use it."""
        self.holder = None
        return time.monotonic() < exchange.deadline

    def replace(self, wrap: Callable[[socket.socket], socket.socket]) -> None:
        """Replace the socket with the result of `wrap`, which takes over the descriptor."""
        with self._lock:
            self.socket = wrap(self.socket)

    def close(self) -> None:
        with self._lock:
            self.socket.close()


class Watchdog:
    """Expires exchanges whose deadline has passed, on a thread that runs while there are exchanges or kept connections.

    Calls `tidy` every `tidy_every_s` seconds to close unused connections; `tidy` returns whether any are still kept.
    """

    def __init__(self, tidy: Callable[[], bool], tidy_every_s: float) -> None:
        self._tidy = tidy
        self._tidy_every_s = tidy_every_s
        self._exchanges: dict[int, Exchange] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def watch(self, exchange: Exchange) -> None:
        """Expire the exchange when its deadline passes."""
        with self._lock:
            # A forked child lacks the thread, and an error in `tidy` ends it. Without the thread no deadline is enforced.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="deadline-watchdog", daemon=True)
                self._thread.start()
            self._exchanges[id(exchange)] = exchange

    def unwatch(self, exchange: Exchange) -> None:
        """Stop watching an exchange that has ended."""
        del self._exchanges[id(exchange)]

    def _run(self) -> None:
        tidy_at = time.monotonic() + self._tidy_every_s
        while True:
            time.sleep(_WATCH_S)
            self._expire_overdue()
            if time.monotonic() >= tidy_at:
                if not self._tidy() and self._may_end():
                    return
                tidy_at = time.monotonic() + self._tidy_every_s

    def _may_end(self) -> bool:
        """Return whether nothing is left to watch; then the next exchange starts another thread."""
        with self._lock:
            if self._exchanges:
                return False
            self._thread = None
            return True

    def _expire_overdue(self) -> None:
        """Expire the exchanges whose deadline has passed."""
        now = time.monotonic()
        # The copy is atomic; meanwhile other threads add and remove exchanges.
        for exchange in self._exchanges.copy().values():
            if now >= exchange.deadline:
                exchange.expire()


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds."""
    return round(seconds * 1000)
