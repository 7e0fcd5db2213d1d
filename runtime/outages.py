"""Logs an outage that many threads notice once: at its start, once a minute while it lasts, and at its end."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

#: How often a continuing outage is logged again.
REMIND_S: Final = 60.0
#: A dependency that serves some requests and fails others is still out; it is back after this long without a failure.
STABLE_FOR_S: Final = 5.0


class Outage:
    """The outage of one dependency, such as the database; one for all threads of a process.

    `gone` and `back` are the messages that are logged; without `back` the end is not logged.
    """

    def __init__(
        self, log: logging.Logger, gone: str, back: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._gone = gone
        self._back = back
        self._clock = clock
        self._lock = threading.Lock()
        self._failed_at: float | None = None
        self._logged_at = 0.0

    def record_failure(self, error: BaseException | None = None) -> None:
        """Record a failure; logs the type of `error` at the start of the outage, then once a minute."""
        now = self._clock()
        with self._lock:
            is_news = self._failed_at is None or now - self._logged_at >= REMIND_S
            self._failed_at = now
            self._logged_at = now if is_news else self._logged_at
        if is_news:
            self._log.warning(self._gone, extra={"error": None if error is None else type(error).__name__})

    def record_success(self) -> None:
        """Record a success."""
        # Called after every piece of work, nearly always without an outage, so the first check takes no lock.
        if self._failed_at is not None and self._has_ended() and self._back is not None:
            self._log.info(self._back)

    def _has_ended(self) -> bool:
        """End the outage after a while without failures; True for the one thread that ends it."""
        with self._lock:
            has_ended = self._failed_at is not None and self._clock() - self._failed_at >= STABLE_FOR_S
            if has_ended:
                self._failed_at = None
        return has_ended
