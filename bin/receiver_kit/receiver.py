"""A receiver of deliveries for development and for the demo.

It does what the receiver of a ticket export has to do: verify signature,
timestamp and nonce over the raw body, create one ticket per Idempotency-Key, and
respond 2xx only after that. It applies events of the tickets that it got; a
ticket.redact erases what it keeps of the ticket. It responds 422 to everything
except tickets with a title, events and test events, in any format of a target. On
request it fails or delays responses.

It is not meant for public networks: it keeps everything in memory and rejects
bodies of more than a few MiB.
"""

import json
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from socketserver import TCPServer
from typing import Any, Final, Self

from schemas.base.ticket_event_types import TicketEventType
from worker.delivery.outcomes import SIGNATURE_INVALID, VALIDATION_FAILED, WEBHOOK_RATE_LIMITED
from worker.http.signing import SignatureVerdict, verify

# The port that `listen` binds and `trigger` sends to by default.
DEFAULT_PORT = 9000

# Deliveries carry at most a postback's content; a larger body is not a ticket.
MAX_BODY_BYTES = 4 * 1024 * 1024

# The number of latest requests that `received` keeps: enough for any test, and memory stays bounded overnight.
MAX_STORED_REQUESTS = 10_000

# An idle connection releases its thread after this time.
IDLE_TIMEOUT_S = 60

# The types of bodies besides events: a ticket, and a test event.
TICKET = "ticket.export"
PING = "target.ping"

# What an event does to its ticket, in the response to it.
_EFFECTS: Final[Mapping[str, str]] = {
    TicketEventType.UPDATED: "noted",
    TicketEventType.FIXED: "closed",
    TicketEventType.REOPENED: "open",
    TicketEventType.REDACT: "erased",
}
_COUNTS: Final = ("places_added", "places_fixed", "places_open")

# The codes of requested failures.
_CODES: Final = {401: SIGNATURE_INVALID, 422: VALIDATION_FAILED, 429: WEBHOOK_RATE_LIMITED}

# The statuses that carry a Retry-After.
_RETRY_AFTER_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """A response: status, JSON body, and optionally Retry-After and more headers."""

    status: int
    body: dict[str, str]
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    """One request as received, the result of its verification, and the response.

    `at` is aware. `export_id`, `kind` (`ticket.export`, `ticket.fixed`, `target.ping`, …), `title` and `change`, the counts
    of an event, are read from the body even if the signature is wrong; None if absent. `is_known`: it is a ticket with a
    title, an event of a ticket, or a test event. `repeat`: the Idempotency-Key was accepted before. `is_dropped`: the
    response was not sent. After a ticket.redact, the earlier requests about its ticket have neither body nor title.
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
    change: Mapping[str, int] | None
    is_known: bool
    repeat: bool
    response: ReceiverResponse
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class FaultInjection:
    """Faults to inject: the first requests get the statuses `failures`, in order, whatever they contain.

    `retry_after_s` is sent with 429 and 503. Every response is delayed by `delay_s`. After the failures, `drops`
    requests are processed normally, but the connection is closed instead of sending the response.
    """

    failures: tuple[int, ...] = ()
    retry_after_s: int | None = None
    delay_s: float = 0.0
    drops: int = 0


@dataclass(eq=False, repr=False)
class LocalReceiver:
    """Receives deliveries in its own thread, from `start()` to `stop()` or as a context manager.

    A signature with any of `secrets` is valid; `now` returns aware times. Port 0 selects a free port, which `url`
    contains. `on_received` is called with each request, one at a time, before its response is sent.
    The address is bound at once: raises OSError if that fails, ValueError without a usable secret.
    """

    secrets: Sequence[bytes]
    now: Callable[[], datetime]
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: int = 0
    faults: FaultInjection = FaultInjection()
    on_received: Callable[[Received], None] | None = None
    #: The requests received since the start.
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.secrets or not all(self.secrets):
            raise ValueError("A receiver needs a non-empty secret.")
        self._lock = threading.Lock()
        self._received: deque[Received] = deque(maxlen=MAX_STORED_REQUESTS)
        self._due_failures = deque(self.faults.failures)
        self._due_drops = self.faults.drops
        #: Of correctly signed requests alone.
        self._nonces: set[str] = set()
        #: By Idempotency-Key, the numbers of tickets; and the keys of events.
        self._tickets: dict[str, int] = {}
        self._events: set[str] = set()
        self._ticket_numbers = count(1)
        self._stopping = threading.Event()
        self._server = _ReceiverServer(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The address to deliver to."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/"

    @property
    def received(self) -> list[Received]:
        """A copy of the latest MAX_STORED_REQUESTS requests, oldest first."""
        with self._lock:
            return list(self._received)

    def start(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Answer nothing more, delayed responses included, and free the port; may be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def receive(self, path: str, headers: Message, body: bytes) -> ReceiverResponse | None:
        """Verify and record one request; return its response, or None if it is dropped or the receiver is stopping."""
        if self._stopping.is_set():
            return None
        with self._lock:
            received = self._process(path, headers, body)
            self._received.append(received)
            self.count += 1
            if self.on_received is not None:
                self.on_received(received)
        is_dropped = self._stopping.wait(self.faults.delay_s) or received.is_dropped
        return None if is_dropped else received.response

    def _process(self, path: str, headers: Message, body: bytes) -> Received:
        """Verify a request, decide the response, and return both."""
        at = self.now()
        verdict = verify(self.secrets, headers, body, int(at.timestamp()), self._is_replayed)
        event = _event_in(_read_object(body))
        key = headers.get("Idempotency-Key")
        repeat = key is not None and (key in self._tickets or key in self._events)
        failure = self._planned_failure()
        kind, title = _text(event, "type"), _text(event, "ticket", "title")
        export_id, change, is_known = _text(event, "export", "id"), _counts(event), _is_known(event)
        if failure is not None:
            response = failure
        elif not verdict.ok:
            response = ReceiverResponse(HTTPStatus.UNAUTHORIZED, {"code": SIGNATURE_INVALID})
        elif not is_known:
            response = ReceiverResponse(HTTPStatus.UNPROCESSABLE_ENTITY, {"code": VALIDATION_FAILED})
        else:
            response = self._accept(key, kind, export_id)
        return Received(
            at=at,
            path=path,
            headers=tuple(headers.items()),
            body=body,
            verdict=verdict,
            request_id=headers.get("X-Request-Id"),
            idempotency_key=key,
            export_id=export_id or _text(event, "id"),
            kind=kind,
            title=title,
            change=change,
            is_known=is_known,
            repeat=repeat,
            response=response,
            is_dropped=failure is None and self._drops_this(),
        )

    def _is_replayed(self, nonce: str) -> bool:
        is_known = nonce in self._nonces
        self._nonces.add(nonce)
        return is_known

    def _planned_failure(self) -> ReceiverResponse | None:
        if not self._due_failures:
            return None
        status = self._due_failures.popleft()
        retry_after_s = self.faults.retry_after_s if status in _RETRY_AFTER_STATUSES else None
        location = (("Location", self.url + "elsewhere"),) if status // 100 == 3 else ()
        return ReceiverResponse(status, {"code": _CODES.get(status, "REQUESTED_FAILURE")}, retry_after_s, location)

    def _drops_this(self) -> bool:
        self._due_drops -= 1
        return self._due_drops >= 0

    def _accept(self, key: str | None, kind: str | None, export_id: str | None) -> ReceiverResponse:
        """Create a ticket, or return the ticket with the same key; events and test events create none."""
        if kind == PING:
            return ReceiverResponse(HTTPStatus.OK, {"status": "pong"})
        if kind is not None and kind in _EFFECTS:
            return ReceiverResponse(HTTPStatus.OK, {"status": self._apply(key, kind, export_id)})
        number = self._tickets.get(key or "") or next(self._ticket_numbers)
        if key:
            self._tickets[key] = number
        return ReceiverResponse(HTTPStatus.OK, {"ticket_id": f"DEV-{number}", "url": f"{self.url}tickets/DEV-{number}"})

    def _apply(self, key: str | None, kind: str, export_id: str | None) -> str:
        """Apply an event to its ticket and return the effect; a ticket that never arrived is ignored."""
        if export_id is None or export_id not in self._tickets:
            return "ignored"
        if key is not None:
            self._events.add(key)
        if kind == TicketEventType.REDACT:
            kept = (replace(each, body=b"", title=None) if each.export_id == export_id else each for each in self._received)
            self._received = deque(kept, maxlen=MAX_STORED_REQUESTS)
        return _EFFECTS[kind]


class _ReceiverServer(ThreadingHTTPServer):
    """The HTTP server: one thread per connection."""

    allow_reuse_port = False  # a port in use is an error, not one to share
    request_queue_size = 128  # a worker opens many connections at once

    def __init__(self, receiver: LocalReceiver) -> None:
        self.receiver = receiver
        self.address_family = socket.AF_INET6 if ":" in receiver.host else socket.AF_INET
        super().__init__((receiver.host, receiver.port), _ReceiverHandler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind() resolves the host's name by DNS, which is unused here and may take seconds.
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A sender that closes its connection is expected during development; any other error is ours: show it.
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _ReceiverHandler(BaseHTTPRequestHandler):
    """One keep-alive connection."""

    server: _ReceiverServer
    protocol_version = "HTTP/1.1"
    server_version = "RiskRelay-listen"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    wbufsize = -1  # head and body in one packet: with two, the second waits 40 ms for the sender's delayed ACK

    def do_POST(self) -> None:
        text = self.headers.get("Content-Length", "")
        length = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_BODY_BYTES)) else None
        if length is None or length > MAX_BODY_BYTES:
            # The body stays unread, so the connection is closed.
            code, close = {"code": VALIDATION_FAILED}, (("Connection", "close"),)
            self._send(ReceiverResponse(HTTPStatus.BAD_REQUEST, code, headers=close))
            return
        body = self.rfile.read(length)
        response = self.server.receiver.receive(self.path, self.headers, body) if len(body) == length else None
        if response is None:  # an incomplete body, a dropped response, or the receiver is stopping
            self.close_connection = True
            return
        self._send(response)

    def do_GET(self) -> None:
        allowed = (("Allow", "POST"), ("Connection", "close"))
        self._send(ReceiverResponse(HTTPStatus.METHOD_NOT_ALLOWED, {"code": "POST_ONLY"}, headers=allowed))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: on_received reports each request in more detail."""

    def _send(self, response: ReceiverResponse) -> None:
        # A 304 has no body: further bytes would be read as the next response.
        body = b"" if response.status == HTTPStatus.NOT_MODIFIED else json.dumps(response.body).encode()
        self.send_response(response.status)
        self.send_header("Content-Type", "application/json")
        if response.retry_after_s is not None:
            self.send_header("Retry-After", str(response.retry_after_s))
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_known(event: dict[str, Any] | None) -> bool:
    # A 2xx for anything else would confirm an event that was not processed.
    kind = _text(event, "type")
    if kind in _EFFECTS:
        return _text(event, "export", "id") is not None and _counts(event) is not None
    return kind == PING or (kind == TICKET and _text(event, "ticket", "title") is not None)


def _counts(event: dict[str, Any] | None) -> dict[str, int] | None:
    change = None if event is None else event.get("change")
    if not isinstance(change, dict):
        return None
    return {name: change[name] for name in _COUNTS if isinstance(change.get(name), int)}


def _read_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _event_in(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the ticket or test event that a CloudEvent or a SARIF log carries; any other value as it is."""
    match value:
        case {"specversion": str(), "data": dict() as event}:
            return event
        case {"runs": [{"properties": {"riskrelay": dict() as event}, "tool": {"driver": dict() as driver}}]}:
            match driver.get("rules"):
                case [{"shortDescription": {"text": str(title)}}]:
                    return {**event, "ticket": {"title": title}}
            return event
    return value


def _text(event: dict[str, Any] | None, *path: str) -> str | None:
    value: Any = event
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None
