"""Makes clients for every form of REDIS_URL, which fail soon and do not retry.

Behind Sentinels a client requests the master from them whenever it opens a connection, so it finds the new master after a
failover. Sentinels and server together may take as long as a server alone.
"""

from contextlib import suppress
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from schemas.settings.redis_url import RedisUrl, parse_redis_url

#: A request waits no longer than this for Redis, up or down.
TIMEOUT_S: Final = 0.5
#: The Sentinels' part of the time to connect, divided among them: a Sentinel that hangs leaves time for the others.
_SENTINELS_PART: Final = 0.5
#: A failed command is not repeated. The client's name and version are read once, not by each connection, as is the default.
_COMMON: Final[dict[str, Any]] = {"retry": Retry(NoBackoff(), 0), "driver_info": DriverInfo()}


def connect(url: str, timeout_s: float | None = TIMEOUT_S, most_connections: int | None = None) -> Redis:
    """Return a client of the Redis at `url`; nothing is connected yet. A failed command is not repeated.

    `timeout_s` bounds each response; None removes that bound and keeps the usual one for connecting.
    Raises ValidationError.
    """
    where = parse_redis_url(url)
    options: dict[str, Any] = {"db": where.database, "max_connections": most_connections, **_tls(where), **_COMMON}
    options |= _credentials(where)
    if where.service is not None:
        part_s = _SENTINELS_PART * (timeout_s or TIMEOUT_S) / len(where.places)
        options |= _timeouts(timeout_s, 1.0 - _SENTINELS_PART)
        return Redis.from_pool(SentinelConnectionPool(where.service, _Sentinels(where, part_s), **options))
    options |= _timeouts(timeout_s, 1.0)
    if where.socket is not None:
        return Redis(unix_socket_path=where.socket, **options)
    [(host, port)] = where.places
    return Redis(host, port, **options)


class _Sentinels:
    """Sentinels that are queried with the servers' password first, then without it.

    Commonly Redis has a password and its Sentinels have none; then they refuse the password.
    """

    def __init__(self, where: RedisUrl, timeout_s: float) -> None:
        options: dict[str, Any] = {**_tls(where), **_timeouts(timeout_s, 1.0), **_COMMON}
        # Two lists: redis-py moves the Sentinel that responded to the top of its list, while other threads iterate over it.
        self._queried = [Sentinel(where.places, sentinel_kwargs={**options, **_credentials(where)})]
        if where.password is not None:
            self._queried.append(Sentinel(where.places, sentinel_kwargs=options))

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the master's host and port; the pool calls this before it connects. Raises a RedisError."""
        *first, last = self._queried
        for sentinels in first:
            with suppress(RedisConnectionError):
                return _master_of(sentinels, service_name)
        return _master_of(last, service_name)


def _master_of(sentinels: Sentinel, service_name: str) -> tuple[str, int]:
    host, port = sentinels.discover_master(service_name)
    return host, port


def _tls(where: RedisUrl) -> dict[str, Any]:
    return {"ssl": where.is_tls, **where.tls_files}


def _credentials(where: RedisUrl) -> dict[str, Any]:
    return {"username": where.username, "password": where.password}


def _timeouts(timeout_s: float | None, part: float) -> dict[str, Any]:
    """Return the timeouts: a `part` of the time for connecting, and the time for each response."""
    return {"socket_connect_timeout": part * (timeout_s or TIMEOUT_S), "socket_timeout": timeout_s}
