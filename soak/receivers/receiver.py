"""A receiver as a separate process: `python -m soak.receivers.receiver FOLDER NUMBER PORT SECRET SEED BEGAN_MS FAULTY`.

Accepts posts at 127.0.0.1: `/t/N` has the behavior of target N, `/life/N` too but without permanent rejections, `/accept/…`
always accepts, `/gone/…` responds with 410. Also listens at 127.9.9.9, which workers must not use. Records each arrival in
FOLDER before it responds, and again once the response is sent; verifies signatures with its own code. After a line on
standard input it always accepts; it exits at the end of that input.
"""

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from schemas.exports.tickets.ticket import digest
from soak.receivers.behaviors import ACCEPTS, GONE, ReceiverBehavior, SenderConnection, behavior_of, patient_behavior_of
from soak.receivers.event_log import ARRIVALS, EventLog

#: A loopback address that the service accepts and that workers are not allowed.
FORBIDDEN_ADDRESS: Final = "127.9.9.9"
_LARGEST_HEAD: Final = 65_536
#: The first part of the paths whose targets change their behavior.
_BEHAVIORS_BY_PATH: Final = {"t": behavior_of, "life": patient_behavior_of}


class ReceiverServer:
    """Serves the connections of one receiver."""

    def __init__(self, events: EventLog, secret: bytes, seed: int, began_at: float, *, is_faulty: bool) -> None:
        self._events = events
        self._secret = secret
        self._seed = seed
        self._began_at = began_at
        self.is_faulty = is_faulty
        self._requests: Counter[int] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        peer = SenderConnection(reader, writer)
        try:
            while await self._serve_request(peer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Expected: the sender closed the connection, timed out, or was killed.
            return
        finally:
            writer.close()

    async def _serve_request(self, peer: SenderConnection) -> bool:
        head = (await peer.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines if each)}
        body = await peer.reader.readexactly(int(headers.get("content-length", "0")))
        path = line.split(" ")[1]
        behavior = self._behavior(path)
        is_forbidden = peer.writer.get_extra_info("sockname")[0] == FORBIDDEN_ADDRESS
        self._record_arrival("/forbidden" if is_forbidden else path, headers, body, behavior)
        await behavior.respond(peer)
        self._events.append(
            "responded", attempt=headers.get("x-request-id", ""), status=behavior.status, behavior=behavior.name
        )
        return behavior.keeps_connection

    def _behavior(self, path: str) -> ReceiverBehavior:
        _, kind, *rest = path.split("/")
        if kind == "gone":
            return GONE
        if kind not in _BEHAVIORS_BY_PATH or not self.is_faulty:
            return ACCEPTS
        target = int(rest[0])
        self._requests[target] += 1
        return _BEHAVIORS_BY_PATH[kind](self._seed, target, time.time() - self._began_at, self._requests[target])

    def _record_arrival(self, path: str, headers: Mapping[str, str], body: bytes, behavior: ReceiverBehavior) -> None:
        record = _json(body)
        self._events.append(
            "arrived",
            path=path,
            type=record.get("type"),
            export=record.get("id"),
            # In an event, `id` is that of the event, and `export.id` that of the ticket.
            ticket=(record.get("export") or {}).get("id"),
            change=record.get("change"),
            key=headers.get("idempotency-key"),
            attempt=headers.get("x-request-id", ""),
            nonce=headers.get("x-service-nonce"),
            is_signed=self._is_signed(headers, body),
            sha256=hashlib.sha256(body).hexdigest(),
            digest=digest(record.get("ticket") or {}),
            behavior=behavior.name,
            status=behavior.status,
        )

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        stamp, nonce = headers.get("x-service-timestamp", ""), headers.get("x-service-nonce", "")
        expected = "sha256=" + hmac.new(self._secret, f"{stamp}.{nonce}.".encode() + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, headers.get("x-service-signature", ""))


def _json(body: bytes) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


async def run(receiver: ReceiverServer, port: int) -> None:
    """Serve until standard input ends."""
    serving = [
        await asyncio.start_server(receiver.serve, address, port, limit=_LARGEST_HEAD, backlog=512, reuse_address=True)
        for address in ("127.0.0.1", FORBIDDEN_ADDRESS)
    ]
    loop = asyncio.get_running_loop()
    # On a thread: standard input may be any kind of file.
    while await loop.run_in_executor(None, sys.stdin.readline):
        receiver.is_faulty = False
    for server in serving:
        server.close()


def main(folder: str, number: str, port: str, secret: str, seed: str, began_ms: str, faulty: str) -> None:
    """Listen at `port` and serve."""
    events = EventLog(Path(folder) / ARRIVALS.format(number))
    receiver = ReceiverServer(events, secret.encode(), int(seed), int(began_ms) / 1000, is_faulty=faulty == "faulty")
    asyncio.run(run(receiver, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
