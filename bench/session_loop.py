"""The loop one would write first: threads that post by a `requests.Session` each, with no queue and no database.

Each request is signed and has a nonce of its own, as a delivery has.
"""

import requests

from bench.sending import run, signed_headers


def send(url: str, count: int, body: bytes) -> None:
    """Post `count` times."""
    with requests.Session() as session:
        for _ in range(count):
            response = session.post(url, data=body, headers=signed_headers(body), timeout=15)
            assert response.status_code == 200, response.status_code


if __name__ == "__main__":
    run(send)
