"""Resolves names with a timeout, on a bounded number of threads.

`getaddrinfo` takes no timeout and can hang for as long as the resolver's configuration allows. So it runs on a thread, and a
caller waits no longer than its timeout: a daemon thread, since a hung lookup must not delay the exit. Concurrent lookups of
one name for one account share a thread, and beyond a number of waiting names of an account further ones fail at once, so a
silent name server can neither pile up threads nor take all of them for one name. Accounts share the threads by
`runtime.account_shares`: names of one account that hang leave threads to the names of the others.

Nothing is cached: an answer goes to the callers that waited when it arrived. `schemas.url_policy.addresses` decides which
addresses may be dialed.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, TypeAlias

from runtime.account_shares import AccountId, AccountShares
from schemas.url_policy.policy import Address

Addresses: TypeAlias = tuple[Address, ...]
GetAddrInfo: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]

# The threads that a single active account may use. A resolver that works answers in milliseconds, so a few threads serve
# thousands of names a second. If the names of some accounts hang, other accounts get threads of their own.
MAX_WORKERS = 8

# The waiting names of one account. If all threads hang for glibc's usual 10 s, more names could not be resolved in time.
MAX_WAITING = 64

# The threads of a process when 16 accounts have names that hang.
MAX_THREADS = AccountShares(MAX_WORKERS).limit


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


#: Account, host name and port. Accounts do not share a lookup, because it may have to wait for a thread of its account.
_Key: TypeAlias = tuple[AccountId, str, int]


class _Lookup:
    """One lookup of a name, shared by all callers of the same account until it ends."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.account_id = key[0]
        self.wanted_until = 0.0  # monotonic; no caller waits longer
        self.outcome: Future[Addresses | DnsFailure] = Future()


class DnsResolver:
    """Resolves names on `max_workers` shared threads and those reserved for other accounts.

    At most `max_waiting` names of an account wait for a thread. Threads start with a lookup and end when none is waiting.
    Works under gevent's monkey patching, where threads are greenlets. `getaddrinfo` replaces `socket.getaddrinfo` in tests.
    """

    def __init__(
        self, max_workers: int = MAX_WORKERS, max_waiting: int = MAX_WAITING, getaddrinfo: GetAddrInfo | None = None
    ) -> None:
        self._max_waiting = max_waiting
        self._getaddrinfo = getaddrinfo or socket.getaddrinfo
        self._lock = threading.Lock()
        self._lookups: dict[_Key, _Lookup] = {}  # waiting or running
        self._waiting: dict[AccountId, deque[_Lookup]] = {}
        self._threads = AccountShares(max_workers)

    def resolve(self, host: str, port: int, timeout_s: float, account_id: AccountId = None) -> Addresses:
        """Return every address of `host` for TCP, in the resolver's order, each once; never an empty tuple.

        A literal address is returned as it is, without a lookup. The timeout includes the wait for a free thread, which only
        lookups for the same account prolong. Raises DnsError.
        """
        literal = _literal(host)
        if literal is not None:
            return (literal,)
        key = (account_id, host, port)
        with self._lock:
            lookup = self._lookups.get(key) or self._enqueue(_Lookup(key))
            lookup.wanted_until = max(lookup.wanted_until, time.monotonic() + timeout_s)
        try:
            outcome = lookup.outcome.result(timeout_s)
        except TimeoutError:
            outcome = DnsFailure.TIMEOUT
        if isinstance(outcome, DnsFailure):
            raise DnsError(outcome)
        return outcome

    def _enqueue(self, lookup: _Lookup) -> _Lookup:
        """Start a thread for a lookup if its account may have another, else let it wait. The lock is held."""
        account_id = lookup.account_id
        if self._threads.may_take(account_id):
            self._start_thread(lookup)
        elif len(self._waiting.get(account_id, ())) < self._max_waiting:
            self._waiting.setdefault(account_id, deque()).append(lookup)
        else:
            raise DnsError(DnsFailure.OVERLOADED)
        self._lookups[lookup.key] = lookup
        return lookup

    def _start_thread(self, lookup: _Lookup) -> None:
        try:
            threading.Thread(target=self._work, args=(lookup,), name="name-lookup", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            raise DnsError(DnsFailure.OVERLOADED) from None
        self._threads.take(lookup.account_id)

    def _work(self, first: _Lookup) -> None:
        lookup: _Lookup | None = first
        while lookup is not None:
            outcome = self._look_up(lookup)
            with self._lock:
                self._threads.release(lookup.account_id)
                self._close(lookup, outcome)
                lookup = self._next()

    def _next(self) -> _Lookup | None:
        """Take the oldest name that a caller still waits for, of the account with the fewest threads. The lock is held."""
        for account_id in self._threads.in_order(self._waiting):
            lookup = self._next_of(account_id)
            if lookup is not None:
                self._threads.take(account_id)
                return lookup
        return None

    def _next_of(self, account_id: AccountId) -> _Lookup | None:
        """Return the next lookup of an account that a caller still waits for; lookups without a caller time out."""
        waiting, found = self._waiting[account_id], None
        while waiting and found is None:
            lookup = waiting.popleft()
            if time.monotonic() <= lookup.wanted_until:
                found = lookup
            else:
                self._close(lookup, DnsFailure.TIMEOUT)
        if not waiting:
            del self._waiting[account_id]
        return found

    def _close(self, lookup: _Lookup, outcome: Addresses | DnsFailure) -> None:
        """Give the outcome to all callers. The lock is held, so that later callers start a new lookup."""
        del self._lookups[lookup.key]
        lookup.outcome.set_result(outcome)

    def _look_up(self, lookup: _Lookup) -> Addresses | DnsFailure:
        try:
            _, host, port = lookup.key
            return _addresses(self._getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except socket.gaierror as error:
            return DnsFailure.NOT_FOUND if error.errno in _NOT_FOUND else DnsFailure.FAILED
        except Exception:  # noqa: BLE001  the callers need an outcome, and the thread must go on
            return DnsFailure.FAILED


# The name does not exist, or has no address of a family that we use. Not every platform defines all three codes.
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
