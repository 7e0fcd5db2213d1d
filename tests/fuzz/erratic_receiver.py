"""A loopback receiver with scripted behaviors: it accepts, rejects, hangs, closes or responds incorrectly.

Each behavior names its expected result in the terms of `docs/delivery.md`. The model compares attempts with these.
"""

import hashlib
import hmac
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest


class ModelClock:
    """The wall clock of service and workers, which only `step` changes. Each read first calls `before_read`."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.shown = {at}
        self.before_read: Callable[[], None] = lambda: None

    def now(self, _zone: object = None) -> datetime:
        """Return the current time, in the place of `datetime.now`."""
        self.before_read()
        return self.at

    def step(self, seconds: float) -> None:
        """Advance the clock, or set it back by a negative number."""
        self.at += timedelta(seconds=seconds)
        self.shown.add(self.at)


@dataclass(frozen=True, slots=True)
class RequestBehavior:
    """What a receiver does with one request; `does` returns whether the connection can serve another one.

    `leads_to` is the documented result: `delivered`, `later` (a retry), or the reason of a permanent failure. `asks_s` is
    the Retry-After in seconds. For `holds_s` seconds, no request may follow to the same target.
    """

    does: Callable[["ErraticReceiver", Peer], bool]
    leads_to: str
    status: int | None = None
    asks_s: int = 0
    holds_s: int = 0


def _says(status: int, body: bytes = b"{}", **headers: str) -> Callable[["ErraticReceiver", Peer], bool]:
    def answer(_receiver: "ErraticReceiver", peer: Peer) -> bool:
        peer.answer(status, body, **headers)
        return True

    return answer


def _sends(data: bytes) -> Callable[["ErraticReceiver", Peer], bool]:
    def send(_receiver: "ErraticReceiver", peer: Peer) -> bool:
        peer.send(data)
        return False

    return send


def _hangs(_receiver: "ErraticReceiver", peer: Peer) -> bool:
    while not peer.client_has_closed():
        peer.drip(b"", 0.02)
        threading.Event().wait(0.02)
    return False


def _resets(_receiver: "ErraticReceiver", peer: Peer) -> bool:
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def _smuggles(_receiver: "ErraticReceiver", peer: Peer) -> bool:
    # A second, unrequested response. If it were taken for the response to the next request, the receiver would seem gone.
    peer.send(b"HTTP/1.1 202 Told\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
    return True


def _takes(seconds: float) -> Callable[["ErraticReceiver", Peer], bool]:
    def answer(receiver: "ErraticReceiver", peer: Peer) -> bool:
        receiver.clock.step(seconds)
        peer.answer(202)
        return True

    return answer


def _code(code: str) -> bytes:
    return json.dumps({"error": {"code": code}}).encode()


BEHAVIORS: Final = {
    "takes it": RequestBehavior(_says(202, b'{"id": "T-1", "url": "https://tracker.example/T-1"}'), "delivered", 202),
    "takes it without a word": RequestBehavior(_says(204, b""), "delivered", 204),
    "takes it and says nonsense": RequestBehavior(
        _says(200, b'{"id": [1], "url": "javascript:1"} not json'), "delivered", 200
    ),
    "takes it and is cut short": RequestBehavior(
        _sends(b"HTTP/1.1 201 Told\r\nContent-Length: 99\r\n\r\n{"), "delivered", 201
    ),
    "takes it and never ends": RequestBehavior(_says(200, b" " * 300_000), "delivered", 200),
    "answers once too often": RequestBehavior(_smuggles, "delivered", 202),
    "takes it after a while": RequestBehavior(_takes(30), "delivered", 202),
    "takes it an hour earlier": RequestBehavior(_takes(-3600), "delivered", 202),
    "sends elsewhere": RequestBehavior(_says(307, Location="https://elsewhere.example/"), "redirect_refused", 307),
    "understands nothing": RequestBehavior(_says(400), "receiver_rejected", 400),
    "does not trust": RequestBehavior(_says(401, _code("WEBHOOK_SIGNATURE_INVALID")), "WEBHOOK_SIGNATURE_INVALID", 401),
    "finds it invalid": RequestBehavior(_says(422, _code("WEBHOOK_VALIDATION_FAILED")), "WEBHOOK_VALIDATION_FAILED", 422),
    "is gone": RequestBehavior(_says(410), "receiver_gone", 410),
    "is busy": RequestBehavior(_says(429), "later", 429, holds_s=30),
    "is busy for long": RequestBehavior(_says(429, Retry_After="7200"), "later", 429, asks_s=7200, holds_s=7200),
    "is busy in other words": RequestBehavior(
        _says(400, _code("WEBHOOK_RATE_LIMITED"), Retry_After="90"), "later", 400, asks_s=90, holds_s=90
    ),
    "is ill": RequestBehavior(_says(500), "later", 500),
    "is ill for a while": RequestBehavior(_says(503, Retry_After="60"), "later", 503, asks_s=60, holds_s=60),
    "hangs": RequestBehavior(_hangs, "later"),
    "hangs up": RequestBehavior(_resets, "later"),
    "stops in its headers": RequestBehavior(_sends(b"HTTP/1.1 200 Told\r\nContent-Le"), "later"),
    "speaks another language": RequestBehavior(_sends(b"220 mail.example ready\r\n\r\n"), "later"),
}
KIND: Final = "takes it"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One received request: its time by the model's clock, its path, and the behavior that responded."""

    at: datetime
    path: str
    request: ReceivedRequest
    behavior: RequestBehavior

    @property
    def export_id(self) -> str:
        """The id of the delivered export."""
        return self.request.headers["idempotency-key"]

    @property
    def id(self) -> str:
        """The id of the attempt."""
        return self.request.headers["x-request-id"]


@dataclass(slots=True)
class ErraticTarget:
    """One path of the receiver: its current secret, and its behaviors, which are used for requests in rotation."""

    secret: str
    behaviors: list[str] = field(default_factory=lambda: [KIND])
    answered: int = 0


class ErraticReceiver(LoopbackServer):
    """Serves any number of paths; `complaints` has violations of the rules for all requests, such as a wrong signature."""

    def __init__(self, clock: ModelClock) -> None:
        self.clock = clock
        self.places: dict[str, ErraticTarget] = {}
        self.arrivals: list[Arrival] = []
        self.complaints: list[str] = []
        self._nonces: set[str] = set()
        self._lock = threading.Lock()
        super().__init__(self._serve_behaviors)

    def reset(self) -> None:
        """Delete all paths and records."""
        with self._lock:
            self.places, self.arrivals, self.complaints, self._nonces = {}, [], [], set()

    def _serve_behaviors(self, peer: Peer) -> None:
        while request := peer.read():
            with self._lock:
                behavior = self._take(request)
            if behavior is None or not behavior.does(self, peer):
                return

    def _take(self, request: ReceivedRequest) -> RequestBehavior | None:
        path = request.line.split()[1]
        place = self.places.get(path)
        if place is None:
            self.complaints.append(f"{request.line}: no such place")
            return None
        self._check(request, place)
        behavior = BEHAVIORS[place.behaviors[place.answered % len(place.behaviors)]]
        place.answered += 1
        self.arrivals.append(Arrival(self.clock.at, path, request, behavior))
        return behavior

    def _check(self, request: ReceivedRequest, place: ErraticTarget) -> None:
        """Verify a request as the documentation tells receivers to, without the product's code."""
        timestamp, nonce = request.headers["x-service-timestamp"], request.headers["x-service-nonce"]
        signed = f"{timestamp}.{nonce}.".encode() + request.body
        expected = "sha256=" + hmac.new(place.secret.encode(), signed, hashlib.sha256).hexdigest()
        named = f"{request.headers['idempotency-key']} {request.headers['x-request-id']}"
        if request.headers["x-service-signature"] != expected:
            self.complaints.append(f"{named}: not signed with the secret of this moment")
        if nonce in self._nonces:
            self.complaints.append(f"{named}: a nonce that was seen before")
        self._nonces.add(nonce)
        if int(timestamp) not in {int(each.timestamp()) for each in self.clock.shown}:
            self.complaints.append(f"{named}: a timestamp that no clock has shown meanwhile")
