"""Receiver behaviors, chosen by seed: accept, reject, hang, respond slowly or respond wrongly.

Every third target always accepts, so that lateness can be measured there. The others change their behavior every few
seconds; a faulty behavior applies to most requests and the rest are accepted, so that all deliveries finish.
"""

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

#: Duration of a behavior: long enough to open a circuit breaker, too short for its wait to grow to minutes.
BEHAVIOR_S: Final = 4.0
#: Share of faulty periods of an unreliable target, and of affected requests within one.
FAULTY_PERIODS: Final = 0.35
FAULTY_REQUESTS: Final = 0.8
_RELIABLE_EVERY: Final = 3

#: Longer than any deadline here, so that the sender closes the connection first.
_HANG_S: Final = 60.0
_HUGE: Final = 2 * 1024 * 1024

Respond = Callable[["SenderConnection"], Awaitable[None]]


class SenderConnection:
    """A receiver's connection to a sender."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send everything."""
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, data: bytes) -> None:
        """Send one byte at a time until the sender closes the connection."""
        for byte in data:
            await self.send(bytes([byte]))
            await asyncio.sleep(0.1)

    async def wait(self) -> None:
        """Send nothing until the sender closes the connection."""
        await asyncio.wait_for(self.reader.read(1), _HANG_S)

    def reset(self) -> None:
        """Reset the connection: the sender's next read fails."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class ReceiverBehavior:
    """One behavior; `status` is the status that it sends, None without a response head.

    `keeps_connection`: the connection can be used again. `weight`: its frequency relative to the other behaviors.
    """

    name: str
    respond: Respond
    status: int | None = None
    weight: int = 1
    keeps_connection: bool = False

    @property
    def accepts(self) -> bool:
        """Return whether the sender may record the ticket as accepted."""
        return self.status is not None and 200 <= self.status < 300


def head(status: int, length: int, *more: str) -> bytes:
    """Return the head of a response."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {length}", *more]
    return ("\r\n".join([*lines, "", ""])).encode()


def _responding(status: int, body: bytes = b"{}", *more: str, after_s: float = 0.0) -> Respond:
    async def respond(peer: SenderConnection) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        await peer.send(head(status, len(body), "Content-Type: application/json", *more) + body)

    return respond


def _sending(data: bytes) -> Respond:
    async def send(peer: SenderConnection) -> None:
        await peer.send(data)

    return send


def _dripping(data: bytes) -> Respond:
    async def drip(peer: SenderConnection) -> None:
        await peer.drip(data)

    return drip


async def _reset(peer: SenderConnection) -> None:
    peer.reset()


async def _reset_in_body(peer: SenderConnection) -> None:
    await peer.send(head(200, 100) + b'{"id": "T-')
    # Wait until the data has arrived: a reset may overtake it.
    await asyncio.sleep(0.05)
    peer.reset()


_TICKET: Final = b'{"id": "T-1", "url": "https://tracker.example/T-1"}'

ACCEPTS: Final = ReceiverBehavior("accepts", _responding(201, _TICKET), 201, keeps_connection=True)
GONE: Final = ReceiverBehavior("is gone", _responding(410), 410, keeps_connection=True)
_ACCEPTING: Final = (
    ACCEPTS,
    ReceiverBehavior("accepts without a body", _sending(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, keeps_connection=True),
    ReceiverBehavior("accepts slowly", _responding(202, after_s=0.4), 202, keeps_connection=True),
)
_FAULTY: Final = (
    ReceiverBehavior("is overloaded", _responding(503), 503, weight=4, keeps_connection=True),
    ReceiverBehavior(
        "is overloaded for a second", _responding(503, b"{}", "Retry-After: 1"), 503, weight=3, keeps_connection=True
    ),
    ReceiverBehavior("limits the rate", _responding(429, b"{}", "Retry-After: 2"), 429, weight=4, keeps_connection=True),
    ReceiverBehavior("is broken", _responding(500, b"<h1>oops</h1>"), 500, weight=3, keeps_connection=True),
    ReceiverBehavior(
        "rejects the ticket", _responding(422, b'{"code": "WEBHOOK_VALIDATION_FAILED"}'), 422, keeps_connection=True
    ),
    ReceiverBehavior("rejects the credentials", _responding(401), 401, keeps_connection=True),
    ReceiverBehavior("redirects", _responding(307, b"", "Location: /elsewhere"), 307, keeps_connection=True),
    ReceiverBehavior("hangs", SenderConnection.wait, weight=2),
    ReceiverBehavior("sends its head slowly", _dripping(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 500), weight=2),
    ReceiverBehavior("sends its body slowly", _dripping(head(200, 500) + b"x" * 500), 200),
    ReceiverBehavior("resets", _reset, weight=2),
    ReceiverBehavior("resets in the body", _reset_in_body, 200, weight=2),
    ReceiverBehavior("sends less than announced", _sending(head(200, 500) + b"{}"), 200),
    ReceiverBehavior("breaks off in the head", _sending(b"HTTP/1.1 200 OK\r\nContent-Le"), weight=2),
    ReceiverBehavior("speaks no HTTP", _sending(b"\x16\x03\x01 what?\r\n\r\n"), weight=2),
    ReceiverBehavior("sends too large a body", _sending(head(200, _HUGE) + b"x" * _HUGE), 200),
    ReceiverBehavior(
        "sends invalid JSON",
        _sending(head(200, 4, "Content-Type: application/json") + b"\xff\xfe{}"),
        200,
        keeps_connection=True,
    ),
)


#: Every behavior by its name.
BEHAVIORS: Final = {behavior.name: behavior for behavior in (*_ACCEPTING, *_FAULTY, GONE)}


#: After these statuses an export fails; an event is not sent again, so that its receiver would miss the change.
_REJECTING: Final = frozenset({307, 401, 422})


def is_reliable(target: int) -> bool:
    """Return whether a target always accepts."""
    return target % _RELIABLE_EVERY == 0


def behavior_of(seed: int, target: int, elapsed_s: float, request: int) -> ReceiverBehavior:
    """Return a target's behavior for its request number `request`, `elapsed_s` seconds into the run."""
    if is_reliable(target):
        return ACCEPTS
    period_rng = random.Random(f"{seed}:behavior:{target}:{int(elapsed_s / BEHAVIOR_S)}")
    request_rng = random.Random(f"{seed}:request:{target}:{request}")
    if period_rng.random() < FAULTY_PERIODS and request_rng.random() < FAULTY_REQUESTS:
        [behavior] = period_rng.choices(_FAULTY, [behavior.weight for behavior in _FAULTY])
        return behavior
    return request_rng.choice(_ACCEPTING)


def patient_behavior_of(seed: int, target: int, elapsed_s: float, request: int) -> ReceiverBehavior:
    """Return the behavior of a target that accepts whenever `behavior_of` would reject permanently."""
    behavior = behavior_of(seed, target, elapsed_s, request)
    return ACCEPTS if behavior.status in _REJECTING else behavior
