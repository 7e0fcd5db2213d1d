"""Connections that only the dialer opens, kept alive while their names lead to their addresses still.

requests is the seam: it spells the request, and hands it to `GuardedAdapter`, its way to bring another transport. What
happens below is ours, since the guard, the deadline and the bounds sit there: a request is one write, an answer is read as
far as `worker.http.response_parser` says, and between the two there is nothing that would send it again. A POST over a kept
connection takes 60 µs of processor time where requests' own adapter, urllib3 and http.client took 360, and half of it is the
kernel's.

Refused: a header that holds a line end, which would begin another header.
"""

import math
import select
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import requests
from requests.adapters import BaseAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from worker.http.deadline import Exchange, Lifeline, milliseconds
from worker.http.dialer import Confirmation, Dialer, DialFailed
from worker.http.response_parser import Answer, ResponseParser

#: URLs whose routes are known at once; the kept connections of an origin go with the last of its routes.
_ROUTES: Final = 1024
#: Bundles of certificate authorities that were read, which takes tens of milliseconds each; there is but one.
_BUNDLES: Final = 4
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
#: The lines of a head that are no headers of the request's own: its first one, Host, and the empty one at the end.
_OTHER_LINES: Final = 3


class GuardedConnection(Lifeline):
    """A connection to an address that was judged; one exchange at a time uses it."""

    def __init__(self, connected: Any, address: str, confirmed_at: float) -> None:
        super().__init__(connected)
        self.address = address
        #: When it was known last that the name leads to the address; monotonic.
        self.confirmed_at = confirmed_at
        self._reader = ResponseParser()
        # Kept with the connection: making one anew for each look costs twice what looking costs.
        self._unread = select.poll()
        self._unread.register(connected, select.POLLIN)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on; the certificate has to be that of `host`. Raises OSError, ssl.SSLError among them."""
        # The handshake comes apart from the wrapping, so that it is what can be cut that waits for the peer.
        self.replace(lambda plain: context.wrap_socket(plain, do_handshake_on_connect=False, server_hostname=host))
        cast(ssl.SSLSocket, self.socket).do_handshake()

    def is_dropped(self) -> bool:
        """Tell whether the peer has hung up, or has said what nobody asked for."""
        return bool(self._unread.poll(0))

    def send(self, request: bytes) -> None:
        """Send head and body as one write: one system call here, one wake-up there."""
        # A receiver may answer and hang up before it has read everything; then its answer is there to be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(request)

    def read_answer(self, exchange: Exchange) -> Answer:
        """Return the answer to what was sent. Raises InvalidResponse, OSError."""
        reader, receive = self._reader, self.socket.recv
        reader.read_head(receive)
        exchange.first_byte_at = time.monotonic()
        return reader.read_body(receive)


class Origin:
    """A scheme, host and port: its kept connections, and where its name was found to lead.

    It closes the connections when nobody refers to it any more. Threads share it without a lock: a list gives and takes in
    one step each, and what was taken belongs to the thread that took it.
    """

    def __init__(self, dialer: Dialer, host: str, port: int, context: ssl.SSLContext | None, connections: int) -> None:
        self._dialer = dialer
        self._host = host
        self._port = port
        self._context = context
        self._connections = connections
        #: The one used last is used next, so that in quiet hours the others are left and closed.
        self._kept: list[GuardedConnection] = []
        #: The last look at the name, shared by all connections, so that thousands of posts cost one lookup.
        self._confirmation = Confirmation(-math.inf, None)
        #: What was confirmed up to here counts no more: an answer was refused then.
        self._void_until = -math.inf

    def __del__(self) -> None:
        self.close_kept(math.inf)

    def take(self, exchange: Exchange) -> GuardedConnection:
        """Return a connection for the exchange, kept or new; nothing is sent yet. Raises DialFailed, OSError."""
        try:
            return self._kept_one(exchange) or self.connect(exchange)
        except DialFailed as failed:
            if failed.refused:
                self._void_until = time.monotonic()
                self.close_kept(self._void_until)
            raise

    def keep(self, connection: GuardedConnection) -> None:
        """Keep a connection that an exchange has let go of, unless there are enough."""
        if len(self._kept) < self._connections:
            self._kept.append(connection)
        else:
            connection.close()

    def connect(self, exchange: Exchange) -> GuardedConnection:
        """Return a new connection, for the exchange alone as yet. Raises DialFailed, OSError."""
        confirmed_at = time.monotonic()
        connected, address = self._dialer.dial(self._host, self._port, exchange)
        # What the connect timeout left would be a bound on the handshake; that is the deadline's business.
        connected.settimeout(None)
        connection = GuardedConnection(connected, address, confirmed_at)
        exchange.watch(connection, address)
        if self._context is not None:
            self._secure(connection, self._context, exchange)
        return connection

    def close_kept(self, until: float) -> bool:
        """Close the kept connections that were last confirmed up to `until`; tell whether others are there."""
        for connection in self._kept.copy():
            if connection.confirmed_at <= until:
                with suppress(ValueError):  # a thread has taken it to use it
                    self._kept.remove(connection)
                    connection.close()
        return bool(self._kept)

    def _kept_one(self, exchange: Exchange) -> GuardedConnection | None:
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:
                break  # another thread was faster
            try:
                is_good = not connection.is_dropped() and self._may_be_used(connection, exchange)
            except DialFailed:
                connection.close()
                raise
            if is_good:
                exchange.watch(connection, connection.address)
                return connection
            connection.close()
        return None

    def _secure(self, connection: GuardedConnection, context: ssl.SSLContext, exchange: Exchange) -> None:
        began_at = time.monotonic()
        try:
            connection.secure(context, self._host)
        except BaseException:
            connection.close()
            raise
        exchange.timings = replace(exchange.timings, tls_ms=milliseconds(time.monotonic() - began_at))

    def _may_be_used(self, connection: GuardedConnection, exchange: Exchange) -> bool:
        since = max(time.monotonic() - self._dialer.confirmed_for_s, self._void_until)
        if connection.confirmed_at > since:
            return True
        if self._confirmation.at <= since:
            # Threads that come here together ask once: a name that is being looked up is not looked up a second time.
            self._confirmation = self._dialer.confirm(self._host, self._port, exchange)
        confirmation = self._confirmation
        connection.confirmed_at = confirmation.at
        return confirmation.holds(connection.address)


@dataclass(frozen=True, slots=True)
class _Route:
    """How a URL is reached: where it leads, and how every request to it begins."""

    origin: Origin
    start: str


class GuardedAdapter(BaseAdapter):
    """The transport of requests whose connections the guard opens and the deadline ends."""

    def __init__(self, dialer: Dialer, connections: int) -> None:
        super().__init__()
        self._dialer = dialer
        self._connections = connections
        self._origins: WeakValueDictionary[tuple[Any, ...], Origin] = WeakValueDictionary()
        self._origins_lock = threading.Lock()
        self._route = lru_cache(maxsize=_ROUTES)(self._find_route)
        self._context = lru_cache(maxsize=_BUNDLES)(_trusting)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        """Send the request, once, and return its Answer.

        `timeout` is the Exchange whose deadline bounds it all; `verify` is True or the path of a bundle of certificate
        authorities. Nothing else has a say. Raises DialFailed, InvalidResponse, OSError.
        """
        exchange: Exchange = timeout
        route = self._route(request.url, verify)
        told = _told(route.start, request)
        connection = route.origin.take(exchange)
        try:
            connection.send(told)
            answer = connection.read_answer(exchange)
        except BaseException:
            connection.close()
            raise
        if connection.let_go(exchange) and not answer.ends_connection:
            route.origin.keep(connection)
        else:
            connection.close()
        return answer

    def connect(self, url: str, verify: bool | str, exchange: Exchange) -> GuardedConnection:
        """Return a connection of its own, which is never kept. Raises DialFailed, OSError."""
        return self._route(url, verify).origin.connect(exchange)

    def close_idle(self, idle_s: float) -> bool:
        """Close what has been kept for `idle_s` without use; tell whether anything is kept still."""
        # What is used is confirmed every few seconds; so what was not confirmed is not used, give or take these seconds.
        until = time.monotonic() - idle_s
        with self._origins_lock:
            origins = list(self._origins.values())
        are_kept = [origin.close_kept(until) for origin in origins]
        return any(are_kept)

    def close(self) -> None:
        """Close every kept connection, and those in use as soon as they are let go."""
        # An origin closes its connections when nobody refers to it any more.
        self._route.cache_clear()

    def _find_route(self, url: str, verify: bool | str) -> _Route:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        context = self._context(verify) if parts.scheme == "https" else None
        key = (parts.scheme, host, port, verify)
        with self._origins_lock:
            origin = self._origins.get(key) or Origin(self._dialer, host, port, context, self._connections)
            self._origins[key] = origin
        named = f"[{host}]" if ":" in host else host
        shown = named if port == _DEFAULT_PORTS[parts.scheme] else f"{named}:{port}"
        path = requests.Request("POST", url).prepare().path_url
        return _Route(origin, f"POST {path} HTTP/1.1\r\nHost: {shown}\r\n")


def _told(start: str, request: requests.PreparedRequest) -> bytes:
    """Return the whole request as it goes over the wire. Raises ValueError for a header that would make another one."""
    headers = cast(dict[str, str], request.headers)
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"{start}{''.join(lines)}\r\n"
    # Looking once through all of it costs a third of looking at each part.
    ends = len(lines) + _OTHER_LINES
    if head.count("\r") != ends or head.count("\n") != ends or "\0" in head:
        raise ValueError("A header holds a line end or a zero byte; it would be read as another header.")
    return head.encode("latin-1") + cast(bytes, request.body)


def _trusting(verify: Literal[True] | str) -> ssl.SSLContext:
    """Return what TLS to receivers is made with: the usual authorities, or those of a bundle, and at least TLS 1.2."""
    context = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH if verify is True else verify)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A certificate names its hosts where that has a form; its subject's common name is anything.
    context.hostname_checks_common_name = False
    # Receivers that speak HTTP/2 as well need not guess.
    context.set_alpn_protocols(["http/1.1"])
    return context
