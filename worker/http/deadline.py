"""One deadline for a whole request, whatever the peer drips: once it passes, the connection is cut under whoever waits.

The timeout of a single read is no bound on how long a peer may take. So each exchange is watched from the name lookup to the
last byte of the answer, over a connection of its own or a kept-alive one, and only the connection that it uses is cut.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from schemas.exports.delivery import Outcome, Timings

#: How late the watchdog may notice that a deadline has passed.
_WATCH_S: Final = 0.05


class Exchange:
    """One request under its deadline: the connection it uses and how long its parts took."""

    __slots__ = ("_expired", "_lifeline", "address", "began_at", "deadline", "first_byte_at", "timings")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.began_at = time.monotonic()
        self.address: str | None = None
        self.timings = _NOTHING_TIMED
        self.first_byte_at: float | None = None
        self._expired = False
        self._lifeline: Lifeline | None = None

    def remaining_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        """Tell whether the deadline has passed, noticed by the watchdog or not."""
        return self._expired or self.remaining_s() == 0

    def watch(self, lifeline: "Lifeline", address: str) -> None:
        """Use a connection from now on, new or kept alive."""
        lifeline.holder = self
        self._lifeline, self.address = lifeline, address
        if self._expired:
            # The watchdog came while there was nothing yet that it could shut, and does not come twice.
            lifeline.cut(self)

    def expire(self) -> None:
        """Shut the connection down under whoever waits for it."""
        self._expired = True
        lifeline = self._lifeline
        if lifeline is not None:
            lifeline.cut(self)

    def outcome(
        self,
        status: int | None = None,
        error: str | None = None,
        refused: bool = False,
        retry_after: str | None = None,
        body: bytes = b"",
    ) -> Outcome:
        """Complete what was met with the address and the times."""
        first_byte_ms = None if self.first_byte_at is None else milliseconds(self.first_byte_at - self.began_at)
        total_ms = milliseconds(time.monotonic() - self.began_at)
        dialed = self.timings
        timings = Timings(dialed.dns_ms, dialed.connect_ms, dialed.tls_ms, first_byte_ms, total_ms)
        return Outcome(status, error, refused, retry_after, body, self.address, timings)


class Lifeline:
    """A connected socket that the watchdog can shut down while somebody else waits for it.

    Two things must not happen: that the number of a socket that is just being closed is shut down as somebody else's, for
    which there is the lock; and that an exchange which ends at its deadline takes the connection from the next. For that a
    connection is let go first, then the clock is read, and what is past the deadline is not kept: whoever cuts has seen the
    deadline pass while the connection was held. So taking and letting go need no lock, a thousand times a second.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        #: The exchange that uses the connection.
        self.holder: Exchange | None = None
        self._lock = threading.Lock()

    def cut(self, exchange: Exchange) -> None:
        """End the connection, if it is still `exchange` that uses it."""
        with self._lock:
            if self.holder is exchange:
                # The peer may have been faster: then the connection is gone already, which is what we want.
                with suppress(OSError):
                    # The plain socket's: that of TLS would forget its session under the thread that reads.
                    socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def let_go(self, exchange: Exchange) -> bool:
        """End the use of the connection; tell whether another exchange may use it."""
        self.holder = None
        return time.monotonic() < exchange.deadline

    def replace(self, wrap: Callable[[socket.socket], socket.socket]) -> None:
        """Go on with what `wrap` makes of the socket; it takes the number over, and is cut from now on."""
        with self._lock:
            self.socket = wrap(self.socket)

    def close(self) -> None:
        with self._lock:
            self.socket.close()


class Watchdog:
    """Ends exchanges whose deadline has passed; asleep while there are none.

    `tidy` is called every `tidy_every_s`, to close what nobody uses, until it answers that nothing is kept.
    """

    def __init__(self, tidy: Callable[[], bool], tidy_every_s: float) -> None:
        self._tidy = tidy
        self._tidy_every_s = tidy_every_s
        self._exchanges: dict[int, Exchange] = {}
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def watch(self, exchange: Exchange) -> None:
        """End the exchange should its deadline pass."""
        self._start()
        self._exchanges[id(exchange)] = exchange
        if not self._some.is_set():
            self._some.set()

    def forget(self, exchange: Exchange) -> None:
        """It has ended."""
        del self._exchanges[id(exchange)]

    def _start(self) -> None:
        if not self._is_awake():
            with self._lock:
                if not self._is_awake():
                    self._thread = threading.Thread(target=self._run, name="deadline-watchdog", daemon=True)
                    self._thread.start()

    def _is_awake(self) -> bool:
        # A fork leaves it behind, and a fault in `tidy` would end it: without one there is no deadline.
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        is_kept, tidy_at = True, time.monotonic() + self._tidy_every_s
        while True:
            if self._some.wait(self._tidy_every_s if is_kept else None):
                is_kept = True
                time.sleep(_WATCH_S)
                self._look()
            if time.monotonic() >= tidy_at:
                is_kept = self._tidy()
                tidy_at = time.monotonic() + self._tidy_every_s

    def _look(self) -> None:
        now = time.monotonic()
        # A copy is made in one step; other threads come and go meanwhile.
        for exchange in self._exchanges.copy().values():
            if now >= exchange.deadline:
                exchange.expire()
        if not self._exchanges:
            self._some.clear()
            # Whoever came between the look and the clear is seen now.
            if self._exchanges:
                self._some.set()


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds."""
    return round(seconds * 1000)


_NOTHING_TIMED: Final = Timings()
