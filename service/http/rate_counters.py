"""The counts behind the limits: sliding windows in Redis, so that all processes keep one limit.

The count of the period before fades evenly while the present one runs, so a burst over a period's edge gets no second limit.

Redis away means that each process counts for itself. Nobody is refused because of it, and nobody waits for it each time.
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

#: A Redis on the same machine answers in a fifth of a millisecond; a request waits no longer than this for one that hangs.
_REDIS_TIMEOUT_S: Final = 0.25
#: How long nobody asks a Redis that failed: a hanging one then costs one request in this time its timeout.
_REDIS_RETRY_S: Final = 5.0
#: Principals and addresses in memory, some hundred bytes each; whoever is forgotten is counted on in Redis.
MAX_CACHED_KEYS: Final = 10_000

#: Redis counts whole milliseconds: a window is open one later than it says.
CLOCK_RESOLUTION_S: Final = 0.001

Clock: TypeAlias = Callable[[], float]
Told = TypeVar("Told")

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimitWindow:
    """A sliding window: the count of the present period, and that of the one before, which fades evenly."""

    limit: int
    period_s: int
    before: int
    fades_in_s: float
    present: int
    ends_in_s: float

    @property
    def remaining(self) -> int:
        """How many more are let in now."""
        return max(0, self.limit - math.floor(self.before * self.fades_in_s / self.period_s) - self.present)

    @property
    def opens_in_s(self) -> float:
        """Seconds until one more is let in, unless somebody else is quicker."""
        if self.remaining:
            return 0.0
        # One of the period before has faded then; where none is left of it, everything of this one begins to.
        return self.fades_in_s % (self.period_s / self.before) if self.before else self.ends_in_s


class RateLimitCounters:
    """The windows themselves: in Redis, or in this process while Redis is away."""

    def __init__(self, redis_url: str, most_connections: int, clock: Clock) -> None:
        # No command is repeated: the answer to a failure is the memory.
        self._client = redis_client.connect(redis_url, _REDIS_TIMEOUT_S, most_connections)
        # The pool says where Redis is; of a URL the storage would only take the kind of server.
        self._redis = RedisStorage(
            "redis://", connection_pool=self._client.connection_pool, key_prefix="riskrelay", wrap_exceptions=True
        )
        self._memory = MemoryStorage()
        self._clock = clock
        self._lock = Lock()
        self._away_until: float | None = None

    def take(self, item: RateLimitItemPerSecond, kind: str, key: str, share: int) -> tuple[int, RateLimitWindow]:
        """Count up to `share` and return how many, with the window just before; 0 and the window when it is full."""
        return self._asked(lambda storage: _take(storage, item, (kind, key), share))

    def look(self, item: RateLimitItemPerSecond, kind: str, key: str) -> RateLimitWindow:
        """Return the window as it is, and count nothing."""
        return self._asked(lambda storage: _window(storage, item, (kind, key)))

    def _asked(self, ask: Callable[["RedisStorage | MemoryStorage"], Told]) -> Told:
        if self._may_ask_redis():
            try:
                told = ask(self._redis)
            except StorageError as away:
                self._note_away(away)
            else:
                self._note_back()
                return told
        return ask(self._in_memory())

    def _may_ask_redis(self) -> bool:
        with self._lock:
            if self._away_until is None:
                return True
            now = self._clock()
            if now < self._away_until:
                return False
            # This request looks whether it is back; the others go on meanwhile.
            self._away_until = now + _REDIS_RETRY_S
            return True

    def _note_away(self, error: StorageError) -> None:
        with self._lock:
            is_news = self._away_until is None
            self._away_until = self._clock() + _REDIS_RETRY_S
        if is_news:
            kind = type(error.__cause__ or error).__name__
            _log.warning("Redis is away, limits go on for each process by itself", extra={"error": kind})

    def _note_back(self) -> None:
        if self._away_until is None:
            return
        with self._lock:
            is_news = self._away_until is not None
            self._away_until = None
        if is_news:
            _log.info("Redis is back, limits hold over all processes again")

    def _in_memory(self) -> MemoryStorage:
        # It looks through all its keys every 10 ms: a flood of addresses must not fill it. To forget is the lesser harm.
        if len(self._memory.expirations) > MAX_CACHED_KEYS:
            self._memory = MemoryStorage()
        return self._memory


def _take(
    storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, who: tuple[str, str], share: int
) -> tuple[int, RateLimitWindow]:
    limiter = SlidingWindowCounterRateLimiter(storage)
    # The window is read first: should the period end before the hit, the reservation ends with the one that was read.
    window = _window(storage, item, who)
    for cost in (min(share, window.remaining), 1):
        if cost and limiter.hit(item, *who, cost=cost):
            return cost, window
    return 0, _window(storage, item, who)


def _window(storage: RedisStorage | MemoryStorage, item: RateLimitItemPerSecond, who: tuple[str, str]) -> RateLimitWindow:
    """Read the window; the rate limiter itself tells only when something changes next, and as wall time."""
    period_s = item.get_expiry()
    before, fades_in_s, present, expires_in_s = storage.get_sliding_window(item.key_for(*who), period_s)
    # A count lives for two periods, in the second as the one before. Nobody counted yet: the period begins with the first.
    ends_in_s = max(0.0, expires_in_s - period_s) if expires_in_s else float(period_s)
    return RateLimitWindow(item.amount, period_s, before, fades_in_s, present, ends_in_s)
