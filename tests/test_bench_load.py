"""The load generators of the benchmark: they send the stated requests, count responses, and detect wrong ones."""

import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from bench.load.keep_alive import requests, send_all
from bench.load.repeated_requests import NUMBER, Numbers, RequestTemplate, load, new_numbers, request
from bench.load.slow_connections import ServiceAddress, dripping
from bench.requests.slow_clients import ClientResult, run_clients
from bench.servers import example_proxy
from tests.support.fakes import LoopbackServer, Peer
from tests.support.worker.receivers import always

WITHIN_S: Final = 20.0
POST: Final = request("POST", "/things", {"Idempotency-Key": f"k-{NUMBER}"}, f'{{"name": "{NUMBER}"}}')
NOT_MODIFIED: Final = b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n"


def test_every_request_has_a_unique_number_and_every_response_is_counted() -> None:
    received: list[tuple[str, bytes]] = []

    def behave(peer: Peer) -> None:
        while asked := peer.read():
            received.append((asked.headers["idempotency-key"], asked.body))
            peer.answer(202)

    numbers = new_numbers()
    parts = POST.decode().split(NUMBER)
    with LoopbackServer(behave) as server:
        took_s, seconds = send_all(server.port, 0.1, 3, 202, requests(parts, numbers.prefix, numbers.digits, numbers.first))
        assert server.connections == 3
    assert len(took_s) == len(received)
    assert 0 < max(took_s) <= seconds
    expected = {f"{numbers.prefix}{number:0{numbers.digits}d}" for number in range(1, len(received) + 1)}
    assert {key.removeprefix("k-") for key, _ in received} == expected
    # The number is as long as its placeholder; otherwise, the body's length would differ from its header.
    assert {body for _, body in received} == {b'{"name": "%s"}' % number.encode() for number in expected}
    assert all(len(number) == len(NUMBER) for number in expected)


def test_the_load_generator_counts_304_responses_and_numbers_requests_from_the_given_start() -> None:
    asked_for: list[str] = []

    def behave(peer: Peer) -> None:
        while asked := peer.read():
            asked_for.append(asked.line.split()[1])
            peer.send(NOT_MODIFIED)

    template = RequestTemplate(request("GET", f"/things/{NUMBER}", {"If-None-Match": "1"}), 304)
    with LoopbackServer(behave) as server:
        loaded = load("own", server.port, template, 1, connections=1, numbers=Numbers("t-", 4, first=70))
    assert loaded.responses == len(asked_for) > 1
    assert loaded.p50_ms <= loaded.p99_ms
    assert asked_for[:2] == ["/things/t-0070", "/things/t-0071"]


def test_the_load_generator_fails_on_an_unexpected_status() -> None:
    with LoopbackServer(always(503)) as server, pytest.raises(AssertionError, match="broke off"):
        load("own", server.port, RequestTemplate(POST, 202), 1, connections=1)


def test_slow_clients_send_single_bytes_of_headers_and_bodies_and_reconnect_after_a_disconnect() -> None:
    dripped: list[str] = []
    addresses: set[str] = set()

    def behave(peer: Peer) -> None:
        received = b""
        while piece := peer.connection.recv(4096):
            received += piece
            if received.endswith(b"xx"):
                dripped.append("header" if b"\r\n\r\n" not in received else "body")
                addresses.add(peer.connection.getpeername()[0])
                if peer.number > 1:
                    peer.wait()
                return

    with LoopbackServer(behave) as server:
        with dripping(ServiceAddress(server.port), 8, ["127.0.1.1", "127.0.1.2"]) as lost:
            _wait_until(lambda: server.connections == 9 and len(dripped) == 9)
        assert lost == [1]
    # The first connection, which was reopened, drips into a header.
    assert sorted(dripped) == ["body"] * 4 + ["header"] * 5
    assert addresses == {"127.0.1.1", "127.0.1.2"}


def test_ordinary_clients_count_every_result_other_than_200_as_an_error() -> None:
    turns, turn = count(), threading.Lock()

    def behave(peer: Peer) -> None:
        with turn:
            number = next(turns)
        peer.read()
        if number % 3:
            peer.answer(200 if number % 3 == 1 else 503)

    with LoopbackServer(behave) as server:
        result = run_clients(
            ServiceAddress(server.port), request("GET", "/", {}), clients=2, seconds=0.3, patience_s=WITHIN_S, pause_s=0
        )
        asked = server.connections
    assert len(result.elapsed_ms) + result.errors == asked
    assert len(result.elapsed_ms) == len(range(1, asked, 3))


# the response times, the number of errors; the share of errors, the median, the 99th percentile
MET: Final = [
    (list(range(1, 102)), 0, 0.0, 51.0, 100.0),  # of 101 responses, one is slower than the 99th percentile
    ([2.0, 4.0], 2, 0.5, 3.0, 3.98),  # interpolated between the two
    ([], 4, 1.0, 5000.0, 5000.0),  # no client got a response: the time for which they waited
]


@pytest.mark.parametrize(("took_ms", "errors", "share", "p50_ms", "p99_ms"), MET)
def test_results_of_ordinary_clients_are_summarized(
    took_ms: list[float], errors: int, share: float, p50_ms: float, p99_ms: float
) -> None:
    result = ClientResult(took_ms, errors, seconds=1.0)
    assert result.error_share == share
    assert [result.percentile_ms(50), result.percentile_ms(99)] == pytest.approx([p50_ms, p99_ms])


def test_the_benchmarked_proxy_differs_from_the_example_only_in_ports_and_files(tmp_path: Path) -> None:
    example = example_proxy.EXAMPLE.read_text()
    ours = example_proxy.adapted(example, 1001, 1002, 1003, tmp_path)
    changed = [line for line in ours.splitlines() if line not in example.splitlines()]
    assert [line.strip() for line in changed if line.strip()] == [
        "server 127.0.0.1:1001;",
        "listen 127.0.0.1:1003;",
        "listen 127.0.0.1:1002 ssl http2;",
        f"ssl_certificate     {tmp_path}/server.pem;",
        f"ssl_certificate_key {tmp_path}/server.pem;",
        f"access_log {tmp_path}/access.log riskrelay;",
    ]
    with pytest.raises(AssertionError, match="0 times"):
        example_proxy.adapted(ours, 1001, 1002, 1003, tmp_path)


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < until, "It has not come to that."
        time.sleep(0.02)
