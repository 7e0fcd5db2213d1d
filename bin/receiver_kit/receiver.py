"""A receiver of deliveries for developing and for the demo.

It does what the receiver of a ticket export has to do: verify signature,
timestamp and nonce over the raw body, open one ticket per Idempotency-Key, and
answer 2xx only after that. What is neither a ticket with a title nor a test
event gets 422. On request it fails or dawdles.

It is no server for the open network: it listens where it is told, keeps
everything in memory, and refuses bodies of more than a few MiB.
"""

import json
import socket
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from worker.delivery.outcomes import SIGNATURE_INVALID, VALIDATION_FAILED, WEBHOOK_RATE_LIMITED
from worker.http.signing import SignatureVerdict, verify

# Where `listen` listens and `trigger` sends, unless told otherwise.
DEFAULT_PORT = 9000

# Deliveries carry at most a postback's content; more than this is no ticket.
MAX_BODY_BYTES = 4 * 1024 * 1024

# Bounds memory, not safety: both are asked about signed requests only, and nobody develops with more.
MAX_REMEMBERED = 100_000

# How many requests `received` keeps, the latest: enough for any test, and a night of listening stays small.
MAX_KEPT = 10_000

# A sender that keeps a connection and says nothing gives its thread back after this long.
IDLE_TIMEOUT_S = 60

# The types that there are: a ticket, and a test event.
TICKET = "ticket.export"
PING = "target.ping"

# The statuses of which a sender expects a Retry-After.
_WAITABLE = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver answers: status, JSON body, and where needed a time to wait or further headers."""

    status: int
    body: dict[str, str]
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def header_lines(self) -> list[tuple[str, str]]:
        """All headers but Content-Length."""
        waiting = [] if self.retry_after_s is None else [("Retry-After", str(self.retry_after_s))]
        return [("Content-Type", "application/json"), *waiting, *self.headers]


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came, what verification found, and what was answered.

    `at` is aware. `export_id`, `kind` (`ticket.export`, `target.ping`) and `title` are the sender's words,
    read from the body even when its signature is wrong; None where they are absent. `repeat` says that the
    Idempotency-Key has been accepted before, `is_dropped` that the answer was never sent.
    """

    at: datetime
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    verdict: SignatureVerdict
    request_id: str | None
    idempotency_key: str | None
    export_id: str | None
    kind: str | None
    title: str | None
    repeat: bool
    answer: Answer
    is_dropped: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is something to deal with, a ticket that has a title or a test event."""
        return _is_known(self.kind, self.title)


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """How to fail: the first requests get `failures` in their order, a status each, whatever they hold.

    `retry_after_s` goes along with 429 and 503. Every answer waits for `delay_s` first. The next `drops` requests are
    dealt with like any other, and their answers are lost: the connection is closed in place of them.
    """

    failures: tuple[int, ...] = ()
    retry_after_s: int | None = None
    delay_s: float = 0.0
    drops: int = 0


class Receiver:
    """Receives deliveries on a thread of its own, from `start()` to `stop()` or as a context.

    `secrets` are those that a sender may sign with, `now` gives aware instants. Port 0 takes any free one,
    `url` says which. `on_received` is called with each request, one at a time, before its answer leaves.
    The address is taken at once: raises OSError if that fails, ValueError without a usable secret.
    """

    def __init__(
        self,
        secrets: Sequence[bytes],
        now: Callable[[], datetime],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        misbehaviour: Misbehaviour = Misbehaviour(),
        on_received: Callable[[Received], None] | None = None,
    ) -> None:
        if not secrets or not all(secrets):
            raise ValueError("A receiver needs a secret that is not empty.")
        self._secrets = tuple(secrets)
        self._now = now
        self._misbehaviour = misbehaviour
        self._on_received = on_received
        self._lock = threading.Lock()
        self._received: deque[Received] = deque(maxlen=MAX_KEPT)
        self._count = 0
        self._due_failures = deque(misbehaviour.failures)
        self._due_drops = misbehaviour.drops
        self._nonces = _Memory()
        self._tickets = _Memory()
        self._stopping = threading.Event()
        self._server = _Server(host, port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The address to deliver to."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/"

    @property
    def received(self) -> list[Received]:
        """What has been received, oldest first, the latest MAX_KEPT of it; a copy."""
        with self._lock:
            return list(self._received)

    @property
    def count(self) -> int:
        """How many requests have been received since the start."""
        return self._count

    def start(self) -> "Receiver":
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Hang up on every sender, a dawdling answer included, and free the port; harmless when repeated."""
        self._stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def __enter__(self) -> "Receiver":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def receive(self, path: str, headers: Message, body: bytes) -> Answer | None:
        """Judge one request, record it, and return its answer, None when it is lost or the receiver is being stopped."""
        with self._lock:
            received = self._judge(path, headers, body)
            self._received.append(received)
            self._count += 1
            if self._on_received is not None:
                self._on_received(received)
        is_lost = self._stopping.wait(self._misbehaviour.delay_s) or received.is_dropped
        return None if is_lost else received.answer

    def _judge(self, path: str, headers: Message, body: bytes) -> Received:
        at = self._now()
        verdict = verify(self._secrets, headers, body, int(at.timestamp()), self._nonces.seen)
        event = _read_object(body)
        key = headers.get("Idempotency-Key")
        repeat = key is not None and key in self._tickets
        failure = self._planned_failure()
        kind, title = _text(event, "type"), _text(event, "ticket", "title")
        answer = failure or _refusal(verdict, kind, title) or self._accept(key, kind)
        return Received(
            at=at,
            path=path,
            headers=tuple(headers.items()),
            body=body,
            verdict=verdict,
            request_id=headers.get("X-Request-Id"),
            idempotency_key=key,
            export_id=_text(event, "export", "id") or _text(event, "id"),
            kind=kind,
            title=title,
            repeat=repeat,
            answer=answer,
            is_dropped=failure is None and self._is_to_be_dropped(),
        )

    def _planned_failure(self) -> Answer | None:
        if not self._due_failures:
            return None
        status = self._due_failures.popleft()
        wait_s = self._misbehaviour.retry_after_s if status in _WAITABLE else None
        elsewhere = (("Location", self.url + "elsewhere"),) if status // 100 == 3 else ()
        return Answer(status, {"code": _code_of(status)}, wait_s, elsewhere)

    def _is_to_be_dropped(self) -> bool:
        self._due_drops -= 1
        return self._due_drops >= 0

    def _accept(self, key: str | None, kind: str | None) -> Answer:
        """Open a ticket, or find the one that the same key opened before; a test event opens none."""
        if kind == PING:
            return Answer(HTTPStatus.OK, {"status": "pong"})
        number = self._tickets.number(key) if key is not None else self._tickets.next_number()
        return Answer(HTTPStatus.OK, {"ticket_id": f"DEV-{number}", "url": f"{self.url}tickets/DEV-{number}"})


class _Memory:
    """Numbers names in the order of their first mention, and forgets the oldest beyond MAX_REMEMBERED."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._last = 0

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = self.next_number()
        if len(self._numbers) > MAX_REMEMBERED:
            self._numbers.popitem(last=False)
        return self._numbers[name]

    def seen(self, name: str) -> bool:
        known = name in self
        self.number(name)
        return known


class _Server(ThreadingHTTPServer):
    """The sockets: one thread a connection, all of which end with the server."""

    daemon_threads = False  # server_close() waits for them, and leaves nothing behind
    allow_reuse_port = False  # a taken port is an error to show, not one to share
    request_queue_size = 128  # a draining worker opens many connections at once

    def __init__(self, host: str, port: int, receiver: Receiver) -> None:
        self.receiver = receiver
        self._open: set[socket.socket] = set()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for the host's name, which nobody reads here and which may take seconds.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End every open connection; call it after shutdown(), when no new ones come."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._open.discard(connection)  # the sender was faster

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A sender that hangs up is part of what is being developed; anything else is our mistake: show it.
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection: read a request, answer it, keep the connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "RiskRelay-listen"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    wbufsize = -1  # head and body in one packet: two would wait 40 ms for the sender's delayed ACK

    def do_POST(self) -> None:
        length, refusal = _length_of(self.headers.get("Content-Length"))
        if refusal is not None:
            self._send(refusal)
            return
        body = self.rfile.read(length)
        answer = self.server.receiver.receive(self.path, self.headers, body) if len(body) == length else None
        if answer is None:  # half a body, an answer to be lost, or the receiver is going away
            self.close_connection = True
            return
        self._send(answer)

    def do_GET(self) -> None:
        allowed = (("Allow", "POST"), ("Connection", "close"))
        self._send(Answer(HTTPStatus.METHOD_NOT_ALLOWED, {"code": "POST_ONLY"}, headers=allowed))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: on_received tells what came, and tells it better."""

    def _send(self, answer: Answer) -> None:
        # A 304 ends at its head: bytes after it would be read as the next answer.
        body = b"" if answer.status == HTTPStatus.NOT_MODIFIED else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.header_lines():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _length_of(content_length: str | None) -> tuple[int, Answer | None]:
    """The length of a body, or a refusal that also ends the connection, since the body stays unread."""
    if content_length is None:
        return 0, _unread(HTTPStatus.LENGTH_REQUIRED)
    if not (content_length.isascii() and content_length.isdigit()):
        return 0, _unread(HTTPStatus.BAD_REQUEST)
    if len(content_length) > len(str(MAX_BODY_BYTES)) or int(content_length) > MAX_BODY_BYTES:
        return 0, _unread(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return int(content_length), None


def _unread(status: HTTPStatus) -> Answer:
    return Answer(status, {"code": VALIDATION_FAILED}, headers=(("Connection", "close"),))


def _refusal(verdict: SignatureVerdict, kind: str | None, title: str | None) -> Answer | None:
    if not verdict.ok:
        return Answer(HTTPStatus.UNAUTHORIZED, {"code": SIGNATURE_INVALID})
    if not _is_known(kind, title):
        return Answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"code": VALIDATION_FAILED})
    return None


def _is_known(kind: str | None, title: str | None) -> bool:
    # A 2xx for anything else would say that it is in good hands.
    return kind == PING or (kind == TICKET and title is not None)


def _code_of(status: int) -> str:
    named = {401: SIGNATURE_INVALID, 422: VALIDATION_FAILED, 429: WEBHOOK_RATE_LIMITED}
    return named.get(status, "REQUESTED_FAILURE")


def _read_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(event: dict[str, Any] | None, *path: str) -> str | None:
    value: Any = event
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None
