"""The queue that wakes the dispatcher: results from the sender pool, and wake-ups.

One queue for both, so that either ends the wait for the other, and a simple one, because a signal handler may put into it at
any moment.
"""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from schemas.exports.delivery import Claim, CompletedAttempt


class SendResult(NamedTuple):
    """A claim that the sender pool has returned: with its attempt, unsent, or with neither if the attempt crashed.

    `pauses_queue`: the target's queue stays closed until this result is committed.
    """

    claim: Claim
    attempt: CompletedAttempt | None = None
    is_unsent: bool = False
    pauses_queue: bool = False


class Inbox:
    """Passes results and wake-ups to the dispatcher's thread, which alone takes from it."""

    def __init__(self, on_wake_up: Callable[[], None]) -> None:
        self._on_wake_up = on_wake_up
        #: A wake-up is an event that is set once the work is done, or None if no caller waits for that.
        self._queue: queue.SimpleQueue[SendResult | threading.Event | None] = queue.SimpleQueue()
        #: Callers of wake-ups that were taken: they are released when the scan that follows is done.
        self._callers: list[threading.Event] = []

    def put(self, result: SendResult) -> None:
        """Add a result."""
        self._queue.put(result)

    def wake(self) -> None:
        """Wake the dispatcher. Takes no lock, so that a signal handler may call it."""
        self._queue.put(None)

    def wake_and_wait(self, timeout_s: float) -> bool:
        """Wake the dispatcher and wait until nothing is due, at most `timeout_s` seconds; return False after the timeout."""
        # A new event per call: a scan that began before this wake-up may end after it without seeing what is due now.
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def is_empty(self) -> bool:
        """Return whether there is neither a result nor a wake-up."""
        return self._queue.empty()

    def take(self, timeout_s: float) -> SendResult | None:
        """Return the next result; None if a wake-up or nothing arrived within `timeout_s` seconds."""
        try:
            item = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, SendResult):
            return item
        if item is not None:
            self._callers.append(item)
        self._on_wake_up()
        return None

    def take_wake_ups(self) -> None:
        """Take all queued wake-ups. Call it only while nothing is being sent: results in the queue would be lost."""
        while not self._queue.empty():
            self.take(0)

    def release_callers(self) -> None:
        """Release the callers of the wake-ups that were taken."""
        for done in self._callers:
            done.set()
        self._callers.clear()
