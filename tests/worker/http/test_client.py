"""Posts over real sockets: what is sent, the outcome of every kind of response, and how connections are reused."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest, SlowResolver
from tests.support.worker.receivers import (
    BODY,
    DRIPPED_BODIES,
    HEADERS,
    NAME,
    PATIENCE_S,
    always,
    drip_body_of,
    drip_headers,
    made_client,
    make_certificate,
    once,
    post,
    until,
)
from worker.http.client import HttpClient


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client() as made:
        yield made


# ---------------------------------------------------------------- responses


def test_a_success_in_the_headers_counts_whatever_happens_to_the_body(client: HttpClient) -> None:
    cut_short = once(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"id": "T-1"}')
    with LoopbackServer(cut_short) as server:
        outcome = post(client, server.url())
    assert (outcome.status, outcome.error) == (200, None)


def test_a_request_is_sent_with_exactly_the_given_path_headers_and_body(client: HttpClient) -> None:
    seen: list[ReceivedRequest] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            seen.append(request)
            peer.answer(201, b'{"id": "T-1"}', Retry_After="7")

    with LoopbackServer(behave) as server:
        outcome = client.post(server.url(NAME, "/hook?a=b%20c"), {**HEADERS, "X-Service-Nonce": "ab"}, BODY)
        port = server.port
    [request] = seen
    assert request.line == "POST /hook?a=b%20c HTTP/1.1"
    assert request.body == BODY
    assert request.headers == {
        "host": f"{NAME}:{port}",
        "content-type": "application/json",
        "user-agent": "RiskRelay/test",
        "idempotency-key": "exp_1",
        "x-service-nonce": "ab",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
    }
    assert (outcome.status, outcome.body, outcome.retry_after) == (201, b'{"id": "T-1"}', "7")


def test_headers_and_body_are_sent_as_these_bytes_at_once(client: HttpClient) -> None:
    received: list[bytes] = []

    def behave(peer: Peer) -> None:
        received.append(peer.connection.recv(65536))
        peer.answer()

    with LoopbackServer(behave) as server:
        assert post(client, server.url(NAME, "/hook")).status == 200
        port = server.port
    assert received == [
        b"POST /hook HTTP/1.1\r\n"
        b"Host: %b:%d\r\n"
        b"Content-Type: application/json\r\n"
        b"User-Agent: RiskRelay/test\r\n"
        b"Idempotency-Key: exp_1\r\n"
        b"Accept-Encoding: identity\r\n"
        b"Content-Length: 14\r\n"
        b"\r\n"
        b'{"id":"exp_1"}' % (NAME.encode(), port)
    ]


# Columns: host in the URL; host that is looked up; host in the request.
HOSTS: Final = [
    (NAME, NAME, NAME),
    ("RECEIVER.Example.com.", NAME, NAME),
    ("b\xfccher.example", "xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ("[::1]", "::1", "[::1]"),
    ("[0:0:0:0:0:0:0:1]", "::1", "[::1]"),
]


@pytest.mark.parametrize(("host", "looked_up", "named"), HOSTS)
def test_a_host_is_sent_in_its_normalized_form(host: str, looked_up: str, named: str) -> None:
    seen: list[ReceivedRequest | None] = []

    def behave(peer: Peer) -> None:
        seen.append(peer.read())
        peer.answer()

    resolver = FakeResolver({looked_up: ["127.0.0.1"]})
    with LoopbackServer(behave) as server, made_client(resolver=resolver) as client:
        assert post(client, server.url(host)).status == 200
        port = server.port
    assert resolver.asked == [looked_up]
    assert [request and request.headers["host"] for request in seen] == [f"{named}:{port}"]


# headers that would become several
@pytest.mark.parametrize("header", [{"A": "b\r\nC: d"}, {"A": "b\nC: d"}, {"A": "b\rC: d"}, {"A": "b\0"}, {"A\r\nB": "c"}])
def test_a_header_with_a_line_break_is_refused_and_not_sent(client: HttpClient, header: dict[str, str]) -> None:
    with LoopbackServer(always()) as server:
        with pytest.raises(ValueError, match="another header"):
            client.post(server.url(), {**HEADERS, **header}, BODY)
        assert server.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(client: HttpClient, status: int) -> None:
    with LoopbackServer(always()) as elsewhere, LoopbackServer(always(status, Location=elsewhere.url())) as server:
        outcome = post(client, server.url())
        assert elsewhere.connections == 0
    assert (outcome.status, outcome.error) == (status, None)


# What the receiver does after the request, and the error.
BROKEN: Final = {
    "hangs up": (once(), "connection_closed"),
    "hangs up in the status line": (once(b"HTTP/1.1 2"), "connection_closed"),
    "hangs up after the status line": (once(b"HTTP/1.1 200 OK\r\n"), "connection_closed"),
    "hangs up in a header": (once(b"HTTP/1.1 200 OK\r\nContent-Le"), "connection_closed"),
    "hangs up between headers": (once(b"HTTP/1.1 200 OK\r\nA: b\r\n"), "connection_closed"),
    "hangs up after a continue": (once(b"HTTP/1.1 100 Continue\r\n\r\n"), "connection_closed"),
    "talks nonsense": (once(b"SSH-2.0-OpenSSH_9.2\r\n"), "bad_answer"),
    "talks binary": (once(bytes(range(256)) * 10), "bad_answer"),
    "sends an impossible status": (once(b"HTTP/1.1 99999 OK\r\n\r\n"), "bad_answer"),
    "sends too many headers": (once(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 200, b"\r\n"), "bad_answer"),
    "sends an endless header": (once(b"HTTP/1.1 200 OK\r\nA: ", b"b" * 100_000, b"\r\n\r\n"), "bad_answer"),
    "sends an endless status line": (once(b"HTTP/1.1 200 ", b"b" * 100_000, b"\r\n\r\n"), "bad_answer"),
    "names two lengths": (once(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab"), "bad_answer"),
}


@pytest.mark.parametrize(("behave", "error"), BROKEN.values(), ids=list(BROKEN))
def test_each_broken_response_has_its_error_code(client: HttpClient, behave: Callable[[Peer], None], error: str) -> None:
    with LoopbackServer(behave) as server:
        outcome = post(client, server.url())
    assert (outcome.status, outcome.error) == (None, error)
    assert outcome.address == "127.0.0.1"


def test_a_reset_connection_is_reported_as_closed(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    with LoopbackServer(behave) as server:
        assert post(client, server.url()).error == "connection_closed"


def test_a_kept_connection_that_the_receiver_has_closed_is_replaced_at_no_cost(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer()

    with LoopbackServer(behave) as server:
        for _ in range(3):
            assert post(client, server.url()).status == 200
            time.sleep(0.02)
        assert server.connections == 3


def test_a_request_on_a_kept_connection_that_dies_under_it_is_not_sent_again(client: HttpClient) -> None:
    requests: list[int] = []

    def behave(peer: Peer) -> None:
        while peer.read():
            requests.append(peer.number)
            if len(requests) == 2:
                return
            peer.answer()

    with LoopbackServer(behave) as server:
        outcomes = [post(client, server.url()) for _ in range(3)]
    assert [outcome.error for outcome in outcomes] == [None, "connection_closed", None]
    assert requests == [1, 1, 2]


def test_a_response_counts_even_if_it_arrives_before_the_request_was_read(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.connection.recv(1)
        peer.answer(413)

    with LoopbackServer(behave) as server:
        assert post(client, server.url(), b"x" * 100_000).status == 413


# ---------------------------------------------------------------- connections, threads, descriptors


def test_connections_are_kept_and_one_post_takes_no_delayed_acknowledgement(client: HttpClient) -> None:
    with LoopbackServer(always()) as server:
        post(client, server.url())
        began = time.monotonic()
        for _ in range(100):
            assert post(client, server.url()).status == 200
        took_s = time.monotonic() - began
        assert server.connections == 1
    # Two packets without TCP_NODELAY would take 40 ms for each post, 4 s in all.
    assert took_s < 3


def test_the_parts_of_a_first_post_are_timed_and_those_of_a_second_are_not_repeated() -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            time.sleep(0.05)
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            time.sleep(0.05)
            peer.send(b"{}")

    with LoopbackServer(behave) as server, made_client(resolver=SlowResolver({NAME: ["127.0.0.1"]}, 0.05)) as client:
        first, second = (post(client, server.url(NAME)).timings for _ in range(2))
    assert first.dns_ms is not None
    assert first.dns_ms >= 45
    assert first.connect_ms is not None
    assert first.tls_ms is None
    assert first.first_byte_ms is not None
    assert first.first_byte_ms >= first.dns_ms + first.connect_ms + 45
    assert first.first_byte_ms + 45 <= first.total_ms < 5000
    assert (second.dns_ms, second.connect_ms, second.tls_ms) == (None, None, None)
    assert second.first_byte_ms is not None
    assert second.first_byte_ms >= 45
    assert second.total_ms >= second.first_byte_ms + 45


def test_32_threads_share_a_client_and_each_gets_its_own_response(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            peer.answer(200, request.headers["idempotency-key"].encode() + request.body)

    def send(number: int) -> bool:
        key = f"exp_{number}"
        outcome = client.post(server.url(NAME), {**HEADERS, "Idempotency-Key": key}, str(number).encode())
        return outcome.body == f"{key}{number}".encode() and outcome.address == "127.0.0.1"

    with LoopbackServer(behave) as server, ThreadPoolExecutor(32) as pool:
        assert all(pool.map(send, range(1000)))
        assert server.connections <= 32


def test_urls_of_one_origin_share_its_connections(client: HttpClient) -> None:
    with LoopbackServer(always()) as server:
        for path in ("/a", "/b?c", "/"):
            assert post(client, server.url(NAME, path)).status == 200
        assert server.connections == 1
        assert post(client, server.url("127.0.0.1")).status == 200
        assert server.connections == 2


def test_a_closed_client_keeps_no_connection_and_can_be_used_again(client: HttpClient) -> None:
    release, hung_up = threading.Event(), []

    def behave(peer: Peer) -> None:
        while peer.read():
            if peer.number == 1:
                release.wait(PATIENCE_S)
            peer.answer()
        hung_up.append(peer.number)

    with LoopbackServer(behave) as server, ThreadPoolExecutor(1) as pool:
        used = pool.submit(post, client, server.url())
        assert until(lambda: server.connections == 1)
        client.close()
        release.set()
        assert used.result().status == 200
        assert until(lambda: hung_up == [1])
        assert [post(client, server.url()).status for _ in range(2)] == [200, 200]
        assert server.connections == 2


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_after_500_posts_of_every_kind(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    plain: list[Callable[[Peer], None]] = [
        always(),
        always(503, Connection="close"),
        once(b"nonsense\r\n"),
        once(),
        drip_headers,
        drip_body_of(DRIPPED_BODIES["on a connection to be closed"]),
    ]
    with ExitStack() as stack:
        client = stack.enter_context(made_client(deadline_s=0.3, verify=authority))
        servers = [stack.enter_context(LoopbackServer(behave)) for behave in plain]
        urls = [server.url(NAME) for server in servers]
        secure = stack.enter_context(LoopbackServer(always(), context))
        urls += [secure.url(NAME), secure.url("other.example.com"), f"https://{NAME}:{servers[3].port}/", "http://10.0.0.1/"]
        pool = stack.enter_context(ThreadPoolExecutor(32))

        def send(number: int) -> str:
            outcome = post(client, urls[number % len(urls)])
            return outcome.error or str(outcome.status)

        list(pool.map(send, range(len(urls))))
        client.close()
        before = open_files()
        met = set(pool.map(send, range(500)))
        client.close()
        deadline = time.monotonic() + 5
        while open_files() > before + 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert open_files() <= before + 5
    assert {"200", "201", "503", "bad_answer", "connection_closed", "deadline_exceeded", "address_private"} <= met
