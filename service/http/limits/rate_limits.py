"""Rate limits: requests a minute per principal, failed authentications a minute per address, sign-in links per network.

A Redis round trip per request would cost as much as responding to a poll. So a process reserves a share of the limit and
spends it locally. An unspent share expires with the period, and the limit applies across all processes. A refusal is kept in
memory until the window has room again, so that a client over its limit costs least.
"""

import hashlib
import math
import time
from threading import Lock
from typing import Final, NamedTuple

import falcon
from limits import RateLimitItemPerSecond

from schemas.base.errors import RateLimited
from schemas.settings.definitions import Settings
from service.http.client_address import counted_address, counted_network
from service.http.limits.blocked_addresses import BlockedAddresses
from service.http.limits.rate_counters import CLOCK_RESOLUTION_S, MAX_CACHED_KEYS, Clock, RateLimitCounters, RateLimitWindow
from storage.accounts.sign_in_links import LASTS_FOR

#: The period that the settings refer to: a minute.
WINDOW_S: Final = 60

#: A reservation is the limit divided by this: the requests of a second. If the limit is less than twice this, each request
#: is counted by itself.
_SHARES: Final = 60

#: Maximum number of sign-in links for one email address and one network within the lifetime of a link.
LINKS_OF_NETWORK: Final = 3


class RateLimits:
    """Counts requests and failures; tests that cannot wait a minute set `window_s` and `clock` (monotonic seconds)."""

    def __init__(self, settings: Settings, window_s: int = WINDOW_S, clock: Clock = time.monotonic) -> None:
        self._requests = RateLimitItemPerSecond(settings.rate_limit_per_minute, window_s)
        self._share = max(1, settings.rate_limit_per_minute // _SHARES)
        self._policy = f'"principal";q={settings.rate_limit_per_minute};w={window_s}'
        self._trusted_proxies = settings.trusted_proxies
        self._clock = clock
        self._counters = RateLimitCounters(settings.redis_url, settings.web_threads, clock)
        #: The newest MAX_CACHED_KEYS principals, oldest first; a principal that was dropped reserves again.
        self._reservations: dict[str, _Reservation] = {}
        self._lock = Lock()
        self._links = RateLimitItemPerSecond(LINKS_OF_NETWORK, int(LASTS_FOR.total_seconds()))
        failures = RateLimitItemPerSecond(settings.auth_failures_per_minute, window_s)
        self._addresses = BlockedAddresses(failures, self._counters, clock)

    def require_unblocked(self, req: falcon.Request) -> None:
        """Raise RateLimited if the request's address failed to authenticate too often, even with correct credentials."""
        if not self._addresses.is_empty:
            self._addresses.require_unblocked(self._address(req))

    def require_still_unblocked(self, req: falcon.Request) -> None:
        """Raise RateLimited if failures of the same address blocked it while this request was authenticated."""
        if not self._addresses.is_empty:
            self._addresses.require_still_unblocked(self._address(req))

    def count_failure(self, req: falcon.Request) -> None:
        """Count a failed authentication for the request's address. Raises RateLimited over the limit."""
        self._addresses.count(self._address(req))

    def may_request_link(self, req: falcon.Request, email: str) -> bool:
        """Count a request for a sign-in link to an email address, known or not; return whether it is within the limit.

        Each network has its own limit. Otherwise one stranger could use up all links of a user.
        """
        digest = hashlib.sha256(email.lower().encode()).hexdigest()
        count, _ = self._counters.count(self._links, "link", f"{counted_network(req, self._trusted_proxies)}:{digest}", 1)
        return count > 0

    def _address(self, req: falcon.Request) -> str:
        return counted_address(req, self._trusted_proxies)

    def spend(self, req: falcon.Request, resp: falcon.Response, principal_key: str) -> None:
        """Count one request of a principal and set the rate limit headers. Raises RateLimited over the limit.

        The headers follow draft-ietf-httpapi-ratelimit-headers: `r` more requests are allowed within `t` seconds; on a
        refusal, `t` is the time to wait. `r` excludes the reservations of other processes.
        """
        status = self._spend(principal_key)
        resp.set_header("RateLimit-Policy", self._policy)
        resp.set_header("RateLimit", f'"principal";r={status.remaining};t={status.seconds}')
        if status.is_refused:
            raise RateLimited(status.seconds, "RATE_LIMIT_PER_MINUTE", self._requests.amount)

    def _spend(self, principal_key: str) -> "_RateLimitStatus":
        reservation = self._reservations.get(principal_key) or self._reservation(principal_key)
        # Concurrent requests of this principal wait here for one reservation instead of each making one.
        with reservation.lock:
            now = self._clock()
            if reservation.is_used_up(now):
                count, window = self._counters.count(self._requests, "principal", principal_key, self._share)
                requested_at, now = now, self._clock()
                reservation.renew(count, window, requested_at, now)
            return reservation.spend(now)

    def _reservation(self, principal_key: str) -> "_Reservation":
        with self._lock:
            reservation = self._reservations.setdefault(principal_key, _Reservation())
            if len(self._reservations) > MAX_CACHED_KEYS:
                del self._reservations[next(iter(self._reservations))]
        return reservation


def _whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, at least 1."""
    return max(1, math.ceil(seconds))


class _RateLimitStatus(NamedTuple):
    """The result of one request: whether it is refused, how many requests remain, and for how many seconds this applies."""

    is_refused: bool
    remaining: int
    seconds: int


class _Reservation:
    """The unspent reservation of one principal in this process, or the end of its refusal. Hold `lock` while you use it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._left = 0
        self._unreserved = 0
        self._ends_at = -math.inf
        self._opens_at = -math.inf

    def is_used_up(self, now: float) -> bool:
        """Return whether a new reservation is needed: this period's is spent, and no refusal applies."""
        return now >= self._opens_at and (not self._left or now >= self._ends_at)

    def renew(self, count: int, window: RateLimitWindow, requested_at: float, responded_at: float) -> None:
        """Store a reservation; a `count` of 0 refuses requests until the window has room.

        The end of a reservation is counted from before the request to Redis, and the end of a refusal from after it, so
        neither exceeds the limit.
        """
        self._left = count
        self._unreserved = max(0, window.remaining - count)
        self._ends_at = requested_at + window.ends_in_s
        self._opens_at = -math.inf if count else responded_at + window.opens_in_s + CLOCK_RESOLUTION_S

    def spend(self, now: float) -> _RateLimitStatus:
        """Spend one reserved request and return the status, which is a refusal if none is left."""
        if not self._left:
            return _RateLimitStatus(True, 0, _whole_seconds(self._opens_at - now))
        self._left -= 1
        return _RateLimitStatus(False, self._left + self._unreserved, _whole_seconds(self._ends_at - now))
