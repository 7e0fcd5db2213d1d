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
BAD_TIMES: Final = 0.35
BAD_REQUESTS: Final = 0.8
_HONEST: Final = 3

#: Longer than any deadline here: the sender gives up first.
_FOR_EVER_S: Final = 60.0
_HUGE: Final = 2 * 1024 * 1024

Do = Callable[["SenderConnection"], Awaitable[None]]


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
        await asyncio.wait_for(self.reader.read(1), _FOR_EVER_S)

    def reset(self) -> None:
        """Reset the connection: the sender's next read fails."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class ReceiverBehavior:
    """One behavior; `status` is the status that it sends, None without a response head.

    `keeps` tells whether the connection can be used again; `weight` how often it comes, beside the others.
    """

    name: str
    do: Do
    status: int | None = None
    weight: int = 1
    keeps: bool = False

    @property
    def accepts(self) -> bool:
        """Return whether the sender may record the ticket as accepted."""
        return self.status is not None and 200 <= self.status < 300


def head(status: int, length: int, *more: str) -> bytes:
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {length}", *more]
    return ("\r\n".join([*lines, "", ""])).encode()


def _answering(status: int, body: bytes = b"{}", *more: str, after_s: float = 0.0) -> Do:
    async def answer(peer: SenderConnection) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        await peer.send(head(status, len(body), "Content-Type: application/json", *more) + body)

    return answer


def _sending(data: bytes) -> Do:
    async def send(peer: SenderConnection) -> None:
        await peer.send(data)

    return send


def _dripping(data: bytes) -> Do:
    async def drip(peer: SenderConnection) -> None:
        await peer.drip(data)

    return drip


async def _reset(peer: SenderConnection) -> None:
    peer.reset()


async def _claim_and_reset(peer: SenderConnection) -> None:
    await peer.send(head(200, 100) + b'{"id": "T-')
    # Wait until the data has arrived: a reset may overtake it.
    await asyncio.sleep(0.05)
    peer.reset()


_TICKET: Final = b'{"id": "T-1", "url": "https://tracker.example/T-1"}'

ACCEPTS: Final = ReceiverBehavior("accepts", _answering(201, _TICKET), 201, keeps=True)
GONE: Final = ReceiverBehavior("is gone", _answering(410), 410, keeps=True)
_ACCEPTING: Final = (
    ACCEPTS,
    ReceiverBehavior("accepts without a word", _sending(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, keeps=True),
    ReceiverBehavior("accepts slowly", _answering(202, after_s=0.4), 202, keeps=True),
)
_BAD: Final = (
    ReceiverBehavior("is overloaded", _answering(503), 503, weight=4, keeps=True),
    ReceiverBehavior("is overloaded for a second", _answering(503, b"{}", "Retry-After: 1"), 503, weight=3, keeps=True),
    ReceiverBehavior("wants fewer", _answering(429, b"{}", "Retry-After: 2"), 429, weight=4, keeps=True),
    ReceiverBehavior("is broken", _answering(500, b"<h1>oops</h1>"), 500, weight=3, keeps=True),
    ReceiverBehavior("does not like it", _answering(422, b'{"code": "WEBHOOK_VALIDATION_FAILED"}'), 422, keeps=True),
    ReceiverBehavior("lets nobody in", _answering(401), 401, keeps=True),
    ReceiverBehavior("sends elsewhere", _answering(307, b"", "Location: /elsewhere"), 307, keeps=True),
    ReceiverBehavior("hangs", SenderConnection.wait, weight=2),
    ReceiverBehavior("drips its head", _dripping(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 500), weight=2),
    ReceiverBehavior("drips its body", _dripping(head(200, 500) + b"x" * 500), 200),
    ReceiverBehavior("hangs up", _reset, weight=2),
    ReceiverBehavior("claims and hangs up", _claim_and_reset, 200, weight=2),
    ReceiverBehavior("promises more than it sends", _sending(head(200, 500) + b"{}"), 200),
    ReceiverBehavior("breaks off in the head", _sending(b"HTTP/1.1 200 OK\r\nContent-Le"), weight=2),
    ReceiverBehavior("speaks no HTTP", _sending(b"\x16\x03\x01 what?\r\n\r\n"), weight=2),
    ReceiverBehavior("says too much", _sending(head(200, _HUGE) + b"x" * _HUGE), 200),
    ReceiverBehavior(
        "lies about its type", _sending(head(200, 4, "Content-Type: application/json") + b"\xff\xfe{}"), 200, keeps=True
    ),
)


#: Every behavior by its name.
BEHAVIORS: Final = {behavior.name: behavior for behavior in (*_ACCEPTING, *_BAD, GONE)}


#: An export fails by these; an event is not sent again, and its receiver never gets what changed.
_REJECTING: Final = frozenset({307, 401, 422})


def is_honest(target: int) -> bool:
    """Return whether a target always accepts."""
    return target % _HONEST == 0


def behavior_of(seed: int, target: int, elapsed_s: float, request: int) -> ReceiverBehavior:
    """Return a target's behavior for its request number `request`, `elapsed_s` seconds into the run."""
    if is_honest(target):
        return ACCEPTS
    now = random.Random(f"{seed}:behavior:{target}:{int(elapsed_s / BEHAVIOR_S)}")
    one = random.Random(f"{seed}:request:{target}:{request}")
    if now.random() < BAD_TIMES and one.random() < BAD_REQUESTS:
        [behavior] = now.choices(_BAD, [behavior.weight for behavior in _BAD])
        return behavior
    return one.choice(_ACCEPTING)


def patient_behavior_of(seed: int, target: int, elapsed_s: float, request: int) -> ReceiverBehavior:
    """Return the same for a target that rejects nothing for good: it accepts instead."""
    behavior = behavior_of(seed, target, elapsed_s, request)
    return ACCEPTS if behavior.status in _REJECTING else behavior
