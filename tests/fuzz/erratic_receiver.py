"""A loopback receiver with scripted behaviors: accepts, rejects, hangs, closes or responds wrongly; records arrivals.

Each behavior names its expected result in the terms of `docs/delivery.md`, on which the model relies.
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
    """The wall clock of service and workers; it is stopped until it is advanced. A fuse may burn down as it is read."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.shown = {at}
        self.fuse: Callable[[], None] = lambda: None

    def now(self, _zone: object = None) -> datetime:
        """Return the instant, as `datetime.now` does."""
        self.fuse()
        return self.at

    def step(self, seconds: float) -> None:
        """Let so much time pass at once, or come again."""
        self.at += timedelta(seconds=seconds)
        self.shown.add(self.at)


@dataclass(frozen=True, slots=True)
class RequestBehavior:
    """What a receiver does to one request; `does` tells whether the connection serves for another one.

    `leads_to` is what the contract makes of it: `delivered`, `later`, or the reason of a failure for good. `asks_s` is what
    its Retry-After says, and `holds_s` for how long nothing may follow at the same target.
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
    # A response to a request that was never made: taken for the response to the next one, it says that the receiver is gone.
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
    """One request as it arrived: when by the clock, and the behavior that answered it."""

    at: datetime
    path: str
    request: ReceivedRequest
    behavior: RequestBehavior

    @property
    def export_id(self) -> str:
        """The export that it carried."""
        return self.request.headers["idempotency-key"]

    @property
    def id(self) -> str:
        """The attempt's own id."""
        return self.request.headers["x-request-id"]


@dataclass(slots=True)
class ErraticTarget:
    """One address of the receiver: its secret as it is now, and its behaviors, one for each request, cyclically."""

    secret: str
    behaviors: list[str] = field(default_factory=lambda: [KIND])
    answered: int = 0


class ErraticReceiver(LoopbackServer):
    """Serves any number of places; `complaints` holds what no sender may do to any receiver."""

    def __init__(self, clock: ModelClock) -> None:
        self.clock = clock
        self.places: dict[str, ErraticTarget] = {}
        self.arrivals: list[Arrival] = []
        self.complaints: list[str] = []
        self._nonces: set[str] = set()
        self._lock = threading.Lock()
        super().__init__(self._serve_behaviors)

    def begin_anew(self) -> None:
        """Forget everything."""
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
        """Verify as a receiver would, by the interface's own words and nothing of the product."""
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
