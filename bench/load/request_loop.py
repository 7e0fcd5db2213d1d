"""Loops of requests, without queue and database: `python -m bench.load.request_loop KIND URL COUNT THREADS BODY_BYTES`.

KIND `session` posts with one `requests.Session` per thread. KIND `prepared` sends copies of one prepared request through the
session's adapter, the fastest use of requests. Each request has a signature and a new nonce, as a delivery has. The program
prints `ready`, starts at a line on standard input, prints `done`, and exits at the end of standard input.
"""

import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import requests
from requests.adapters import HTTPAdapter

from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

_TIMEOUT_S: Final = 15


def send_by_session(url: str, count: int, body: bytes) -> None:
    """Post `count` times."""
    with requests.Session() as session:
        for _ in range(count):
            response = session.post(url, data=body, headers=_signed_headers(body), timeout=_TIMEOUT_S)
            assert response.status_code == 200, response.status_code


def send_prepared(url: str, count: int, body: bytes) -> None:
    """Send `count` copies of one prepared request."""
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=1)
    prepared = requests.Request("POST", url, data=body).prepare()
    for _ in range(count):
        request = prepared.copy()
        request.headers.update(_signed_headers(body))
        response = adapter.send(request, timeout=_TIMEOUT_S)
        assert response.status_code == 200, response.status_code


def _signed_headers(body: bytes) -> dict[str, str]:
    """Return the headers that differ between requests."""
    timestamp, nonce = int(time.time()), secrets.token_hex(16)
    signature = sign(b"bench", timestamp, nonce, body)
    return {TIMESTAMP_HEADER: str(timestamp), NONCE_HEADER: nonce, SIGNATURE_HEADER: signature, "Idempotency-Key": nonce}


def _send_all(send: Callable[[str, int, bytes], None], url: str, count: int, threads: int, body: bytes) -> None:
    shares = [count // threads + (number < count % threads) for number in range(threads)]
    running = [threading.Thread(target=send, args=(url, share, body)) for share in shares]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    kind, url, *sizes = sys.argv[1:]
    count, threads, body_bytes = map(int, sizes)
    print("ready", flush=True)
    sys.stdin.readline()
    _send_all({"session": send_by_session, "prepared": send_prepared}[kind], url, count, threads, b"x" * body_bytes)
    print("done", flush=True)
    sys.stdin.read()
