"""What many threads miss at once is told once: when it goes, once a minute while it is gone, and when it is back."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

#: How often something that stays away is told again.
REMIND_S: Final = 60.0
#: What answers some and refuses others is away still; it is back when nobody has missed it for so long.
WELL_FOR_S: Final = 5.0


class Outage:
    """The absence of one thing, such as the database; one for all threads of a process.

    `gone` and `back` are the lines that `log` gets; without `back` its return is not told.
    """

    def __init__(
        self, log: logging.Logger, gone: str, back: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._gone = gone
        self._back = back
        self._clock = clock
        self._lock = threading.Lock()
        self._missed_at: float | None = None
        self._told_at = 0.0

    def note(self, error: BaseException | None = None) -> None:
        """It was missed just now; the line names the kind of the error."""
        now = self._clock()
        with self._lock:
            is_news = self._missed_at is None or now - self._told_at >= REMIND_S
            self._missed_at = now
            self._told_at = now if is_news else self._told_at
        if is_news:
            self._log.warning(self._gone, extra={"error": None if error is None else type(error).__name__})

    def over(self) -> None:
        """It was there just now."""
        # Nearly always so, and asked after every piece of work: without the lock.
        if self._missed_at is not None and self._has_returned() and self._back is not None:
            self._log.info(self._back)

    def _has_returned(self) -> bool:
        """Forget that it was away, once it has been there for a while; True for the one thread that did."""
        with self._lock:
            has_returned = self._missed_at is not None and self._clock() - self._missed_at >= WELL_FOR_S
            if has_returned:
                self._missed_at = None
        return has_returned
