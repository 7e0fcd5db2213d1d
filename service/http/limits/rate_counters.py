"""Sliding-window counters in Redis, so that one limit holds over all processes.

The count of the previous period fades evenly during the current one, so that a burst at a period's edge gets no second
limit.

While Redis is down each process counts for itself: no request is refused because of it, and few wait for it.
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

#: A Redis on the same machine answers in a fifth of a millisecond; a request waits no longer than this for one that hangs.
_REDIS_TIMEOUT_S: Final = 0.25
#: Seconds without requests to Redis after a failure: a hanging Redis delays one request in this time by its timeout.
_REDIS_RETRY_S: Final = 5.0
#: The most principals and addresses in memory, some hundred bytes each; forgotten ones are still counted in Redis.
MAX_CACHED_KEYS: Final = 10_000

#: Redis counts whole milliseconds: a window has room one millisecond later than it reports.
CLOCK_RESOLUTION_S: Final = 0.001

Clock: TypeAlias = Callable[[], float]
Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimitWindow:
    """A sliding window: the count of the current period, and that of the previous one, which fades evenly."""

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
        """Seconds until one more request is allowed, unless another client is quicker."""
        if self.remaining:
            return 0.0
        # By then one request of the previous period has faded; if none is left, the current period has ended.
        return self.fades_in_s % (self.period_s / self.previous) if self.previous else self.ends_in_s


class RateLimitCounters:
    """The sliding windows: in Redis, or in this process while Redis is down."""

    def __init__(self, redis_url: str, most_connections: int, clock: Clock) -> None:
        # No command is retried: after a failure the process counts in memory.
        self._client = redis_client.connect(redis_url, _REDIS_TIMEOUT_S, most_connections)
        # The pool holds the address of Redis; the storage takes only the kind of server from the URL.
        self._redis = RedisStorage(
            "redis://", connection_pool=self._client.connection_pool, key_prefix="riskrelay", wrap_exceptions=True
        )
        #: Made when Redis is first down: it starts a thread, which a fork would leave behind.
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

    def take(self, item: RateLimitItemPerSecond, kind: str, key: str, share: int) -> tuple[int, RateLimitWindow]:
        """Count up to `share` requests and return how many, with the window before; 0 and the window if it is full."""
        return self._ask_redis_or_memory(lambda storage: _reserve(storage, item, (kind, key), share))

    def look(self, item: RateLimitItemPerSecond, kind: str, key: str) -> RateLimitWindow:
        """Return the window without counting."""
        return self._ask_redis_or_memory(lambda storage: _window(storage, item, (kind, key)))

    def _ask_redis_or_memory(self, ask: Callable[["RedisStorage | MemoryStorage"], Result]) -> Result:
        """Return the reply of Redis; while it is down, that of the counters in this process."""
        if self._may_use_redis():
            try:
                result = ask(self._redis)
            except StorageError as error:
                self._outage.record_failure(error.__cause__ or error)
                self._down_until = self._clock() + _REDIS_RETRY_S
            else:
                self._down_until = None
                self._outage.record_success()
                return result
        return ask(self._in_memory())

    def _may_use_redis(self) -> bool:
        with self._lock:
            if self._down_until is None:
                return True
            now = self._clock()
            if now < self._down_until:
                return False
            # This request finds out whether Redis is back; the others do not wait.
            self._down_until = now + _REDIS_RETRY_S
            return True

    def _in_memory(self) -> MemoryStorage:
        with self._lock:
            # The storage scans its keys every 10 ms: a flood of addresses must not fill it. Forgetting is the lesser harm.
            if self._memory is None or len(self._memory.expirations) > MAX_CACHED_KEYS:
                self._memory = MemoryStorage()
            return self._memory


def _reserve(
    storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, who: tuple[str, str], share: int
) -> tuple[int, RateLimitWindow]:
    """Return how many requests were reserved, up to `share` or none, and the window that they count in."""
    limiter = SlidingWindowCounterRateLimiter(storage)
    # The window is read first: if the period ends before the hit, the reservation ends with the period that was read.
    window = _window(storage, item, who)
    for cost in (min(share, window.remaining), 1):
        if cost and limiter.hit(item, *who, cost=cost):
            return cost, window
    return 0, _window(storage, item, who)


def _window(storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, who: tuple[str, str]) -> RateLimitWindow:
    """Read the window; the rate limiter itself returns only the next change, in wall time."""
    period_s = item.get_expiry()
    previous, fades_in_s, current, expires_in_s = storage.get_sliding_window(item.key_for(*who), period_s)
    # A count lives for two periods, in the second as the previous one. Without a count the period begins with the first.
    ends_in_s = max(0.0, expires_in_s - period_s) if expires_in_s else float(period_s)
    return RateLimitWindow(item.amount, period_s, previous, fades_in_s, current, ends_in_s)
