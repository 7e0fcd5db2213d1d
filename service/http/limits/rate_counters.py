"""Sliding-window counters in Redis, so that one limit applies across all processes.

The count of the previous period fades evenly during the current one. So a burst at the edge of a period cannot use the limit
twice.

While Redis is down, each process counts on its own: no request is refused because of the outage, and few wait for it.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from limits import RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from runtime import redis_client
from runtime.outages import Outage

#: Maximum time that a request waits for an unresponsive Redis. A Redis on the same machine responds in 0.2 ms.
_REDIS_TIMEOUT_S: Final = 0.25
#: Seconds without requests to Redis after a failure. An unresponsive Redis delays one request in this time, by its timeout.
_REDIS_RETRY_S: Final = 5.0
#: Maximum number of principals and addresses in memory, some hundred bytes each; Redis still counts those that were dropped.
MAX_CACHED_KEYS: Final = 10_000

#: Redis counts whole milliseconds, so a window has room one millisecond later than Redis reports.
CLOCK_RESOLUTION_S: Final = 0.001

Clock: TypeAlias = Callable[[], float]
Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimitWindow:
    """A sliding window: the count of the current period, and the count of the previous period, which fades evenly."""

    limit: int
    period_s: int
    previous: int
    fades_in_s: float
    current: int
    ends_in_s: float

    @property
    def remaining(self) -> int:
        """How many more requests are allowed now."""
        return max(0, self.limit - math.floor(self.previous * self.fades_in_s / self.period_s) - self.current)

    @property
    def opens_in_s(self) -> float:
        """Seconds until one more request is allowed, unless another client uses it first."""
        if self.remaining:
            return 0.0
        # After this time one request of the previous period has faded, or, if none is left, the current period has ended.
        return self.fades_in_s % (self.period_s / self.previous) if self.previous else self.ends_in_s


class RateLimitCounters:
    """The sliding windows in Redis, or in this process while Redis is down."""

    def __init__(self, redis_url: str, most_connections: int, clock: Clock) -> None:
        # No command is retried: after a failure the process counts in memory.
        self._client = redis_client.connect(redis_url, _REDIS_TIMEOUT_S, most_connections)
        # The connection pool has the address of Redis; the storage uses the URL only for the kind of server.
        self._redis = RedisStorage(
            "redis://", connection_pool=self._client.connection_pool, key_prefix="riskrelay", wrap_exceptions=True
        )
        #: Created when Redis is first down. It starts a thread, which a fork would not copy to the child.
        self._memory: MemoryStorage | None = None
        self._clock = clock
        self._lock = Lock()
        self._down_until: float | None = None
        self._outage = Outage(
            _log,
            "Redis unavailable: each process counts rate limits for itself",
            "Redis available again: rate limits hold over all processes",
            clock,
        )

    def count(self, item: RateLimitItemPerSecond, kind: str, key: str, share: int) -> tuple[int, RateLimitWindow]:
        """Count up to `share` requests; return how many were counted, and the window before.

        If the window is full, return 0 and the window.
        """
        return self._use_redis_or_memory(lambda storage: _reserve(storage, item, (kind, key), share))

    def read_window(self, item: RateLimitItemPerSecond, kind: str, key: str) -> RateLimitWindow:
        """Return the window without counting a request."""
        return self._use_redis_or_memory(lambda storage: _window(storage, item, (kind, key)))

    def _use_redis_or_memory(self, use: Callable[["RedisStorage | MemoryStorage"], Result]) -> Result:
        """Return the result of Redis; while Redis is down, the result of the counters in this process."""
        if self._may_use_redis():
            try:
                result = use(self._redis)
            except StorageError as error:
                self._outage.record_failure(error.__cause__ or error)
                self._down_until = self._clock() + _REDIS_RETRY_S
            else:
                self._down_until = None
                self._outage.record_success()
                return result
        return use(self._in_memory())

    def _may_use_redis(self) -> bool:
        with self._lock:
            if self._down_until is None:
                return True
            now = self._clock()
            if now < self._down_until:
                return False
            # This request checks whether Redis is available again; the other requests do not wait.
            self._down_until = now + _REDIS_RETRY_S
            return True

    def _in_memory(self) -> MemoryStorage:
        with self._lock:
            # The storage scans its keys every 10 ms, so a flood of addresses must not fill it. Losing the counts is the
            # lesser harm.
            if self._memory is None or len(self._memory.expirations) > MAX_CACHED_KEYS:
                self._memory = MemoryStorage()
            return self._memory


def _reserve(
    storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, key: tuple[str, str], share: int
) -> tuple[int, RateLimitWindow]:
    """Reserve up to `share` requests. Return how many were reserved, and the window in which they count."""
    limiter = SlidingWindowCounterRateLimiter(storage)
    # Read the window first. If the period ends before the hit, the reservation then ends with the period that was read.
    window = _window(storage, item, key)
    for cost in (min(share, window.remaining), 1):
        if cost and limiter.hit(item, *key, cost=cost):
            return cost, window
    return 0, _window(storage, item, key)


def _window(storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, key: tuple[str, str]) -> RateLimitWindow:
    """Read the window; the rate limiter itself returns only the time of the next change, in wall time."""
    period_s = item.get_expiry()
    previous, fades_in_s, current, expires_in_s = storage.get_sliding_window(item.key_for(*key), period_s)
    # A count is kept for two periods; in the second it is the previous count. Without a count, the period begins with the
    # first request.
    ends_in_s = max(0.0, expires_in_s - period_s) if expires_in_s else float(period_s)
    return RateLimitWindow(item.amount, period_s, previous, fades_in_s, current, ends_in_s)
