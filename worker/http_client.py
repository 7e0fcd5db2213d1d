"""Dial only addresses that the policy allows, and come back within one deadline.

A name is resolved once, every answer is classified, and the very address that was classified is dialled; Host, SNI and the
certificate's name stay those of the URL. A kept-alive connection is used only while its name was found to lead to its
address within the last few seconds. Redirects are not followed; proxies, netrc and CA variables of the environment do not
count. One deadline covers DNS, connect, TLS, headers and body (`worker.deadline`), and what a receiver may say is bounded in
bytes as they come: headers, body, and what frames it.
"""

import math
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPConnection as PlainConnection
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from typing import Any, Final, cast
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from schemas.delivery import Outcome
from schemas.target_url import Refusal, TargetPolicy, check_answers, check_url
from schemas.validations import EXPIRES_SOON, EXPIRES_SOON_DAYS, Validation
from storage.clock import utc_now
from storage.name_lookup import Address, LookupReason, NameLookup, NameLookupFailed
from worker.deadline import Exchange, Lifeline, Watchdog, current, milliseconds

#: Enough for a ticket's id and link; what is longer is not read.
MAX_ANSWER_BYTES: Final = 64 * 1024
#: The part of an answer that is kept in memory for reading codes and links.
_PIECE_BYTES: Final = 16 * 1024
#: Servers and proxies send 8 to 32 KiB of headers at most; interim answers (100, 103) count as well.
MAX_HEAD_BYTES: Final = 64 * 1024
#: What a chunked body may be with its sizes, extensions and trailers: no honest one is framed by more than it holds.
MAX_CHUNKED_BYTES: Final = 2 * MAX_ANSWER_BYTES
#: How long an answer of the name servers counts for kept connections. A receiver that moves leaves its name to be cached for
#: 30 s and more, so this is no delay that anybody sees, and one lookup per host in this time is no load.
CONFIRMED_FOR_S: Final = 5.0
#: How long a kept connection waits for that answer. Working name servers need milliseconds; one that is away must not take
#: the time that the delivery needs.
_CONFIRM_WAIT_S: Final = 1.0
#: How long a connection is kept without use. Load balancers and firewalls commonly forget one after 60 s, some silently.
KEPT_IDLE_S: Final = 30.0
#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, which the ssl module has no name for.
_CERT_HAS_EXPIRED: Final = 10
#: URL verdicts are kept for this many targets.
_KNOWN_URLS: Final = 1024
#: Hosts whose kept-alive connections are held at once; a descriptor pair each, and idle ones are closed soon.
_POOLS: Final = 1024


class _DialFailed(Exception):
    """No connection was made; `error` names why, `refused` tells that our policy said no."""

    def __init__(self, error: str, *, refused: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.refused = refused


class HttpClient:
    """Posts to targets over kept-alive connections; one for all threads of a process.

    `verify` is True for the usual certificate authorities, or the path of a bundle. A kept connection is used while its name
    was confirmed within `confirmed_for_s`, and closed when nobody used it for some `kept_idle_s`.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        lookup: NameLookup,
        deadline_s: float,
        connect_timeout_s: float,
        connections: int,
        verify: bool | str = True,
        confirmed_for_s: float = CONFIRMED_FOR_S,
        kept_idle_s: float = KEPT_IDLE_S,
    ) -> None:
        self._policy = policy
        self._deadline_s = deadline_s
        self._verify = verify
        self._adapter = _GuardedAdapter(_Dialler(policy, lookup, connect_timeout_s, confirmed_for_s), connections)
        self._watchdog = Watchdog(lambda: self._adapter.close_idle(kept_idle_s), kept_idle_s / 6)
        self._checked = lru_cache(maxsize=_KNOWN_URLS)(self._check)

    def post(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Send one POST and return what it met; never raises for what the network or the receiver does."""
        checked = self._checked(url)
        if isinstance(checked, Refusal):
            return Outcome(error=checked.reason, refused=True)
        exchange = Exchange(time.monotonic() + self._deadline_s)
        self._watchdog.watch(exchange)
        try:
            return self._exchange(_request(checked, headers, body), exchange)
        finally:
            self._watchdog.forget(exchange)

    def inspect(self, url: str) -> Validation:
        """Look at a target as a delivery would meet it now, from its URL to its certificate; sends nothing and never raises.

        Reasons are the error names of attempts, and `certificate_expired` beside them.
        """
        checked = self._checked(url)
        if isinstance(checked, Refusal):
            return Validation(checked.reason, is_refused=True)
        exchange = Exchange(time.monotonic() + self._deadline_s)
        self._watchdog.watch(exchange)
        try:
            return self._look(checked, exchange)
        finally:
            self._watchdog.forget(exchange)

    def close(self) -> None:
        """Close every kept-alive connection."""
        self._adapter.close()

    def _check(self, url: str) -> str | Refusal:
        """Check the URL, and return it as requests spells it; both are the same for every delivery to it."""
        checked = check_url(url, self._policy)
        return checked if isinstance(checked, Refusal) else str(requests.Request("POST", checked.url).prepare().url)

    def _exchange(self, request: requests.PreparedRequest, exchange: Exchange) -> Outcome:
        try:
            answer: Any = self._adapter.send(request, stream=True, timeout=None, verify=self._verify, proxies={})
        except _DialFailed as failed:
            return exchange.outcome(error=failed.error, refused=failed.refused)
        except (requests.RequestException, HTTPError, OSError) as failed:
            return exchange.outcome(error="deadline_exceeded" if exchange.is_over() else _error_name(failed))
        exchange.first_byte_at = time.monotonic()
        retry_after = answer.headers.get("Retry-After")
        return exchange.outcome(status=answer.status, retry_after=retry_after, body=_read(answer))

    def _look(self, url: str, exchange: Exchange) -> Validation:
        try:
            with closing(self._adapter.new_connection(url, self._verify)) as connection:
                connection.connect()
                return _judge_certificate(connection.sock)
        except _DialFailed as failed:
            return Validation(failed.error, failed.refused)
        except (HTTPError, OSError) as failed:
            return Validation("deadline_exceeded" if exchange.is_over() else _fault_in(failed))


def _request(url: str, headers: dict[str, str], body: bytes) -> requests.PreparedRequest:
    """Put a request together from parts that are in order already; preparing it anew costs a fifth of sending it."""
    request = requests.PreparedRequest()
    request.method, request.url, request.body = "POST", url, body
    framing = {"Accept-Encoding": "identity", "Content-Length": str(len(body))}
    request.headers = {**headers, **framing}  # type: ignore[assignment]  # nobody looks them up in another case
    return request


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """Where a name led when it was asked `at` (monotonic); `addresses` is None where nobody answered."""

    at: float
    addresses: frozenset[str] | None

    def holds(self, address: str) -> bool:
        """Tell whether a connection to `address` may go on: it was judged once, and silence takes nothing back."""
        return self.addresses is None or address in self.addresses


class _Dialler:
    """Opens the socket of a new connection: resolve once, classify every answer, dial what was classified."""

    def __init__(self, policy: TargetPolicy, lookup: NameLookup, connect_timeout_s: float, confirmed_for_s: float) -> None:
        self._policy = policy
        self._lookup = lookup
        self._connect_timeout_s = connect_timeout_s
        self.confirmed_for_s = confirmed_for_s

    def dial(self, host: str, port: int) -> tuple[socket.socket, str]:
        """Return a connected socket and the address it is connected to. Raises _DialFailed."""
        exchange = current()
        addresses = self._look_up(host, port, exchange.remaining_s(), exchange)
        resolved_at = time.monotonic()
        connected = self._connect([str(address) for address in addresses], port, exchange)
        exchange.timings = replace(exchange.timings, connect_ms=milliseconds(time.monotonic() - resolved_at))
        return connected

    def confirm(self, host: str, port: int) -> _Confirmation:
        """Ask where the name of a kept connection leads now. Raises _DialFailed if the policy refuses an answer."""
        exchange, at = current(), time.monotonic()
        try:
            addresses = self._look_up(host, port, min(_CONFIRM_WAIT_S, exchange.remaining_s() / 2), exchange)
        except _DialFailed as failed:
            if failed.refused:
                raise
            # That there is no such name is an answer too: what was its address may be somebody else's tomorrow.
            return _Confirmation(at, frozenset() if failed.error == LookupReason.NOT_FOUND else None)
        return _Confirmation(at, frozenset(str(address) for address in addresses))

    def _look_up(self, host: str, port: int, timeout_s: float, exchange: Exchange) -> Sequence[Address]:
        """Return all addresses of a name, each of which may be dialled."""
        began_at = time.monotonic()
        try:
            addresses = self._lookup.resolve(host.strip("[]"), port, timeout_s)
        except NameLookupFailed as failed:
            raise _DialFailed(failed.reason) from None
        finally:
            dns_ms = (exchange.timings.dns_ms or 0) + milliseconds(time.monotonic() - began_at)
            exchange.timings = replace(exchange.timings, dns_ms=dns_ms)
        refusal = check_answers(addresses, self._policy)
        if refusal is not None:
            raise _DialFailed(refusal.reason, refused=True)
        return addresses

    def _connect(self, addresses: list[str], port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Try each address in the resolver's order within the connect timeout and the deadline.

        Each gets its share of what is left, so that a dead IPv6 route leaves time for IPv4.
        """
        until = time.monotonic() + min(self._connect_timeout_s, exchange.remaining_s())
        error = "connect_timeout"
        for number, address in enumerate(addresses):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                return _open(address, port, left_s / (len(addresses) - number)), address
            except TimeoutError:
                error = "connect_timeout"
            except ConnectionRefusedError:
                error = "connect_refused"
            except OSError:
                error = "connect_failed"
        raise _DialFailed("deadline_exceeded" if exchange.is_over() else error)


def _open(address: str, port: int, timeout_s: float) -> socket.socket:
    connected = socket.create_connection((address, port), timeout=timeout_s)
    # A second packet would wait 40 ms for the peer's delayed acknowledgement of the first.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class _TooMuch(HTTPException):
    """The receiver says more than a client has to listen to."""


class _Counted:
    """A stream that ends with an error once it has given `limit` bytes."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def flush(self) -> None:
        """For closing: there is nothing to flush where nothing is written."""

    def close(self) -> None:
        self._stream.close()

    def _count(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise _TooMuch("The answer is longer than it may be.")
        return data


class _Head(_Counted):
    """The lines of a head, which must not end within one or before the next; http.client takes that for the headers' end."""

    def readline(self, limit: int) -> bytes:
        line = self._count(self._stream.readline(limit))
        if not line.endswith(b"\n") and len(line) < limit:
            raise RemoteDisconnected("The connection ended within the headers.")
        return line


class _Chunks(_Counted):
    """A chunked body with all that frames it; one byte can come in 64 KiB of extensions, and trailers need not end."""

    def readline(self, limit: int) -> bytes:
        return self._count(self._stream.readline(limit))

    def read(self, size: int) -> bytes:
        if size < 0:
            # http.client takes a size of -1 from the wire, which means to read whatever comes.
            raise _TooMuch("A chunk has a negative size.")
        return self._count(self._stream.read(size))


class _BoundedAnswer(HTTPResponse):
    """An answer whose status counts only when its headers are complete, and whose bytes are counted as they come."""

    def begin(self) -> None:
        stream, head = self.fp, cast(Any, _Head(self.fp, MAX_HEAD_BYTES))
        self.fp = head
        try:
            super().begin()
        finally:
            # None where the headers were nonsense and the connection is closed already.
            self.fp = stream if self.fp is head else self.fp
        if self.chunked:
            self.fp = cast(Any, _Chunks(self.fp, MAX_CHUNKED_BYTES))

    def _read_status(self) -> tuple[str, int, str]:
        """Skip interim answers; http.client knows 100 alone and would take 103 for the last word."""
        told: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]  # typeshed shows what is public
        while HTTPStatus.CONTINUE < told[1] < HTTPStatus.OK and told[1] != HTTPStatus.SWITCHING_PROTOCOLS:
            while self.fp.readline(MAX_HEAD_BYTES) not in {b"\r\n", b"\n"}:
                pass
            told = super()._read_status()  # type: ignore[misc]
        return told


class _GuardedConnection(HTTPConnection):
    """A connection that is dialled by the guard and watched by the deadline, the first time and every time it is reused."""

    response_class = _BoundedAnswer
    dialler: _Dialler
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


class _GuardedTlsConnection(_GuardedConnection, HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        super().connect()
        tls_ms = milliseconds(time.monotonic() - self.dialled_at)
        current().timings = replace(current().timings, tls_ms=tls_ms)


class _GuardedPool(HTTPConnectionPool):
    """The kept connections of one host and port, each used only where the name is known to lead to its address still."""

    dialler: _Dialler
    #: The last look at the name, shared by all connections, so that thousands of posts cost one lookup.
    _confirmation = _Confirmation(-math.inf, None)
    #: What was confirmed up to here counts no more: an answer was refused then.
    _void_until = -math.inf

    def _validate_conn(self, conn: Any) -> None:
        """Close the connection if it must not be used again, and dial if needed; nothing of the request is sent yet."""
        try:
            if not conn.is_closed and not self._may_be_used(conn):
                conn.close()
            if conn.is_closed:
                conn.connect()
        except _DialFailed as failed:
            if failed.refused:
                self._void_until = time.monotonic()
                self.close_kept(self._void_until)
            raise
        super()._validate_conn(conn)

    def _may_be_used(self, connection: _GuardedConnection) -> bool:
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


class _GuardedAdapter(HTTPAdapter):
    """An adapter whose pools open guarded connections only."""

    def __init__(self, dialler: _Dialler, connections: int) -> None:
        self._dialler = dialler
        self._pools: WeakSet[_GuardedPool] = WeakSet()
        self._pools_lock = threading.Lock()
        super().__init__(pool_connections=_POOLS, pool_maxsize=connections, max_retries=0)
        self._pool_of = lru_cache(maxsize=_POOLS)(self._find_pool)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        dialler = {"dialler": self._dialler}
        plain = type("_Connection", (_GuardedConnection,), dialler)
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

    def new_connection(self, url: str, verify: bool | str) -> _GuardedConnection:
        """Return a connection of its own, not dialled yet and never kept."""
        pool = self._pool_of(url, verify)
        self.cert_verify(pool, url, verify, None)
        connection = cast(_GuardedConnection, pool._new_conn())
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


def _read(answer: BaseHTTPResponse) -> bytes:
    """Read the answer as far as the cap and the deadline allow; a longer or broken one ends its connection."""
    pieces: list[bytes] = []
    size = 0
    try:
        while size < MAX_ANSWER_BYTES:
            piece = answer.read(min(_PIECE_BYTES, MAX_ANSWER_BYTES - size), decode_content=False)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if answer.length_remaining == 0:
                return b"".join(pieces)
        answer.close()
    except (HTTPError, OSError):
        # Its status was an answer; what was read of the body is what there is.
        answer.close()
    return b"".join(pieces)


def _judge_certificate(connected: Any) -> Validation:
    """Tell whether the certificate, which has been verified, runs out soon; over plain http there is none."""
    if not isinstance(connected, ssl.SSLSocket):
        return Validation()
    certificate: Any = connected.getpeercert()
    left_s = ssl.cert_time_to_seconds(certificate["notAfter"]) - utc_now().timestamp()
    return Validation(EXPIRES_SOON if left_s < EXPIRES_SOON_DAYS * 24 * 3600 else None)


def _fault_in(failed: Exception) -> str:
    """Name what an inspection met: as an attempt would, but for a certificate that has run out."""
    if isinstance(failed, ssl.SSLCertVerificationError) and failed.verify_code == _CERT_HAS_EXPIRED:
        return "certificate_expired"
    return _error_name(failed)


def _error_name(failed: Exception) -> str:
    """Name what went wrong between connecting and the end of the headers."""
    if isinstance(failed, requests.ReadTimeout):
        return "deadline_exceeded"
    if isinstance(failed, requests.exceptions.SSLError | ssl.SSLError):
        return "tls_certificate" if "CERTIFICATE_VERIFY_FAILED" in str(failed) else "tls_failed"
    # requests derives everything from OSError: what is not about the connection is about what came over it.
    if isinstance(failed, requests.RequestException | HTTPError) and not isinstance(failed, requests.ConnectionError):
        return "bad_answer"
    return "bad_answer" if _is_nonsense(failed) else "connection_closed"


def _is_nonsense(failed: Exception) -> bool:
    """Tell whether what came is no HTTP: urllib3 wraps what http.client says about it, requests wraps that."""
    told: object = failed
    while isinstance(told, requests.RequestException | HTTPError):
        told = told.args[-1] if told.args else None
    return isinstance(told, HTTPException) and not isinstance(told, RemoteDisconnected)
