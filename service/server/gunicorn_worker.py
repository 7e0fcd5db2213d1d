"""gunicorn's gevent worker with time limits, connection limits and the common error body.

It sends the common error body for requests that do not reach the application.

Imports neither the application nor the storage: the parent process loads this module before gevent patches anything.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socket import SOCK_STREAM
from typing import Any, ClassVar, Final

import gevent
from gevent import socket
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.util import write_nonblock
from gunicorn.workers.ggevent import GeventWorker

from runtime.clock import utc_now
from schemas.base.errors import PayloadTooLarge, RequestTimeout, RiskRelayError, ValidationFailed, error_body
from service.http.security_headers import SAFE_HEADERS
from service.server.client_connection import ClientConnection, ConnectionTimeouts, HeadersTimeout
from service.server.connection_limit import ConnectionLimit
from storage.db import identifiers

#: Shorter than a request, so that connections are served in turns, one request each. With this value the 99th percentile of
#: reads over 16 connections is 10 ms; with 5 ms it was 54 ms, at the same throughput.
_MAX_UNYIELDED_S: Final = 0.0002
#: One iteration of gevent's loop. With `sleep(0)` the greenlet would resume up to fifty times before a socket is polled.
_YIELD_S: Final = 0.000_001
#: The maximum size of the rest of a rejected body that is read to keep the connection. For a longer rest, a new connection
#: is cheaper.
_REST_BYTES: Final = 64 * 1024
_KEY: Final = "IDEMPOTENCY-KEY"


class Yielder:
    """Lets the other connections of this process run between two requests, or between two reads of a body."""

    def __init__(self) -> None:
        self._yielded_at = 0.0

    def __call__(self) -> None:
        """Yield, unless this process yielded just before."""
        now = time.monotonic()
        if now - self._yielded_at > _MAX_UNYIELDED_S:
            # Also set before the pause, so that greenlets that run during it do not yield again, and new clients soon reach
            # `ConnectionLimit`.
            self._yielded_at = now
            gevent.sleep(_YIELD_S)
            self._yielded_at = time.monotonic()


class ServiceWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no annotations
    """Disconnects stalled and evicted clients, and rejects malformed HTTP with the common error body.

    The worker yields between requests. Otherwise a client that sends without a pause would keep the process to itself,
    because its next request arrives before gevent would wait for it. On a stop, idle connections are closed, and requests in
    progress finish within the graceful timeout.
    """

    timeouts: ClassVar = ConnectionTimeouts()
    sockets: list[Any]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._connection_limit = ConnectionLimit(self.worker_connections)
        self._connections: dict[gevent.Greenlet, ClientConnection] = {}
        self._yield_to_others = Yielder()

    def patch(self) -> None:
        """Convert the sockets that the parent has opened to gevent's; the parent has already patched the standard library.

        Patching again, as gunicorn would, touches every object, so no memory would be shared with the parent.
        """
        self.sockets = [socket.socket(each.FAMILY, SOCK_STREAM, fileno=each.sock.detach()) for each in self.sockets]

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve a connection until it ends."""
        greenlet = gevent.getcurrent()
        # A unix socket's peers have no address.
        host = addr[0] if isinstance(addr, tuple) else ""
        connection = self._connections[greenlet] = ClientConnection(client, host, self._yield_to_others, self.timeouts)
        self._connection_limit.add(connection)
        try:
            super().handle(listener, connection, addr)
        finally:
            self._connection_limit.remove(connection)
            del self._connections[greenlet]

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Start waiting for a request; the connection itself enforces the time limit."""
        self._yield_to_others()
        self._connections[gevent.getcurrent()].expect_request(self.cfg.keepalive)
        yield

    def handle_request(self, listener_name: Any, req: Any, sock: ClientConnection, addr: Any) -> None:
        """Respond to a request; the connection is reused only if the whole body of this request was read."""
        _join_keys(req)
        sock.expect_body()
        try:
            super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            if _has_rest(req):
                sock.linger()
            raise
        if _has_rest(req) and not _is_short(req, sock):
            sock.linger()
            raise StopIteration

    def notify(self) -> None:
        """Report to the parent once a second and enforce the connection limit; when stopping, close idle connections."""
        super().notify()
        if self.alive:
            self._connection_limit.enforce()
        else:
            self._connection_limit.close()

    def handle_error(self, _req: Any, client: ClientConnection, _addr: Any, exc: BaseException) -> None:
        """Respond to a request that could not be read; gunicorn's own error page would repeat the request's content."""
        status, error = _refusal(exc)
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("a connection broke: %s", type(exc).__name__)
        request_id = identifiers.new_id(identifiers.REQUEST, utc_now())
        body = json.dumps(error_body(error, request_id)).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        safe = "".join(f"{name}: {value}\r\n" for name, value in (("X-Request-Id", request_id), *SAFE_HEADERS))
        try:
            write_nonblock(client, f"{head}{safe}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except OSError:
            self.log.debug("the client disconnected before the error response")
        client.linger()


def _join_keys(req: Any) -> None:
    """Join two Idempotency-Key headers into a malformed key.

    WSGI would join them with a comma, which a valid key may contain.
    """
    keys = [value for name, value in req.headers if name == _KEY]
    if len(keys) > 1:
        req.headers = [header for header in req.headers if header[0] != _KEY] + [(_KEY, "\n".join(keys))]


def _has_rest(req: Any) -> bool:
    reader = req.body.reader
    # A body with a known length has `length`; a chunked body has `parser`.
    return bool(getattr(reader, "length", 0) or getattr(reader, "parser", None))


def _is_short(req: Any, connection: ClientConnection) -> bool:
    """Read the unread rest of a body, if it is short, and return whether its end was reached."""
    if req.body.failed or getattr(req.body.reader, "length", 0) > _REST_BYTES:
        return False
    connection.expect_rest()
    try:
        return len(req.body.read(_REST_BYTES)) < _REST_BYTES
    except (OSError, ParseException):
        return False


def _refusal(exc: BaseException) -> tuple[HTTPStatus, RiskRelayError]:
    if isinstance(exc, HeadersTimeout):
        return HTTPStatus.REQUEST_TIMEOUT, RequestTimeout()
    if isinstance(exc, LimitRequestLine):
        return HTTPStatus.REQUEST_URI_TOO_LONG, PayloadTooLarge("The request line is too long.")
    if isinstance(exc, LimitRequestHeaders):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, PayloadTooLarge("The headers are too large.")
    if isinstance(exc, ParseException):
        return HTTPStatus.BAD_REQUEST, ValidationFailed()
    return HTTPStatus.INTERNAL_SERVER_ERROR, RiskRelayError()
