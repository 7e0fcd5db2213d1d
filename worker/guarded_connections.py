"""Connections that only the dialler opens, kept alive while their names lead to their addresses still.

urllib3 and requests do the talking; what is changed here is where their sockets come from, when a kept one may be used
again, what it reads of an answer (`worker.bounded_answer`), and that proxies, cookies and history have no say.
"""

import math
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from http.client import HTTPConnection as PlainConnection
from typing import Any, Final, cast
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from worker.bounded_answer import BoundedAnswer
from worker.deadline import Lifeline, current, milliseconds
from worker.dialler import Confirmation, DialFailed, Dialler

#: Hosts whose kept-alive connections are held at once; a descriptor pair each, and idle ones are closed soon.
_POOLS: Final = 1024


class GuardedConnection(HTTPConnection):
    """A connection that is dialled by the guard and watched by the deadline, the first time and every time it is reused."""

    response_class = BoundedAnswer
    dialler: Dialler
    lifeline: Lifeline | None = None
    address: str = ""
    #: When it was known last that the name leads to the address, and when the socket was connected; monotonic.
    confirmed_at: float = 0.0
    dialled_at: float = 0.0
    _unsent: list[Any] | None = None

    #: urllib3's own looks in every value for a mark that leaves a header out; we leave none out.
    putheader = PlainConnection.putheader

    def _new_conn(self) -> socket.socket:
        self.confirmed_at = time.monotonic()
        connected, self.address = self.dialler.dial(self._dns_host, self.port)
        # What the connect timeout left would be a bound on the handshake; that is the deadline's business.
        connected.settimeout(self.timeout)
        self.lifeline = Lifeline(connected)
        current().watch(self.lifeline, self.address)
        self.dialled_at = time.monotonic()
        return connected

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        if self.lifeline is not None:
            current().watch(self.lifeline, self.address)
        super().putrequest(*args, **kwargs)

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send head and body as one write: one system call here, one wake-up there."""
        self._unsent = []
        super().request(*args, **kwargs)
        unsent, self._unsent = self._unsent, None
        super().send(b"".join(unsent))

    def send(self, data: Any) -> None:
        if self._unsent is None:
            super().send(data)
        else:
            self._unsent.append(data)

    def close(self) -> None:
        super().close()
        if self.lifeline is not None:
            self.lifeline.close()
            self.lifeline = None


class _GuardedTlsConnection(GuardedConnection, HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        super().connect()
        tls_ms = milliseconds(time.monotonic() - self.dialled_at)
        current().timings = replace(current().timings, tls_ms=tls_ms)


class _GuardedPool(HTTPConnectionPool):
    """The kept connections of one host and port, each used only where the name is known to lead to its address still."""

    dialler: Dialler
    #: The last look at the name, shared by all connections, so that thousands of posts cost one lookup.
    _confirmation = Confirmation(-math.inf, None)
    #: What was confirmed up to here counts no more: an answer was refused then.
    _void_until = -math.inf

    def _validate_conn(self, conn: Any) -> None:
        """Close the connection if it must not be used again, and dial if needed; nothing of the request is sent yet."""
        try:
            if not conn.is_closed and not self._may_be_used(conn):
                conn.close()
            if conn.is_closed:
                conn.connect()
        except DialFailed as failed:
            if failed.refused:
                self._void_until = time.monotonic()
                self.close_kept(self._void_until)
            raise
        super()._validate_conn(conn)

    def _may_be_used(self, connection: GuardedConnection) -> bool:
        since = max(time.monotonic() - self.dialler.confirmed_for_s, self._void_until)
        if connection.confirmed_at > since:
            return True
        if self._confirmation.at <= since:
            # Threads that come here together ask once: a name that is being looked up is not looked up a second time.
            self._confirmation = self.dialler.confirm(connection._dns_host, connection.port)
        confirmation = self._confirmation
        connection.confirmed_at = confirmation.at
        return confirmation.holds(connection.address)

    def close_kept(self, until: float) -> bool:
        """Close the connections in the pool that were last confirmed up to `until`; tell whether others are there."""
        kept = self.pool
        if kept is None:
            return False
        with kept.mutex:
            old = {connection for connection in kept.queue if connection and connection.confirmed_at <= until}
            kept.queue[:] = [None if connection in old else connection for connection in kept.queue]
            are_there = any(kept.queue)
        for connection in old:
            with suppress(OSError):  # the peer was faster
                connection.close()
        return are_there


class _GuardedTlsPool(_GuardedPool, HTTPSConnectionPool):
    """The same over TLS."""


class GuardedAdapter(HTTPAdapter):
    """An adapter whose pools open guarded connections only."""

    def __init__(self, dialler: Dialler, connections: int) -> None:
        self._dialler = dialler
        self._pools: WeakSet[_GuardedPool] = WeakSet()
        self._pools_lock = threading.Lock()
        super().__init__(pool_connections=_POOLS, pool_maxsize=connections, max_retries=0)
        self._pool_of = lru_cache(maxsize=_POOLS)(self._find_pool)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        dialler = {"dialler": self._dialler}
        plain = type("_Connection", (GuardedConnection,), dialler)
        tls = type("_TlsConnection", (_GuardedTlsConnection,), dialler)
        self.poolmanager.pool_classes_by_scheme = {
            "http": type("_Pool", (_GuardedPool,), {"ConnectionCls": plain, **dialler}),
            "https": type("_TlsPool", (_GuardedTlsPool,), {"ConnectionCls": tls, **dialler}),
        }

    def close(self) -> None:
        # A pool closes its connections when nobody refers to it any more.
        self._pool_of.cache_clear()
        super().close()

    def close_idle(self, idle_s: float) -> bool:
        """Close what has been kept for `idle_s` without use; tell whether anything is kept still."""
        # What is used is confirmed every few seconds; so what was not confirmed is not used, give or take these seconds.
        until = time.monotonic() - idle_s
        with self._pools_lock:
            pools = list(self._pools)
        are_kept = [pool.close_kept(until) for pool in pools]
        return any(are_kept)

    def new_connection(self, url: str, verify: bool | str) -> GuardedConnection:
        """Return a connection of its own, not dialled yet and never kept."""
        pool = self._pool_of(url, verify)
        self.cert_verify(pool, url, verify, None)
        connection = cast(GuardedConnection, pool._new_conn())
        connection.timeout = None
        return connection

    def get_connection_with_tls_context(
        self, request: requests.PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        """Return the pool of the URL's origin; looking for it anew would be a tenth of a delivery."""
        return self._pool_of(request.url, verify)

    def _find_pool(self, url: str, verify: bool | str) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(requests.Request("POST", url).prepare(), verify)
        with self._pools_lock:
            self._pools.add(cast(_GuardedPool, pool))
        return pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        """Return path and query; there never is a proxy, for which it would be more."""
        return request.path_url

    def build_response(self, req: requests.PreparedRequest, resp: BaseHTTPResponse) -> Any:
        """Leave the answer as urllib3 gives it: cookies, encoding and history, which requests adds, are not read here."""
        return resp
