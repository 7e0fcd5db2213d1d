"""Limits large bodies: how many bytes a process buffers, and to one body that is processed at a time.

Parsing and checking a megabyte takes up to a second of CPU time and tens of megabytes of memory. A client may send ten a
second, and every other request would wait. So large bodies are queued, and their senders are served in turn. The body in
progress yields to small requests between parts of the work. A body for which the buffer has no room, or that is not served
in time, gets 503 and can be retried. Small bodies are not counted, because the limit on connections bounds them.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import ServiceUnavailable

#: Bodies above this size are large. A body of this size takes 25 ms at worst; a thousand of them, one per connection, take
#: 16 MiB.
LARGE_BYTES: Final = 16 * 1024
#: Maximum bytes of large bodies that wait or are processed: sixty bodies of the default maximum size.
MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
#: Maximum bytes of large bodies that are read before authentication. The separate budget keeps a sender without a secret
#: from using up the other senders' budget.
MAX_UNAUTHENTICATED_BYTES: Final = 16 * 1024 * 1024
#: Maximum wait for a slot. After this time a client has disconnected, or soon will.
MAX_WAIT_S: Final = 10.0
#: Maximum time that other requests wait before this body yields, unless one text takes longer. A postback of a hundred
#: issues takes this long.
_MAX_UNYIELDED_S: Final = 0.02
#: Length of a pause: a poll takes half a dozen iterations of gevent's loop, which is 2 ms.
_YIELD_S: Final = 0.002
#: The value of Retry-After: a large body takes a second or two.
_RETRY_AFTER_S: Final = 2


class LargeBodyOverload(ServiceUnavailable):
    """The server is processing too many large bodies; retry after the number of seconds in Retry-After."""

    retry_after_s = _RETRY_AFTER_S


class ByteBudget:
    """Counts the bytes of large bodies that a process buffers."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.reserved_bytes = 0
        self._lock = threading.Lock()

    def reserve(self, more_bytes: int) -> None:
        """Reserve bytes that have arrived. Raises LargeBodyOverload, without reserving any, if they exceed the budget."""
        with self._lock:
            if self.reserved_bytes + more_bytes > self._most_bytes:
                raise LargeBodyOverload
            self.reserved_bytes += more_bytes

    def release(self, reserved_bytes: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self.reserved_bytes -= reserved_bytes


@dataclass(frozen=True, slots=True)
class BodyBudgets:
    """The budgets for bodies of authenticated senders, and for bodies that are read before authentication."""

    authenticated: ByteBudget
    unauthenticated: ByteBudget

    @classmethod
    def for_bodies_of(cls, max_body_bytes: int) -> "BodyBudgets":
        """Return budgets with room for at least one body of the installation's maximum size."""
        return cls(
            ByteBudget(max(MAX_BUFFERED_BYTES, max_body_bytes)), ByteBudget(max(MAX_UNAUTHENTICATED_BYTES, max_body_bytes))
        )


class LargeBodyQueue:
    """Processes one large body at a time; serves senders round-robin, and the bodies of each in order of arrival."""

    def __init__(self, within_s: float = MAX_WAIT_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._is_busy = False
        #: Waiting bodies by sender, the next sender first; a sender without waiting bodies is absent.
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()

    @contextmanager
    def slot(self, sender: str, body_bytes: int) -> Iterator[Checkpoint]:
        """Wait for a slot if the body is large; yield a function to call between parts of the work.

        The caller must hold no database connection. Raises LargeBodyOverload if no slot becomes free in time.
        """
        if body_bytes <= LARGE_BYTES:
            yield no_checkpoint
            return
        self._acquire(sender)
        try:
            yield _YieldPoint()
        finally:
            with self._lock:
                self._release()

    def _acquire(self, sender: str) -> None:
        granted = threading.Event()
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                return
            self._waiting.setdefault(sender, deque()).append(granted)
        if granted.wait(self._within_s):
            return
        with self._lock:
            if granted.is_set():
                # The slot was granted just after the wait timed out.
                return
            self._waiting[sender].remove(granted)
            if not self._waiting[sender]:
                del self._waiting[sender]
        raise LargeBodyOverload

    def _release(self) -> None:
        """Grant the slot to the first body of the next sender, and move that sender to the end. Call with the lock held."""
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            sender, queue = self._waiting.popitem(last=False)
            queue.popleft().set()
            if queue:
                self._waiting[sender] = queue


class _YieldPoint:
    """Lets other greenlets run at intervals. It sleeps, because gevent's `sleep(0)` returns before sockets are polled."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._since > _MAX_UNYIELDED_S:
            time.sleep(_YIELD_S)
            self._since = time.monotonic()
