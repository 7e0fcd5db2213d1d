"""What the plain loops of requests share: their threads, and what signs a request.

A loop is run as `python -m bench.LOOP URL COUNT THREADS BODY_BYTES`. It says `ready` on standard output, begins at a line on
standard input, says `done`, and ends when its standard input does.
"""

import secrets
import sys
import threading
import time
from collections.abc import Callable

from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

Send = Callable[[str, int, bytes], None]


def run(send: Send) -> None:
    """Share out the requests among threads, each of which calls `send` once, and keep to the order above."""
    url, count, threads, body_bytes = sys.argv[1], *(int(word) for word in sys.argv[2:])
    print("ready", flush=True)
    sys.stdin.readline()
    _send_all(send, url, count, threads, b"x" * body_bytes)
    print("done", flush=True)
    sys.stdin.read()


def signed_headers(body: bytes) -> dict[str, str]:
    """Return the headers that differ from request to request."""
    timestamp, nonce = int(time.time()), secrets.token_hex(16)
    signature = sign(b"bench", timestamp, nonce, body)
    return {TIMESTAMP_HEADER: str(timestamp), NONCE_HEADER: nonce, SIGNATURE_HEADER: signature, "Idempotency-Key": nonce}


def _send_all(send: Send, url: str, count: int, threads: int, body: bytes) -> None:
    shares = [count // threads + (number < count % threads) for number in range(threads)]
    running = [threading.Thread(target=send, args=(url, share, body)) for share in shares]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
