"""A receiver as a process of its own: `python -m soak.receivers FOLDER NUMBER PORT SECRET SEED BEGAN_MS MOODY`.

It takes posts at 127.0.0.1, at `/t/N` for target N in that target's mood, at `/kind/…` always kindly, at `/gone/…` with 410,
and at 127.9.9.9, where no worker may ever come. What arrives is noted in FOLDER before anything is answered, and once more
when a whole answer has gone out; it checks the signature by its own arithmetic. A line on its standard input turns it kind
for good; the end of that input ends it.
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

from schemas.exports.ticket import digest
from soak.ledger import ARRIVALS, EventLog
from soak.moods import ACCEPTS, GONE, ReceiverBehavior, SenderConnection, mood_of

#: A loopback address that the service accepts and that workers are not allowed.
SHUT_ADDRESS: Final = "127.9.9.9"
_LARGEST_HEAD: Final = 65_536


class ReceiverServer:
    """Serves the connections of one receiver."""

    def __init__(self, ledger: EventLog, secret: bytes, seed: int, began_at: float, *, is_moody: bool) -> None:
        self._ledger = ledger
        self._secret = secret
        self._seed = seed
        self._began_at = began_at
        self.is_moody = is_moody
        self._requests: Counter[int] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until either side ends it."""
        peer = SenderConnection(reader, writer)
        try:
            while await self._answer_next(peer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The sender hung up, gave up, or was killed: what it is there for.
            return
        finally:
            writer.close()

    async def _answer_next(self, peer: SenderConnection) -> bool:
        head = (await peer.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines if each)}
        body = await peer.reader.readexactly(int(headers.get("content-length", "0")))
        path = line.split(" ")[1]
        mood = self._mood(path)
        shut = peer.writer.get_extra_info("sockname")[0] == SHUT_ADDRESS
        self._note_arrival("/shut" if shut else path, headers, body, mood)
        await mood.do(peer)
        self._ledger.note("answered", attempt=headers.get("x-request-id", ""), status=mood.status, mood=mood.name)
        return mood.keeps

    def _mood(self, path: str) -> ReceiverBehavior:
        _, kind, *rest = path.split("/")
        if kind == "gone":
            return GONE
        if kind != "t" or not self.is_moody:
            return ACCEPTS
        target = int(rest[0])
        self._requests[target] += 1
        return mood_of(self._seed, target, time.time() - self._began_at, self._requests[target])

    def _note_arrival(self, path: str, headers: Mapping[str, str], body: bytes, mood: ReceiverBehavior) -> None:
        told = _json(body)
        self._ledger.note(
            "arrived",
            path=path,
            type=told.get("type"),
            export=told.get("id"),
            key=headers.get("idempotency-key"),
            attempt=headers.get("x-request-id", ""),
            nonce=headers.get("x-service-nonce"),
            is_signed=self._is_signed(headers, body),
            sha256=hashlib.sha256(body).hexdigest(),
            digest=digest(told.get("ticket") or {}),
            mood=mood.name,
            status=mood.status,
        )

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        stamp, nonce = headers.get("x-service-timestamp", ""), headers.get("x-service-nonce", "")
        expected = "sha256=" + hmac.new(self._secret, f"{stamp}.{nonce}.".encode() + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, headers.get("x-service-signature", ""))


def _json(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


async def run(receiver: ReceiverServer, port: int) -> None:
    """Serve until standard input ends."""
    serving = [
        await asyncio.start_server(receiver.serve, address, port, limit=_LARGEST_HEAD, backlog=512, reuse_address=True)
        for address in ("127.0.0.1", SHUT_ADDRESS)
    ]
    loop = asyncio.get_running_loop()
    # On a thread, because a pipe is all that standard input has to be.
    while await loop.run_in_executor(None, sys.stdin.readline):
        receiver.is_moody = False
    for server in serving:
        server.close()


def main(folder: str, number: str, port: str, secret: str, seed: str, began_ms: str, moody: str) -> None:
    """Listen at `port` and serve."""
    ledger = EventLog(Path(folder) / ARRIVALS.format(number))
    receiver = ReceiverServer(ledger, secret.encode(), int(seed), int(began_ms) / 1000, is_moody=moody == "moody")
    asyncio.run(run(receiver, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
