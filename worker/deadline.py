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

from schemas.delivery import Outcome, Timings

#: How late the watchdog may notice that a deadline has passed.
_WATCH_S: Final = 0.05

#: The exchange of this thread; urllib3 opens sockets deep inside and takes no word for them.
_here: Final = threading.local()


def current() -> "Exchange":
    """Return the exchange that this thread is making."""
    exchange: Exchange = _here.exchange
    return exchange


class Exchange:
    """One request under its deadline: the connection it uses and how long its parts took."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.began_at = time.monotonic()
        self.address: str | None = None
        self.timings = Timings()
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
        lifeline.hold(self)
        self._lifeline, self.address = lifeline, address
        if self._expired:
            # The watchdog came while there was nothing yet that it could shut, and does not come twice.
            lifeline.cut(self)

    def expire(self) -> None:
        """Shut the connection down under whoever waits for it."""
        self._expired = True
        if self._lifeline is not None:
            self._lifeline.cut(self)

    def end(self) -> None:
        if self._lifeline is not None:
            self._lifeline.let_go(self)

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
        dialled = self.timings
        timings = Timings(dialled.dns_ms, dialled.connect_ms, dialled.tls_ms, first_byte_ms, total_ms)
        return Outcome(status, error, refused, retry_after, body, self.address, timings)


class Lifeline:
    """A second descriptor of a connection, by which it can be shut down whoever has the first.

    TLS takes the first one over, and so does an answer that ends its connection: both outlive what urllib3 calls closed. The
    exchange that used the connection last holds the line; what an earlier one asks for too late must not hit it. The lock
    keeps a number that is just being closed from being shut down as somebody else's.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected.dup()
        self._lock = threading.RLock()  # the garbage collector may close a pool in the middle of ours
        self._holder: Exchange | None = None
        self._is_needed = True

    def hold(self, exchange: Exchange) -> None:
        with self._lock:
            self._holder = exchange

    def cut(self, exchange: Exchange) -> None:
        """End the connection, if it is still `exchange` that uses it."""
        with self._lock:
            if self._holder is exchange:
                # The peer may have been faster: then the connection is gone already, which is what we want.
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def let_go(self, exchange: Exchange) -> None:
        with self._lock:
            if self._holder is exchange:
                self._holder = None
                self._close_if_unused()

    def close(self) -> None:
        """The connection is closed; an exchange that still reads from it keeps the line until its end."""
        with self._lock:
            self._is_needed = False
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._holder is None and not self._is_needed:
            self._socket.close()


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
        """Make it this thread's exchange, and end it should its deadline pass."""
        self._start()
        _here.exchange = exchange
        self._exchanges[id(exchange)] = exchange
        if not self._some.is_set():
            self._some.set()

    def forget(self, exchange: Exchange) -> None:
        """It has ended."""
        del self._exchanges[id(exchange)]
        exchange.end()
        _here.exchange = None

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
