"""`python -m bench.hostile_bodies`: response times of regular clients while one client sends the most expensive bodies.

The service runs under gunicorn with its own configuration and two processes. One client that knows the scanner's secret
sends ten bodies of a megabyte per second, as many as its rate limit allows, without waiting for responses: texts that
nearly match every rule of forbidden content, with a card number at the end. Meanwhile four regular clients read an
export, each time on a new connection and again 50 ms after the response.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click

from bench.figures import Figure, machine, tell, write
from bench.slow_clients import PATIENCE_S, PAUSE_S, ask, read_of, service
from bench.slow_connections import ServiceAddress
from tests.support.factories import SCANNER_SECRET

CLIENTS: Final = 4
#: The limit of 600 a minute.
_EVERY_S: Final = 0.1
_ASK_S: Final = 15.0
#: Until as many hostile bodies wait as there is room for.
_SETTLE_S: Final = 5.0
_NEARLY: Final = "cookie: authorization curl :// token= secret <html insert eyj %41 &amp; 4111111111111112"


def hostile_body() -> bytes:
    """Return a postback of nearly a megabyte that takes longer than others of its size."""
    texts = [_NEARLY] * (1_000_000 // (len(_NEARLY) + 3))
    issue = {"code": "a", "title": "b", "notes": [*texts, "4111 1111 1111 1111"]}
    page = {"url": "https://shop.example/"}
    return json.dumps(
        {"scanRunId": 1, "status": "completed", "page": page, "issues": [issue]}, separators=(",", ":")
    ).encode()


@contextmanager
def sending(port: int, body: bytes) -> Iterator[Counter[int]]:
    """Send bodies for as long as this lasts; yields how often each status came."""
    answers: Counter[int] = Counter()
    over = threading.Event()

    def send() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with suppress(OSError, http.client.HTTPException):
            headers = {"X-Scanner-Secret": SCANNER_SECRET, "Content-Type": "application/json"}
            connection.request("POST", "/api/scanner/results", body, headers)
            answers[connection.getresponse().status] += 1
        connection.close()

    def keep_sending() -> None:
        while not over.wait(_EVERY_S):
            threading.Thread(target=send, daemon=True).start()

    sender = threading.Thread(target=keep_sending, daemon=True)
    sender.start()
    try:
        yield answers
    finally:
        over.set()
        sender.join()


@click.command(epilog="Example: python -m bench.hostile_bodies")
def bench() -> None:
    """Measure ordinary clients beside one that sends hostile bodies."""
    body = hostile_body()
    with service() as (served, seeded):
        place, sent = ServiceAddress(served.port), read_of(seeded)
        quiet = ask(place, sent, CLIENTS, _ASK_S / 3, PATIENCE_S, PAUSE_S)
        with sending(served.port, body) as answers:
            time.sleep(_SETTLE_S)
            met = ask(place, sent, CLIENTS, _ASK_S, PATIENCE_S, PAUSE_S)
    figures = [
        Figure("hostile_bodies_quiet_p99_ms", [quiet.percentile_ms(99)], "ms", is_cost=True),
        Figure("hostile_bodies_p50_ms", [met.percentile_ms(50)], "ms", is_cost=True),
        Figure("hostile_bodies_p99_ms", [met.percentile_ms(99)], "ms", is_cost=True),
        Figure("hostile_bodies_slowest_ms", [max(met.took_ms, default=PATIENCE_S * 1000)], "ms", is_cost=True),
        Figure("hostile_bodies_error_share", [met.error_share], "of 1", 0.0, is_cost=True),
    ]
    tell("hostile bodies", figures)
    click.echo(f"Asked {len(met.took_ms)} times; hostile bodies were answered {dict(sorted(answers.items()))}.")
    write("hostile_bodies", {**machine(), **{figure.name: figure.median for figure in figures}})


if __name__ == "__main__":
    bench()
