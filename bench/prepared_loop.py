"""What requests can do at best: threads that send prepared requests through its adapter, with no queue and no database.

Each request is signed and has a nonce of its own, as a delivery has; what a delivery adds to it is what the ratio tells.
"""

import requests
from requests.adapters import HTTPAdapter

from bench.sending import run, signed_headers


def send(url: str, count: int, body: bytes) -> None:
    """Send `count` requests, prepared once and copied."""
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=1)
    prepared = requests.Request("POST", url, data=body).prepare()
    for _ in range(count):
        request = prepared.copy()
        request.headers.update(signed_headers(body))
        response = adapter.send(request, timeout=15)
        assert response.status_code == 200, response.status_code


if __name__ == "__main__":
    run(send)
