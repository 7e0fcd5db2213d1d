"""A load generator for machines without wrk: one thread, kept connections, prepared bytes.

    python -m bench.load.keep_alive

reads its parameters from standard input as one JSON object. It sends requests for the given seconds and waits for the
remaining responses. It prints the number of responses, the seconds and the response times, and fails at the first response
with another status. It parses just enough HTTP to find the end of a response, which must have a length, unless it is a 304.
"""

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from itertools import count
from statistics import quantiles
from typing import Any, Final

_END_OF_HEADERS: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_NO_BODY: Final = b"HTTP/1.1 304 "
#: Larger than any response here, so that one read returns everything that has arrived.
_READ_BYTES: Final = 65536
#: Time limit for a response.
_TIMEOUT_S: Final = 10.0


def requests(parts: list[str], prefix: str, digits: int, first: int) -> Iterator[bytes]:
    """Yield requests numbered from `first`; the number joins the `parts`."""
    between = [part.encode() for part in parts]
    for number in count(first):
        yield f"{prefix}{number:0{digits}d}".encode().join(between)


def send_all(port: int, seconds: float, connections: int, status: int, sent: Iterator[bytes]) -> tuple[list[float], float]:
    """Keep `connections` busy for `seconds`; return the response times and the total duration, in seconds."""
    beginning = b"HTTP/1.1 %d " % status
    received = {_connected(port): b"" for _ in range(connections)}
    sent_at: dict[socket.socket, float] = {}
    elapsed_s: list[float] = []
    began_at = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for sock in received:
            selector.register(sock, selectors.EVENT_READ, sock)
            sent_at[sock] = time.monotonic()
            sock.sendall(next(sent))
        while selector.get_map():
            ready = selector.select(_TIMEOUT_S)
            assert ready, f"No response within {_TIMEOUT_S:g} s."
            for key, _ in ready:
                sock = key.data
                received[sock] += sock.recv(_READ_BYTES)
                assert received[sock].startswith(beginning[: len(received[sock])] or b"?"), received[sock][:100]
                if not _is_whole(received[sock]):
                    continue
                now = time.monotonic()
                elapsed_s.append(now - sent_at[sock])
                received[sock], sent_at[sock] = b"", now
                if now - began_at < seconds:
                    sock.sendall(next(sent))
                else:
                    selector.unregister(sock)
                    sock.close()
    return elapsed_s, time.monotonic() - began_at


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _is_whole(received: bytes) -> bool:
    head, found, body = received.partition(_END_OF_HEADERS)
    if not found or received.startswith(_NO_BODY):
        return bool(found)
    return len(body) >= int(head.lower().partition(_LENGTH)[2].partition(b"\r")[0])


def _summary(elapsed_s: list[float], seconds: float) -> dict[str, Any]:
    percentiles = quantiles(elapsed_s, n=100, method="inclusive")
    return {
        "responses": len(elapsed_s),
        "seconds": seconds,
        "p50_ms": percentiles[49] * 1000,
        "p99_ms": percentiles[98] * 1000,
    }


if __name__ == "__main__":
    parameters = json.loads(sys.stdin.readline())
    numbered = requests(parameters["parts"], parameters["prefix"], parameters["digits"], parameters["first"])
    results = send_all(parameters["port"], parameters["seconds"], parameters["connections"], parameters["status"], numbered)
    print(json.dumps(_summary(*results)), flush=True)
