"""Connections that only the dialer opens, kept open while their names still resolve to their addresses.

Accounts do not share connections: name servers that do not answer for one account do not affect the connections of another.
Client certificates do not share them either: a connection belongs to the identity that opened it.

A request is one write, a response is read as far as `worker.http.response_parser` allows, and nothing in between sends a
request twice. A POST over a kept connection takes 60 µs of processor time, half of it in the kernel. With requests' own
adapter, urllib3 and http.client it took 360 µs.
"""

import math
import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, cast
from weakref import WeakValueDictionary

from runtime.account_shares import AccountId
from runtime.tls_context import client_context
from schemas.settings.certificates import load_pair
from schemas.settings.egress import Egress
from schemas.url_policy.policy import RefusalReason, TargetPolicy
from schemas.url_policy.target_url import DEFAULT_PORTS, check_url
from worker.http.deadline import Exchange, WatchedSocket, milliseconds
from worker.http.dialer import Confirmation, Dialer
from worker.http.errors import TargetRefused, TransportError, transport_error
from worker.http.response_parser import ParsedResponse, ResponseParser

#: How many routes and policy verdicts of URLs are cached. An origin's kept connections are closed with its last route.
_ROUTES: Final = 1024
#: How long an origin keeps no connections after the receiver closed a kept one instead of responding. Some receivers close
#: every connection after a response without announcing it: up to every second attempt would fail.
KEEPS_NONE_S: Final = 10.0
#: How many TLS contexts are cached, one for each client certificate; each context holds all authorities.
_CONTEXTS: Final = 128


class GuardedConnection(WatchedSocket):
    """A connection to an address that the policy allowed; one exchange at a time uses it."""

    def __init__(self, connected: socket.socket, address: str, confirmed_at: float) -> None:
        super().__init__(connected)
        self.address = address
        #: When the name was last known to resolve to the address; monotonic.
        self.confirmed_at = confirmed_at
        #: Whether it has carried a response before.
        self.is_kept = False
        self._parser = ResponseParser()
        # Created once per connection: creating a poll object costs twice as much as the check.
        self._unread = select.poll()
        self._unread.register(connected, select.POLLIN)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS; the certificate must be valid for `host`. Raises OSError, including ssl.SSLError."""
        # The handshake is separate from the wrapping, so that the watchdog can shut down a handshake that waits.
        self.replace(lambda plain: context.wrap_socket(plain, do_handshake_on_connect=False, server_hostname=host))
        cast(ssl.SSLSocket, self.socket).do_handshake()

    def is_dropped(self) -> bool:
        """Return whether the peer has hung up, or has sent bytes that no request asked for."""
        return bool(self._unread.poll(0))

    def send(self, message: bytes) -> None:
        """Send head and body in one write: one system call for us, one wake-up for the receiver."""
        # A receiver may respond and close the connection before it has read the whole request. Its response, or its alert
        # about our certificate, can still be read.
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            self.socket.sendall(message)

    def read_response(self, exchange: Exchange) -> ParsedResponse:
        """Return the response to what was sent. Raises InvalidResponse, OSError."""
        self._parser.read_head(self.socket.recv)
        exchange.first_byte_at = time.monotonic()
        return self._parser.read_body(self.socket.recv, exchange.max_response_bytes)


class Origin:
    """A scheme, host and port of an account: its kept connections, and the last resolution of its name.

    Closes the connections when the last reference to it is gone. Threads share it without a lock: taking from and
    adding to a list are atomic, and a connection that a thread has removed from the list belongs to that thread.
    """

    def __init__(self, dialer: Dialer, host: str, port: int, context: ssl.SSLContext | None, connections: int) -> None:
        self._dialer = dialer
        self._host = host
        self._port = port
        self._context = context
        self._connections = connections
        #: The connection used last is used next, so that with few requests the others become idle and are closed.
        self._kept: list[GuardedConnection] = []
        #: The last resolution of the name, shared by all connections, so that thousands of posts cost one lookup.
        self._confirmation: Confirmation = (-math.inf, None)
        #: Confirmations up to this time are void: the policy refused an address then.
        self._void_until = -math.inf
        #: Until this time, no connection is kept.
        self._keeps_none_until = -math.inf

    def __del__(self) -> None:
        self.close_kept(math.inf)

    def perform(self, message: bytes, exchange: Exchange) -> ParsedResponse:
        """Send a message once and return the response. Raises TransportError, InvalidResponse, OSError."""
        connection = self._take(exchange)
        try:
            exchange.has_sent = True
            connection.send(message)
            response = connection.read_response(exchange)
        except BaseException as failed:
            connection.close()
            if connection.is_kept and isinstance(failed, ConnectionResetError) and not exchange.is_over():
                self._keeps_none_until = time.monotonic() + KEEPS_NONE_S
            raise
        # Release the connection before keeping it: see `WatchedSocket`.
        may_keep = len(self._kept) < self._connections and time.monotonic() >= self._keeps_none_until
        if connection.release(exchange) and not response.ends_connection and may_keep:
            connection.is_kept = True
            self._kept.append(connection)
        else:
            connection.close()
        return response

    def connect(self, exchange: Exchange) -> GuardedConnection:
        """Return a new connection, used by the exchange alone. Raises TransportError, OSError."""
        confirmed_at = time.monotonic()
        connected, address = self._dialer.dial(self._host, self._port, exchange)
        # Remove the rest of the connect timeout: the deadline bounds the handshake.
        connected.settimeout(None)
        connection = GuardedConnection(connected, address, confirmed_at)
        exchange.use(connection, address)
        if self._context is not None:
            began_at = time.monotonic()
            try:
                connection.secure(self._context, self._host)
            except BaseException:
                connection.close()
                raise
            exchange.tls_ms = milliseconds(time.monotonic() - began_at)
        return connection

    def close_kept(self, until: float) -> bool:
        """Close the kept connections that were last confirmed up to `until`; return whether others remain."""
        for connection in self._kept.copy():
            if connection.confirmed_at <= until:
                with suppress(ValueError):  # another thread has taken it
                    self._kept.remove(connection)
                    connection.close()
        return bool(self._kept)

    def _take(self, exchange: Exchange) -> GuardedConnection:
        """Return a kept or a new connection. Raises TransportError, OSError."""
        try:
            return self._take_kept(exchange) or self.connect(exchange)
        except TargetRefused:
            self._void_until = time.monotonic()
            self.close_kept(self._void_until)
            raise

    def _take_kept(self, exchange: Exchange) -> GuardedConnection | None:
        """Return a kept connection that still works; None if there is none."""
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:
                break  # another thread took the last one
            try:
                is_good = not connection.is_dropped() and self._is_confirmed(connection, exchange)
            except TransportError:
                connection.close()
                raise
            if is_good:
                exchange.use(connection, connection.address)
                return connection
            connection.close()
        return None

    def _is_confirmed(self, connection: GuardedConnection, exchange: Exchange) -> bool:
        since = max(time.monotonic() - self._dialer.confirmed_for_s, self._void_until)
        if connection.confirmed_at > since:
            return True
        if self._confirmation[0] <= since:
            # Several threads at once cause one lookup: the resolver joins concurrent lookups of a name.
            self._confirmation = self._dialer.confirm(self._host, self._port, exchange)
        connection.confirmed_at, addresses = self._confirmation
        return addresses is None or connection.address in addresses


@dataclass(frozen=True, slots=True)
class Route:
    """The origin of a URL, and the `start` of each request to it: the text from the path to the Host header."""

    origin: Origin
    start: str


class ConnectionPool:
    """Finds the route of a URL, and keeps the connections of at most `_ROUTES` routes.

    An origin keeps up to `connections` connections. `verify` is True for the usual certificate authorities, or the path of a
    bundle, to which `egress` adds its own.
    """

    def __init__(
        self, policy: TargetPolicy, dialer: Dialer, connections: int, verify: Literal[True] | str, egress: Egress
    ) -> None:
        self._policy = policy
        self._dialer = dialer
        self._connections = connections
        self._verify = verify
        self._egress = egress
        self._origins: WeakValueDictionary[tuple[AccountId, str, str, int, str | None], Origin] = WeakValueDictionary()
        self._origins_lock = threading.Lock()
        self._route_or_refusal = lru_cache(maxsize=_ROUTES)(self._find_route)
        # Reading the authorities takes tens of milliseconds, and is not needed for plain http.
        self._context = lru_cache(maxsize=_CONTEXTS)(self._make_context)

    def route(self, url: str, account_id: AccountId, certificate: str | None = None) -> Route:
        """Return the route of an account's URL, with the target's own client certificate if it has one.

        Raises TargetRefused if the policy forbids the URL, TransportError if the certificate is unusable.
        """
        found = self._route_or_refusal(url, account_id, certificate)
        if isinstance(found, RefusalReason):
            raise TargetRefused(found)
        return found

    def close_idle(self, idle_s: float) -> bool:
        """Close connections that were not used for `idle_s`; return whether any are still kept."""
        # A connection in use is confirmed every few seconds: one last confirmed before `until` has not been used since then.
        until = time.monotonic() - idle_s
        with self._origins_lock:
            origins = list(self._origins.values())
        are_kept = [origin.close_kept(until) for origin in origins]
        return any(are_kept)

    def close(self) -> None:
        """Close every kept connection, and those in use as soon as they are released."""
        # An origin closes its connections when the last reference to it is gone.
        self._route_or_refusal.cache_clear()

    def _make_context(self, certificate: str | None) -> ssl.SSLContext:
        context = client_context(self._egress.authorities, None if self._verify is True else self._verify)
        # A certificate names its hosts in the subject alternative name; the common name may be anything.
        context.hostname_checks_common_name = False
        # A receiver that also speaks HTTP/2 must choose HTTP/1.1.
        context.set_alpn_protocols(["http/1.1"])
        if certificate is not None:
            try:
                load_pair(context, certificate)
            except ssl.SSLError as refused:
                # The certificate was valid when it was set, so this host has another OpenSSL or stricter settings.
                raise transport_error("client_certificate_refused") from refused
        return context

    def _find_route(self, url: str, account_id: AccountId, own_certificate: str | None) -> Route | RefusalReason:
        target = check_url(url, self._policy)
        if isinstance(target, RefusalReason):
            return target
        certificate = own_certificate or self._egress.certificate_for(account_id)
        key = (account_id, target.scheme, target.host, target.port, certificate)
        context = self._context(certificate) if target.scheme == "https" else None
        with self._origins_lock:
            origin = self._origins.get(key) or Origin(self._dialer, target.host, target.port, context, self._connections)
            self._origins[key] = origin
        host = f"[{target.host}]" if ":" in target.host else target.host
        shown = host if target.port == DEFAULT_PORTS[target.scheme] else f"{host}:{target.port}"
        return Route(origin, f" {target.path_and_query} HTTP/1.1\r\nHost: {shown}\r\n")
