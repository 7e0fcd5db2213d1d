"""Blocks addresses that fail to authenticate too often.

A correct guess of a credential is accepted, so every check must count. Failures of one address are counted one after the
other, and a successful request waits for the failures before it. So if a client sends a thousand guesses at once, it learns
the results of only as many as the limit allows. After a block, an address is admitted while its window, shared by all
processes, has room; the failure that fills the window blocks the address again.

Honest clients of a blocked address are refused as well, because they cannot be distinguished from the attacker.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from limits import RateLimitItemPerSecond

from schemas.base.errors import RateLimited
from service.http.limits.rate_counters import CLOCK_RESOLUTION_S, MAX_CACHED_KEYS, Clock, RateLimitCounters, RateLimitWindow

#: The name of the addresses' windows in the counters.
_KIND: Final = "address"

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _FailureCount:
    """Serializes the failures of one address; `users` counts the requests that hold the lock or wait for it."""

    lock: Lock = field(default_factory=Lock)
    users: int = 0


class BlockedAddresses:
    """Counts failures of each address against `limit`; `clock` returns monotonic seconds."""

    def __init__(self, limit: RateLimitItemPerSecond, counters: RateLimitCounters, clock: Clock) -> None:
        self._limit = limit
        self._counters = counters
        self._clock = clock
        #: The time until which each blocked address is refused; afterwards the address is admitted while its window has
        #: room. Only the newest MAX_CACHED_KEYS are kept, oldest first: an attacker with many addresses must not fill the
        #: memory.
        self._blocked_until: dict[str, float] = {}
        # One entry per address with a failing request in progress, so never more entries than connections.
        self._failure_counts: dict[str, _FailureCount] = {}
        self._lock = Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no address is or was recently blocked, and no failure is being counted."""
        return not (self._blocked_until or self._failure_counts)

    def require_unblocked(self, address: str) -> None:
        """Raise RateLimited for an address that failed too often, or whose window over all processes is full."""
        if address not in self._blocked_until:
            return
        self._require_over(address)
        with self._serialized(address):
            # The request before this one may have refreshed the block.
            self._require_over(address)
            self._refresh_block(address)
            self._require_over(address)

    def require_still_unblocked(self, address: str) -> None:
        """Like `require_unblocked`, for an authenticated request; first wait until earlier failures are counted."""
        if address in self._failure_counts:
            with self._serialized(address):
                pass
        self._require_over(address)

    def count(self, address: str) -> None:
        """Count a failure. Raises RateLimited beyond the limit."""
        with self._serialized(address):
            was_blocked = address in self._blocked_until
            self._require_over(address)
            count, window = self._counters.count(self._limit, _KIND, address, 1)
            if not count:
                # Other processes find the block when this address first fails there.
                self._block(address, window)
                _log.warning("an address failed to authenticate too often")
                self._require_over(address)
            elif was_blocked:
                # Refresh the block now, so that the next request is refused before its credential is checked.
                self._refresh_block(address)

    def _block(self, address: str, window: RateLimitWindow) -> None:
        with self._lock:
            self._blocked_until[address] = self._clock() + window.opens_in_s + CLOCK_RESOLUTION_S
            if len(self._blocked_until) > MAX_CACHED_KEYS:
                del self._blocked_until[next(iter(self._blocked_until))]

    def _refresh_block(self, address: str) -> None:
        """Read the window over all processes: remove the block if the window is empty, renew it if the window is full."""
        window = self._counters.read_window(self._limit, _KIND, address)
        if window.remaining == window.limit:
            self._blocked_until.pop(address, None)
        elif not window.remaining:
            self._block(address, window)

    def _require_over(self, address: str) -> None:
        until = self._blocked_until.get(address)
        if until is not None and (wait_s := until - self._clock()) > 0:
            raise RateLimited(max(1, math.ceil(wait_s)), "AUTH_FAILURES_PER_MINUTE", self._limit.amount)

    @contextmanager
    def _serialized(self, address: str) -> Iterator[None]:
        with self._lock:
            failure_count = self._failure_counts.setdefault(address, _FailureCount())
            failure_count.users += 1
        try:
            with failure_count.lock:
                yield
        finally:
            with self._lock:
                failure_count.users -= 1
                if not failure_count.users:
                    del self._failure_counts[address]
