"""Resolves names with a timeout, on a bounded number of threads.

`getaddrinfo` takes no timeout and can hang for as long as the resolver's configuration allows. So it runs on a thread, and a
caller waits no longer than its timeout: a daemon thread, since a hung lookup must not delay the exit. Concurrent lookups of
one name share a thread, and beyond a number of waiting names further ones fail at once, so a silent name server can neither
pile up threads nor take all of them for one name.

Nothing is cached: an answer goes to the callers that waited when it arrived. `schemas.url_policy.addresses` decides which
addresses may be dialed.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, TypeAlias

from schemas.url_policy.policy import Address

Addresses: TypeAlias = tuple[Address, ...]
GetAddrInfo: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]

# A resolver that works answers in milliseconds, so a few threads serve thousands of names a second.
MAX_WORKERS = 8

# With all threads hung for glibc's usual 10 s, more names than this could not be resolved within a deadline.
MAX_WAITING = 64


class DnsFailure(StrEnum):
    """Why a name has no addresses now; the values are error codes of attempts."""

    NOT_FOUND = "dns_not_found"
    TIMEOUT = "dns_timeout"
    FAILED = "dns_failed"
    OVERLOADED = "dns_overloaded"


class DnsError(Exception):
    """The name could not be resolved; `reason` is the cause."""

    def __init__(self, reason: DnsFailure) -> None:
        super().__init__(reason)
        self.reason = reason


class DnsResolver:
    """Resolves names on at most `max_workers` threads, with at most `max_waiting` names waiting for one.

    Threads start with the first lookup and end when none is waiting. Works under gevent's monkey patching, where threads are
    greenlets, and on both sides of a fork. `getaddrinfo` replaces `socket.getaddrinfo` in tests.
    """

    def __init__(
        self,
        max_workers: int = MAX_WORKERS,
        max_waiting: int = MAX_WAITING,
        getaddrinfo: GetAddrInfo | None = None,
    ) -> None:
        self._max_workers = max_workers
        self._max_waiting = max_waiting
        self._getaddrinfo = getaddrinfo
        self._queues: dict[int, _LookupQueue] = {}

    def resolve(self, host: str, port: int, timeout_s: float) -> Addresses:
        """Return every address of `host` for TCP, in the resolver's order, each once; never an empty tuple.

        A literal address is returned as it is, without a lookup. The timeout includes the wait for a free thread.
        Raises DnsError.
        """
        literal = _literal(host)
        return (literal,) if literal else self._queue().resolve(host, port, timeout_s)

    def _queue(self) -> "_LookupQueue":
        """Return the queue of this process: a forked child inherits neither the threads nor a usable lock."""
        queue = self._queues.get(os.getpid())
        if queue is None:
            # Read here, not at import: gevent may have patched the socket module since.
            getaddrinfo = self._getaddrinfo or socket.getaddrinfo
            queue = self._queues.setdefault(os.getpid(), _LookupQueue(self._max_workers, self._max_waiting, getaddrinfo))
        return queue


class _Lookup:
    """One lookup of a name, shared by all callers that ask meanwhile."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.wanted_until = 0.0  # monotonic; no caller waits longer
        self.outcome: Future[Addresses | DnsFailure] = Future()


class _LookupQueue:
    """The lookups of one process and the threads that make them."""

    def __init__(self, max_workers: int, max_waiting: int, getaddrinfo: GetAddrInfo) -> None:
        self._max_workers = max_workers
        self._max_waiting = max_waiting
        self._getaddrinfo = getaddrinfo
        self._lock = threading.Lock()
        self._lookups: dict[tuple[str, int], _Lookup] = {}  # waiting or running
        self._waiting: deque[_Lookup] = deque()
        self._workers = 0

    def resolve(self, host: str, port: int, timeout_s: float) -> Addresses:
        with self._lock:
            lookup = self._lookups.get((host, port)) or self._enqueue(host, port)
            lookup.wanted_until = max(lookup.wanted_until, time.monotonic() + timeout_s)
        try:
            outcome = lookup.outcome.result(timeout_s)
        except TimeoutError:
            outcome = DnsFailure.TIMEOUT
        if isinstance(outcome, DnsFailure):
            raise DnsError(outcome)
        return outcome

    def _enqueue(self, host: str, port: int) -> _Lookup:
        """Add a name and start a thread for it if there may be another. The lock is held."""
        if self._workers >= self._max_workers and len(self._waiting) >= self._max_waiting:
            raise DnsError(DnsFailure.OVERLOADED)
        if self._workers < self._max_workers:
            self._start_worker()
        lookup = self._lookups[host, port] = _Lookup(host, port)
        self._waiting.append(lookup)
        return lookup

    def _start_worker(self) -> None:
        """Start a thread, which takes a lookup once the lock is free."""
        try:
            threading.Thread(target=self._work, name="name-lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            raise DnsError(DnsFailure.OVERLOADED) from None
        self._workers += 1

    def _work(self) -> None:
        while lookup := self._next():
            outcome = self._look_up(lookup)
            with self._lock:
                self._close(lookup, outcome)

    def _next(self) -> _Lookup | None:
        """Take the oldest name that a caller still waits for; None ends the thread."""
        with self._lock:
            while self._waiting:
                lookup = self._waiting.popleft()
                if time.monotonic() <= lookup.wanted_until:
                    return lookup
                self._close(lookup, DnsFailure.TIMEOUT)
            self._workers -= 1
            return None

    def _close(self, lookup: _Lookup, outcome: Addresses | DnsFailure) -> None:
        """Give the outcome to all callers. The lock is held, so that later callers start a new lookup."""
        del self._lookups[lookup.host, lookup.port]
        lookup.outcome.set_result(outcome)

    def _look_up(self, lookup: _Lookup) -> Addresses | DnsFailure:
        try:
            return _addresses(self._getaddrinfo(lookup.host, lookup.port, type=socket.SOCK_STREAM))
        except socket.gaierror as error:
            return DnsFailure.NOT_FOUND if error.errno in _NOT_FOUND else DnsFailure.FAILED
        except Exception:  # noqa: BLE001  the callers need an outcome, and the thread must go on
            return DnsFailure.FAILED


# The name does not exist, or has no address of a kind that we know. Not every platform has all three.
_NOT_FOUND = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _addresses(answers: Sequence[tuple[Any, ...]]) -> Addresses | DnsFailure:
    """Return the addresses in rows of getaddrinfo: (family, type, protocol, name, socket address)."""
    found = [ip_address(answer[4][0]) for answer in answers if answer[0] in (socket.AF_INET, socket.AF_INET6)]
    return tuple(dict.fromkeys(found)) or DnsFailure.NOT_FOUND
