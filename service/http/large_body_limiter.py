"""Bodies that cost: a process keeps so many bytes of them, and reads one at a time.

To parse and check a megabyte takes up to a second of the processor and tens of megabytes. One client may send ten a second,
and everybody whom the process serves would wait for each. So large bodies take turns, sender by sender, and whoever has the
turn gives way to small requests between parts of the work. One that finds no room, or no turn in time, is answered 503: it
may come again. Small bodies are counted by nobody; the bound on connections is one on them.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from schemas.base.errors import ServiceUnavailable

#: Up to here a body takes 25 ms at the worst, and a thousand of them, one a connection, 16 MiB.
LARGE_BYTES: Final = 16 * 1024
#: What may have come of large bodies that wait or are answered: sixty of the largest there are by default.
MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
#: The same of bodies that are read before anybody is known by them, so that nobody without a secret fills the others' room.
MAX_UNAUTHENTICATED_BYTES: Final = 16 * 1024 * 1024
#: Whoever waits for longer has hung up, or soon will.
MAX_WAIT_S: Final = 10.0
#: How long others wait before they have their turn, unless a single text takes longer: a postback of a hundred issues.
_MAX_UNYIELDED_S: Final = 0.02
#: How long they have it: a poll takes half a dozen rounds of gevent's loop, 2 ms.
_YIELD_S: Final = 0.002
#: A turn takes a second or two.
_COME_AGAIN_S: Final = 2


class LargeBodyOverload(ServiceUnavailable):
    """The server is processing too many large bodies; retry after the number of seconds in Retry-After."""

    retry_after_s = _COME_AGAIN_S


class ByteBudget:
    """How many bytes of large bodies a process keeps."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept = 0
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """What is kept now."""
        return self._kept

    def reserve(self, more_bytes: int) -> None:
        """Count bytes that have come. Raises NoRoom, and counts none of them, where they are too many."""
        with self._lock:
            if self._kept + more_bytes > self._most_bytes:
                raise LargeBodyOverload
            self._kept += more_bytes

    def release(self, reserved_bytes: int) -> None:
        """Count bytes no longer."""
        with self._lock:
            self._kept -= reserved_bytes


@dataclass(frozen=True, slots=True)
class BodyBudgets:
    """Room for bodies whose senders are known, and for those that say only when they are read who sends them."""

    known: ByteBudget
    unknown: ByteBudget

    @classmethod
    def for_bodies_of(cls, max_body_bytes: int) -> "BodyBudgets":
        """Return rooms that one body has a place in, however large an installation lets it be."""
        return cls(
            ByteBudget(max(MAX_BUFFERED_BYTES, max_body_bytes)), ByteBudget(max(MAX_UNAUTHENTICATED_BYTES, max_body_bytes))
        )


class LargeBodyQueue:
    """Who is reading a large body: one at a time, of those that wait each sender's first in turns."""

    def __init__(self, within_s: float = MAX_WAIT_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._is_busy = False
        #: Those who wait, by sender, the sender whose turn is next first; no sender stands here without one who waits.
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()

    @contextmanager
    def slot(self, sender: str, body_bytes: int) -> Iterator[Callable[[], None]]:
        """Wait for the turn where the body is large; yields what to call between parts of the work.

        The caller holds no connection to the database. Raises NoRoom where the turn does not come in time.
        """
        if body_bytes <= LARGE_BYTES:
            yield _go_on
            return
        self._acquire(sender)
        try:
            yield _GiveWay()
        finally:
            with self._lock:
                self._release()

    def _acquire(self, sender: str) -> None:
        mine = threading.Event()
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                return
            self._waiting.setdefault(sender, deque()).append(mine)
        if mine.wait(self._within_s):
            return
        with self._lock:
            if mine.is_set():
                # It came at this very moment.
                return
            self._leave_queue(sender, mine)
        raise LargeBodyOverload

    def _leave_queue(self, sender: str, waiting: threading.Event) -> None:
        line = self._waiting[sender]
        line.remove(waiting)
        if not line:
            del self._waiting[sender]

    def _release(self) -> None:
        """Give the turn to whoever is next, and the sender of that one the last place. The lock is held."""
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            sender, line = self._waiting.popitem(last=False)
            line.popleft().set()
            if line:
                self._waiting[sender] = line


def _go_on() -> None:
    """Give way to nobody: it is over at once."""


class _GiveWay:
    """Lets others go on after each stretch of work; gevent's `sleep(0)` would come back before anybody had been heard."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._since > _MAX_UNYIELDED_S:
            time.sleep(_YIELD_S)
            self._since = time.monotonic()
