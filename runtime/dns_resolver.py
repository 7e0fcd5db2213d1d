"""Ask the resolver for a name's addresses, with a deadline and a bound.

It lives on this floor because both doors need it: the service when a target is registered, the worker
before it connects. Schemas do no I/O and the doors never meet, so what both ask of the world outside is
asked here.

`getaddrinfo` takes no timeout and can hang for as long as the resolver's configuration lets it. So it runs
in a thread that nobody waits for longer than they said: a daemon, since a hung lookup must not hold up the
exit. Threads are few, a name that is being looked up is not looked up a second time, and beyond a number of
waiting names further ones are refused at once, so one silent name server can neither pile up threads nor
take all of them for one name.

Nothing is cached: an answer goes to those who were asking when it came. Which of the addresses may be
dialed is not decided here (`schemas.url_policy.target_url`).
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Answer: TypeAlias = tuple[Address, ...]
GetAddrInfo: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]

# A resolver that works answers in milliseconds, so a few threads serve thousands of names a second.
MAX_WORKERS = 8

# With all threads hung for glibc's usual 10 s, more than this could not be served within anybody's deadline.
MAX_WAITING = 64


class DnsFailure(StrEnum):
    """Why a name has no addresses now; these are error codes of an attempt."""

    NOT_FOUND = "dns_not_found"
    TIMEOUT = "dns_timeout"
    FAILED = "dns_failed"
    OVERLOADED = "dns_overloaded"


class DnsError(Exception):
    """The name could not be resolved; `reason` says how."""

    def __init__(self, reason: DnsFailure) -> None:
        super().__init__(reason)
        self.reason = reason


class DnsResolver:
    """Resolves names on at most `max_workers` threads, with at most `max_waiting` names waiting for one.

    Threads start with the first lookup and end when none is waiting. Works under gevent's monkey patching,
    where threads are greenlets, and on both sides of a fork. `getaddrinfo` is `socket.getaddrinfo`, or
    stands in for it.
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
        self._desks: dict[int, _Desk] = {}

    def resolve(self, host: str, port: int, timeout_s: float) -> Answer:
        """Return every address of `host` for TCP, in the resolver's order, each once; never an empty tuple.

        A literal address is returned as it is, without asking anybody. Waiting for a free thread counts as
        well. Raises DnsError.
        """
        literal = _literal(host)
        return (literal,) if literal else self._desk().answer(host, port, timeout_s)

    def _desk(self) -> "_Desk":
        """The state of this process: a child of a fork inherits neither the threads nor a usable lock."""
        desk = self._desks.get(os.getpid())
        if desk is None:
            # Looked up here, not at import: gevent may have patched the socket module since.
            ask = self._getaddrinfo or socket.getaddrinfo
            desk = self._desks.setdefault(os.getpid(), _Desk(self._max_workers, self._max_waiting, ask))
        return desk


class _Lookup:
    """One name being looked up, for everyone who asks meanwhile."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.wanted_until = 0.0  # monotonic; after it nobody waits any more
        self.outcome: Future[Answer | DnsFailure] = Future()


class _Desk:
    def __init__(self, max_workers: int, max_waiting: int, getaddrinfo: GetAddrInfo) -> None:
        self._max_workers = max_workers
        self._max_waiting = max_waiting
        self._getaddrinfo = getaddrinfo
        self._lock = threading.Lock()
        self._lookups: dict[tuple[str, int], _Lookup] = {}  # waiting or running
        self._waiting: deque[_Lookup] = deque()
        self._workers = 0

    def answer(self, host: str, port: int, timeout_s: float) -> Answer:
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
        """Put a name into the queue and see that somebody serves it. The lock is held."""
        if self._workers >= self._max_workers and len(self._waiting) >= self._max_waiting:
            raise DnsError(DnsFailure.OVERLOADED)
        if self._workers < self._max_workers:
            self._start_worker()
        lookup = self._lookups[host, port] = _Lookup(host, port)
        self._waiting.append(lookup)
        return lookup

    def _start_worker(self) -> None:
        """Start a thread, which finds its work once the lock is free."""
        try:
            threading.Thread(target=self._work, name="name-lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            raise DnsError(DnsFailure.OVERLOADED) from None
        self._workers += 1

    def _work(self) -> None:
        while lookup := self._next():
            outcome = self._ask(lookup)
            with self._lock:
                self._close(lookup, outcome)

    def _next(self) -> _Lookup | None:
        """Take the oldest name that somebody still waits for; None ends the thread."""
        with self._lock:
            while self._waiting:
                lookup = self._waiting.popleft()
                if time.monotonic() <= lookup.wanted_until:
                    return lookup
                self._close(lookup, DnsFailure.TIMEOUT)
            self._workers -= 1
            return None

    def _close(self, lookup: _Lookup, outcome: Answer | DnsFailure) -> None:
        """Tell all who wait. The lock is held, so that whoever asks from now on starts a new lookup."""
        del self._lookups[lookup.host, lookup.port]
        lookup.outcome.set_result(outcome)

    def _ask(self, lookup: _Lookup) -> Answer | DnsFailure:
        try:
            return _addresses(self._getaddrinfo(lookup.host, lookup.port, type=socket.SOCK_STREAM))
        except socket.gaierror as error:
            return DnsFailure.NOT_FOUND if error.errno in _NOT_FOUND else DnsFailure.FAILED
        except Exception:  # noqa: BLE001  those who wait must hear of it, and the thread must go on
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


def _addresses(answers: Sequence[tuple[Any, ...]]) -> Answer | DnsFailure:
    """Pick the addresses out of what getaddrinfo answers: (family, type, protocol, name, socket address)."""
    found = [ip_address(answer[4][0]) for answer in answers if answer[0] in (socket.AF_INET, socket.AF_INET6)]
    return tuple(dict.fromkeys(found)) or DnsFailure.NOT_FOUND
