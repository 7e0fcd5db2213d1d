"""Dial only addresses that the policy allows, and come back within one deadline.

A name is resolved once, every answer is classified, and the very address that was classified is dialled; Host, SNI and the
certificate's name stay those of the URL. Redirects are not followed; proxies, netrc and CA variables of the environment do
not count. One deadline covers DNS, connect, TLS, headers and body (`worker.deadline`).
"""

import socket
import ssl
import time
from dataclasses import replace
from functools import lru_cache
from http.client import HTTPConnection as PlainConnection
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from typing import Any, Final, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from schemas.delivery import Outcome
from schemas.target_url import Refusal, TargetPolicy, check_answers, check_url
from storage.name_lookup import NameLookup, NameLookupFailed
from worker.deadline import Exchange, Lifeline, Watchdog, current, milliseconds

#: Enough for a ticket's id and link; what is longer is not read.
MAX_ANSWER_BYTES: Final = 64 * 1024
#: The part of an answer that is kept in memory for reading codes and links.
_PIECE_BYTES: Final = 16 * 1024
#: URL verdicts are kept for this many targets.
_KNOWN_URLS: Final = 1024
#: Hosts whose kept-alive connections are held at once.
_POOLS: Final = 64


class _DialFailed(Exception):
    """No connection was made; `error` names why, `refused` tells that our policy said no."""

    def __init__(self, error: str, *, refused: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.refused = refused


class HttpClient:
    """Posts to targets over kept-alive connections; one for all threads of a process.

    `verify` is True for the usual certificate authorities, or the path of a bundle.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        lookup: NameLookup,
        deadline_s: float,
        connect_timeout_s: float,
        connections: int,
        verify: bool | str = True,
    ) -> None:
        self._policy = policy
        self._deadline_s = deadline_s
        self._verify = verify
        self._watchdog = Watchdog()
        self._adapter = _GuardedAdapter(_Dialler(policy, lookup, connect_timeout_s), connections)
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


def _request(url: str, headers: dict[str, str], body: bytes) -> requests.PreparedRequest:
    """Put a request together from parts that are in order already; preparing it anew costs a fifth of sending it."""
    request = requests.PreparedRequest()
    request.method, request.url, request.body = "POST", url, body
    framing = {"Accept-Encoding": "identity", "Content-Length": str(len(body))}
    request.headers = {**headers, **framing}  # type: ignore[assignment]  # nobody looks them up in another case
    return request


class _Dialler:
    """Opens the socket of a new connection: resolve once, classify every answer, dial what was classified."""

    def __init__(self, policy: TargetPolicy, lookup: NameLookup, connect_timeout_s: float) -> None:
        self._policy = policy
        self._lookup = lookup
        self._connect_timeout_s = connect_timeout_s

    def dial(self, host: str, port: int) -> tuple[socket.socket, str]:
        """Return a connected socket and the address it is connected to. Raises _DialFailed."""
        exchange = current()
        began_at = time.monotonic()
        addresses = self._resolve(host, port, exchange)
        refusal = check_answers(addresses, self._policy)
        if refusal is not None:
            raise _DialFailed(refusal.reason, refused=True)
        resolved_at = time.monotonic()
        exchange.timings = replace(exchange.timings, dns_ms=milliseconds(resolved_at - began_at))
        connected = self._connect([str(address) for address in addresses], port, exchange)
        exchange.timings = replace(exchange.timings, connect_ms=milliseconds(time.monotonic() - resolved_at))
        return connected

    def _resolve(self, host: str, port: int, exchange: Exchange) -> Any:
        try:
            return self._lookup.resolve(host.strip("[]"), port, exchange.remaining_s())
        except NameLookupFailed as failed:
            raise _DialFailed(failed.reason) from None

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


class _Lines:
    """A stream that must not end within a line or before the next one; http.client takes its end for that of the headers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self, limit: int) -> bytes:
        line: bytes = self._stream.readline(limit)
        if not line.endswith(b"\n") and len(line) < limit:
            raise RemoteDisconnected("The connection ended within the headers.")
        return line

    def close(self) -> None:
        self._stream.close()


class _WholeHead(HTTPResponse):
    """An answer whose status counts only when its headers are complete."""

    def begin(self) -> None:
        stream, lines = self.fp, cast(Any, _Lines(self.fp))
        self.fp = lines
        try:
            super().begin()
        finally:
            # None where the headers were nonsense and the connection is closed already.
            self.fp = stream if self.fp is lines else self.fp


class _GuardedConnection(HTTPConnection):
    """A connection that is dialled by the guard and watched by the deadline, the first time and every time it is reused."""

    response_class = _WholeHead
    dialler: _Dialler
    lifeline: Lifeline | None = None
    address: str = ""
    _unsent: list[Any] | None = None

    #: urllib3's own looks in every value for a mark that leaves a header out; we leave none out.
    putheader = PlainConnection.putheader

    def _new_conn(self) -> socket.socket:
        connected, self.address = self.dialler.dial(self._dns_host, self.port)
        # What the connect timeout left would be a bound on the handshake; that is the deadline's business.
        connected.settimeout(self.timeout)
        self.lifeline = Lifeline(connected)
        current().watch(self.lifeline, self.address)
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
        began_at = time.monotonic()
        super().connect()
        timings = current().timings
        before_tls_ms = (timings.dns_ms or 0) + (timings.connect_ms or 0)
        tls_ms = max(0, milliseconds(time.monotonic() - began_at) - before_tls_ms)
        current().timings = replace(timings, tls_ms=tls_ms)


class _GuardedAdapter(HTTPAdapter):
    """An adapter whose pools open guarded connections only."""

    def __init__(self, dialler: _Dialler, connections: int) -> None:
        self._dialler = dialler
        super().__init__(pool_connections=_POOLS, pool_maxsize=connections, max_retries=0)
        self._pool_of = lru_cache(maxsize=_POOLS)(self._find_pool)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        dialler = {"dialler": self._dialler}
        plain = type("_Connection", (_GuardedConnection,), dialler)
        tls = type("_TlsConnection", (_GuardedTlsConnection,), dialler)
        self.poolmanager.pool_classes_by_scheme = {
            "http": type("_Pool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("_TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
        }

    def close(self) -> None:
        # A pool closes its connections when nobody refers to it any more.
        self._pool_of.cache_clear()
        super().close()

    def get_connection_with_tls_context(
        self, request: requests.PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        """Return the pool of the URL's origin; looking for it anew would be a tenth of a delivery."""
        return self._pool_of(request.url, verify)

    def _find_pool(self, url: str, verify: bool | str) -> HTTPConnectionPool:
        return super().get_connection_with_tls_context(requests.Request("POST", url).prepare(), verify)

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
