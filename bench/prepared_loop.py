"""What requests can do at best: threads that send prepared requests through its adapter, with no queue and no database.

Each request is signed and has a nonce of its own, as a delivery has; what a delivery adds to it is what the ratio tells.
It says `ready` on standard output, begins at a line on standard input, and ends when that ends.
"""

import secrets
import sys
import threading
import time

import requests
from requests.adapters import HTTPAdapter

from worker.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign


def send_all(url: str, count: int, threads: int, body: bytes) -> None:
    """Send `count` requests to `url`, shared out among `threads`."""
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=threads)
    prepared = requests.Request("POST", url, data=body).prepare()
    shares = [count // threads + (number < count % threads) for number in range(threads)]
    running = [threading.Thread(target=_send, args=(adapter, prepared, share, body)) for share in shares]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _send(adapter: HTTPAdapter, prepared: requests.PreparedRequest, count: int, body: bytes) -> None:
    for _ in range(count):
        request = prepared.copy()
        timestamp, nonce = int(time.time()), secrets.token_hex(16)
        request.headers[TIMESTAMP_HEADER] = str(timestamp)
        request.headers[NONCE_HEADER] = nonce
        request.headers[SIGNATURE_HEADER] = sign(b"bench", timestamp, nonce, body)
        request.headers["Idempotency-Key"] = nonce
        response = adapter.send(request, timeout=15)
        assert response.status_code == 200, response.status_code


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    send_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), b"x" * int(sys.argv[4]))
    print("done", flush=True)
    sys.stdin.read()
