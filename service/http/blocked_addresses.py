"""Addresses that failed to authenticate too often, and for how long nothing of theirs is looked at.

A guess that is looked at is a guess, whatever it is answered: the right one would be let in. So failures of an address are
counted one after the other, and who has authenticated meanwhile waits for those before him: of a thousand guesses sent at
once, as many tell something as the limit says. An address that was blocked is let in anew only as long as its window has
room, over all processes, and is blocked again by the failure that takes the last of it.

Honest clients of a blocked address are refused as well: nobody can tell them from the one who guesses.
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
from service.http.bounded_cache import BoundedCache
from service.http.rate_counters import CLOCK_RESOLUTION_S, Clock, RateLimitCounters, RateLimitWindow

#: What the windows of addresses are called.
_KIND: Final = "address"

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Block:
    """Until when an address is refused; once that is over, it is let in while its window has room."""

    until: float = -math.inf


@dataclass(slots=True)
class _FailureCount:
    """Who counts a failure of one address now, and how many want to or wait for it."""

    lock: Lock = field(default_factory=Lock)
    users: int = 0


class BlockedAddresses:
    """Counts failures against `limit`; `clock` are the monotonic seconds of the process."""

    def __init__(self, limit: RateLimitItemPerSecond, counters: RateLimitCounters, clock: Clock) -> None:
        self._limit = limit
        self._counters = counters
        self._clock = clock
        self._blocks: BoundedCache[_Block] = BoundedCache()
        # One for each address that a request at work has failed from: no more than there are connections.
        self._failure_counts: dict[str, _FailureCount] = {}
        self._lock = Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no address is blocked, was blocked a moment ago, or has a failure counted now."""
        return not (self._blocks or self._failure_counts)

    def require_unblocked(self, address: str) -> None:
        """Raises RateLimited for an address that failed too often, and where its window is full over all processes."""
        block = self._blocks.get(address)
        if block is None:
            return
        self._require_over(block)
        with self._serialized(address):
            # Whoever came first has looked.
            self._require_over(block)
            self._refresh_block(address, block)
            self._require_over(block)

    def require_still_unblocked(self, address: str) -> None:
        """The same for whoever has authenticated, after the failures that were there before. Raises RateLimited."""
        if address in self._failure_counts:
            with self._serialized(address):
                pass
        block = self._blocks.get(address)
        if block is not None:
            self._require_over(block)

    def count(self, address: str) -> None:
        """Count a failure. Raises RateLimited beyond the limit."""
        with self._serialized(address):
            was_blocked = self._blocks.get(address)
            if was_blocked is not None:
                self._require_over(was_blocked)
            count, window = self._counters.take(self._limit, _KIND, address, 1)
            if not count:
                # Other processes learn it with the first failure that this address makes there.
                block = self._blocks.keep(address, _Block())
                self._close(block, window)
                _log.warning("an address failed to authenticate too often")
                self._require_over(block)
            elif was_blocked is not None:
                # The next one is not looked at to find out that it is one too many.
                self._refresh_block(address, was_blocked)

    def _refresh_block(self, address: str, block: _Block) -> None:
        """Go by the window as it is, over all processes: forget a block of which nothing is left, renew one that is full."""
        window = self._counters.look(self._limit, _KIND, address)
        if window.remaining == window.limit:
            self._blocks.forget(address)
        elif not window.remaining:
            self._close(block, window)

    def _close(self, block: _Block, window: RateLimitWindow) -> None:
        block.until = self._clock() + window.opens_in_s + CLOCK_RESOLUTION_S

    def _require_over(self, block: _Block) -> None:
        wait_s = block.until - self._clock()
        if wait_s > 0:
            raise RateLimited(max(1, math.ceil(wait_s)))

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
