"""Timeouts of both clients, over real connections to slow servers."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from riskrelay_client import AsyncRiskRelay, RiskRelay, Unreachable, WaitTimeout
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.http.scripted_api import TOKEN
from tests.support.worker.receivers import make_certificate

#: Calls one method of the blocking or the async client several times, over one connection.
Run = Callable[..., list[Any]]


def run_blocking(url: str, call: Callable[[Any], Any], times: int = 1, **options: Any) -> list[Any]:
    with RiskRelay(url, TOKEN, **options) as client:
        found = [call(client) for _ in range(times)]
        return [[*each] if isinstance(each, Iterator) else each for each in found]


def run_async(url: str, call: Callable[[Any], Any], times: int = 1, **options: Any) -> list[Any]:
    return asyncio.run(_run_async(url, call, times, options))


async def _run_async(url: str, call: Callable[[Any], Any], times: int, options: dict[str, Any]) -> list[Any]:
    async with AsyncRiskRelay(url, TOKEN, **options) as client:
        found = [call(client) for _ in range(times)]
        return [[page async for page in each] if hasattr(each, "__aiter__") else await each for each in found]


@pytest.fixture(params=[run_blocking, run_async], ids=["blocking", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


@contextmanager
def ends_after(least_s: float) -> Iterator[None]:
    """Check that the block takes `least_s` seconds, and little more. Without a timeout, it would take 15 s or longer."""
    began = time.monotonic()
    yield
    assert least_s <= time.monotonic() - began <= least_s + 8


def get(client: Any) -> Any:
    return client.exports.get("exp_1")


def wait(timeout: float) -> Callable[[Any], Any]:
    return lambda client: client.exports.wait("exp_1", timeout)


# ── one request ────────────────────────────────────────────────────────────────


def drip_headers(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000, every_s=0.1)


def drip_content(peer: Peer) -> None:
    peer.read()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    peer.drip(b" " * 10_000, every_s=0.1)


def send_nothing(peer: Peer) -> None:
    peer.wait()


def read_slowly(peer: Peer) -> None:
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    while peer.connection.recv(2000):
        time.sleep(0.02)


@pytest.mark.parametrize("behave", [drip_headers, drip_content, send_nothing])
def test_a_slow_response_ends_at_the_timeout(run: Run, behave: Callable[[Peer], None]) -> None:
    with LoopbackServer(behave) as server, ends_after(1), pytest.raises(Unreachable):
        run(server.url(path=""), get, timeout=1, retry_for=0)


def test_a_slow_response_over_a_used_connection_ends_at_the_timeout(run: Run) -> None:
    def answer_once(peer: Peer) -> None:
        peer.read()
        peer.answer()
        drip_headers(peer)

    with LoopbackServer(answer_once) as server, ends_after(1), pytest.raises(Unreachable):
        run(server.url(path=""), get, times=2, timeout=1, retry_for=0)
    assert server.connections == 1


def test_a_slow_response_over_tls_ends_at_the_timeout(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = make_certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with LoopbackServer(drip_headers, tls=context) as server, ends_after(1), pytest.raises(Unreachable):
        run(server.url("localhost", ""), get, timeout=1, retry_for=0)
    # The server does not support TLS, so the handshake gets no response.
    with LoopbackServer(send_nothing) as server, ends_after(1), pytest.raises(Unreachable):
        run(f"https://localhost:{server.port}", get, timeout=1, retry_for=0)


def test_a_request_to_a_slowly_reading_server_ends_at_the_timeout() -> None:
    small = [(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)]  # small buffers, so that each write blocks early
    ticket = {"title": "x" * 3_000_000}

    def prepare(client: Any) -> Any:
        return client.exports.prepare(ticket)

    for run, transport in ((run_blocking, httpx.HTTPTransport), (run_async, httpx.AsyncHTTPTransport)):
        with LoopbackServer(read_slowly) as server, ends_after(1), pytest.raises(Unreachable):
            run(server.url(path=""), prepare, timeout=1, retry_for=0, transport=transport(socket_options=small))


def test_each_request_of_a_connection_has_its_own_timeout(run: Run) -> None:
    def answer_after_a_while(peer: Peer) -> None:
        while peer.read():
            time.sleep(0.6)
            peer.answer()

    with LoopbackServer(answer_after_a_while) as server, ends_after(1.8):
        assert run(server.url(path=""), get, times=3, timeout=1, retry_for=0) == [{}, {}, {}]
    assert server.connections == 1


@pytest.mark.parametrize("name", ["ping", "validate"])
def test_a_ping_may_take_longer_than_the_timeout(run: Run, name: str) -> None:
    def answer_late(peer: Peer) -> None:
        while peer.read():
            time.sleep(1.5)
            peer.answer()

    with LoopbackServer(answer_late) as server:
        call = lambda client: getattr(client.targets, name)("tgt_1")  # noqa: E731 - one of two methods
        assert run(server.url(path=""), call, timeout=0.5, retry_for=0) == [{}]
        with pytest.raises(Unreachable):
            run(server.url(path=""), get, timeout=0.5, retry_for=0)


# ── waits ──────────────────────────────────────────────────────────────────────


class Versions:
    """Responds with the versions of an export in order, then repeats the last one; records the requests."""

    def __init__(self, *versions: dict[str, Any], **headers: str) -> None:
        self.received: list[ReceivedRequest] = []
        self._versions = versions
        self._headers = headers

    def __call__(self, peer: Peer) -> None:
        while request := peer.read():
            self.received.append(request)
            version = self._versions[min(len(self.received), len(self._versions)) - 1]
            peer.answer(200, json.dumps(version).encode(), **self._headers)


PAUSED: Final = {"id": "exp_1", "status": "approved", "next_attempt_at": None, "retry_after_seconds": 60}
SCHEDULED: Final = {"id": "exp_1", "status": "retry_scheduled", "next_attempt_at": "2030-01-01T00:00:00.000Z"}


def test_a_wait_for_a_silent_server_ends_in_time(run: Run) -> None:
    with LoopbackServer(send_nothing) as server, ends_after(1), pytest.raises(Unreachable):
        run(server.url(path=""), wait(1))


def test_a_wait_ends_at_most_a_second_late_without_the_last_response(run: Run) -> None:
    def answer_once(peer: Peer) -> None:
        peer.read()
        peer.answer(200, json.dumps(PAUSED).encode())
        peer.wait()

    with LoopbackServer(answer_once) as server, ends_after(1.5), pytest.raises(Unreachable):
        run(server.url(path=""), wait(0.5))


def test_a_wait_continues_while_the_target_is_paused(run: Run) -> None:
    resumed = Versions(PAUSED, {"id": "exp_1", "status": "exported"}, Retry_After="60")
    with LoopbackServer(resumed) as server, ends_after(1):
        assert run(server.url(path=""), wait(1))[0]["status"] == "exported"
    assert len(resumed.received) == 2
    with LoopbackServer(Versions(PAUSED, Retry_After="60")) as server, ends_after(1), pytest.raises(WaitTimeout):
        run(server.url(path=""), wait(1))


def test_a_wait_ends_at_once_if_the_next_attempt_is_due_later(run: Run) -> None:
    scheduled = Versions(SCHEDULED, Retry_After="60")
    with LoopbackServer(scheduled) as server, ends_after(0), pytest.raises(WaitTimeout):
        run(server.url(path=""), wait(30))
    assert len(scheduled.received) == 1


# ── lists ──────────────────────────────────────────────────────────────────────


def test_every_page_request_repeats_the_filter(run: Run) -> None:
    pages = Versions({"items": [1, 2], "next_cursor": "c1"}, {"items": [3], "next_cursor": None})
    with LoopbackServer(pages) as server:

        def call(client: Any) -> Any:
            return client.exports.list(page_size=2, status=(each for each in ("failed", "blocked")), rule="a,b")

        assert run(server.url(path=""), call) == [[1, 2, 3]]
    query = "/api/ticket-exports?status=failed%2Cblocked&rule=a%5C%2Cb&limit=2"
    assert [request.line.split()[1] for request in pages.received] == [query, f"{query}&cursor=c1"]
