"""A load where wrk is not installed: one thread, sockets that are kept, bytes that are ready.

    python -m bench.keep_alive_load PORT SECONDS CONNECTIONS STATUS RUN NUMBER

reads the request from standard input as one JSON string, and sends it until the time is over and every answer is there.
It tells the answers and the seconds, or breaks off at the first answer with another status. It reads just enough HTTP to
find the end of an answer, which must have a length.
"""

import json
import selectors
import socket
import sys
import time
from itertools import count
from typing import Final

_END_OF_HEADERS: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
#: More than any answer here has, so that one read brings what is there.
_READ_BYTES: Final = 65536
#: How long an answer may take at all.
_PATIENCE_S: Final = 10.0


class _Requests:
    """Requests that differ in their number."""

    def __init__(self, text: str, number: str, run: str) -> None:
        self._parts = text.encode().split(number.encode())
        self._run = run
        self._numbers = count(1)

    def next(self) -> bytes:
        return f"{self._run}-{next(self._numbers):05d}".encode().join(self._parts)


def send_all(port: int, seconds: float, connections: int, status: int, requests: _Requests) -> tuple[int, float]:
    """Keep `connections` busy for `seconds`; return how many answers came, and within how many seconds."""
    beginning = b"HTTP/1.1 %d " % status
    received = {_connected(port): b"" for _ in range(connections)}
    began_at = time.monotonic()
    answers = 0
    with selectors.DefaultSelector() as selector:
        for sock in received:
            selector.register(sock, selectors.EVENT_READ, sock)
            sock.sendall(requests.next())
        while selector.get_map():
            ready = selector.select(_PATIENCE_S)
            assert ready, f"No answer within {_PATIENCE_S:g} s."
            for key, _ in ready:
                sock = key.data
                received[sock] += sock.recv(_READ_BYTES)
                assert received[sock].startswith(beginning[: len(received[sock])] or b"?"), received[sock][:100]
                if not _is_whole(received[sock]):
                    continue
                answers += 1
                received[sock] = b""
                if time.monotonic() - began_at < seconds:
                    sock.sendall(requests.next())
                else:
                    selector.unregister(sock)
                    sock.close()
    return answers, time.monotonic() - began_at


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _is_whole(received: bytes) -> bool:
    head, found, body = received.partition(_END_OF_HEADERS)
    return bool(found) and len(body) >= int(head.lower().partition(_LENGTH)[2].partition(b"\r")[0])


if __name__ == "__main__":
    port, seconds, connections, status, run, number = sys.argv[1:]
    sent = _Requests(json.loads(sys.stdin.readline()), number, run)
    answers, took_s = send_all(int(port), float(seconds), int(connections), int(status), sent)
    print(json.dumps({"answers": answers, "seconds": took_s}), flush=True)
