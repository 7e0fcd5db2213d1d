"""A post ends at its deadline, whatever a receiver or a name server delays, with and without TLS."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from runtime.dns_resolver import DnsResolver
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, SlowResolver
from tests.support.processes.workers import wait_until
from tests.support.worker.receivers import (
    DEADLINE_S,
    DRIPPED_BODIES,
    NAME,
    SLACK_S,
    always,
    drip_body_of,
    drip_headers,
    made_client,
    make_certificate,
    post,
    say_nothing,
    silent_port,
    timed,
)
from worker.http.client import HttpClient
from worker.http.deadline import Exchange, Watchdog, WatchedSocket


@pytest.fixture
def short_deadline_client() -> Iterator[HttpClient]:
    """A client with a short deadline."""
    with made_client(deadline_s=DEADLINE_S) as made:
        yield made


def _drip_status_line(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 " + b"2" * 1000)


def _drip_interim_answers(peer: Peer) -> None:
    peer.read()
    for _ in range(1000):
        peer.drip(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)


def _read_and_say_nothing(peer: Peer) -> None:
    peer.read()
    peer.wait()


@pytest.mark.parametrize(
    "behave", [drip_headers, _drip_status_line, _drip_interim_answers, say_nothing, _read_and_say_nothing]
)
def test_a_peer_that_never_ends_its_headers_is_given_up_at_the_deadline(
    short_deadline_client: HttpClient, behave: Callable[[Peer], None]
) -> None:
    with LoopbackServer(behave) as server:
        outcome, took_s = timed(short_deadline_client, server.url())
    assert (outcome.status, outcome.error) == (None, "deadline_exceeded")
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


@pytest.mark.parametrize("head", DRIPPED_BODIES.values(), ids=list(DRIPPED_BODIES))
def test_a_dripped_body_ends_at_the_deadline_and_its_status_counts(head: bytes) -> None:
    # Long enough for the head to arrive on a busy machine.
    deadline_s = 3 * DEADLINE_S
    with made_client(deadline_s=deadline_s) as client, LoopbackServer(drip_body_of(head)) as server:
        outcome, took_s = timed(client, server.url())
    assert (outcome.status, outcome.error) == (201, None)
    assert took_s <= deadline_s + SLACK_S


def test_a_peer_that_reads_nothing_of_a_large_body_is_given_up_at_the_deadline() -> None:
    # A connect timeout below the deadline must not end the sending.
    with LoopbackServer(say_nothing) as server, made_client(deadline_s=DEADLINE_S, connect_timeout_s=0.1) as client:
        outcome, took_s = timed(client, server.url(), b"x" * 64 * 1024 * 1024)
    assert outcome.error == "deadline_exceeded"
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


def test_a_reused_connection_has_a_new_deadline(short_deadline_client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer()
        drip_headers(peer)

    with LoopbackServer(behave) as server:
        assert post(short_deadline_client, server.url()).status == 200
        outcome, took_s = timed(short_deadline_client, server.url())
        assert server.connections == 1
    assert outcome.error == "deadline_exceeded"
    assert took_s <= DEADLINE_S + SLACK_S


def test_the_deadline_of_one_post_does_not_end_the_next_on_the_same_connection() -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            time.sleep(0.1)
            peer.answer()

    with LoopbackServer(behave) as server, made_client(deadline_s=1) as client:
        outcomes = [post(client, server.url()) for _ in range(12)]
        assert server.connections == 1
    assert [outcome.status for outcome in outcomes] == [200] * 12


def test_a_slow_name_server_is_given_up_at_the_deadline() -> None:
    hung = threading.Event()

    def resolve(*_: object, **__: object) -> Sequence[tuple[object, ...]]:
        hung.wait(10)
        return []

    with made_client(resolver=DnsResolver(getaddrinfo=resolve), deadline_s=DEADLINE_S) as client:
        outcome, took_s = timed(client, f"http://{NAME}/hook")
    hung.set()
    assert outcome.error == "dns_timeout"
    assert took_s <= DEADLINE_S + SLACK_S


def test_the_time_of_a_slow_lookup_counts_against_the_deadline() -> None:
    slow = SlowResolver({NAME: ["127.0.0.1"]}, DEADLINE_S * 0.9)
    with LoopbackServer(drip_headers) as server, made_client(resolver=slow, deadline_s=DEADLINE_S) as client:
        outcome, took_s = timed(client, server.url(NAME))
    assert outcome.error == "deadline_exceeded"
    assert took_s <= DEADLINE_S + SLACK_S


def test_after_a_lookup_beyond_the_deadline_no_connection_is_attempted() -> None:
    late = SlowResolver({NAME: ["127.0.0.1"]}, DEADLINE_S + 0.1)
    with LoopbackServer(always()) as server, made_client(resolver=late, deadline_s=DEADLINE_S) as client:
        assert post(client, server.url(NAME)).error == "deadline_exceeded"
        assert server.connections == 0


def _drip_handshake(peer: Peer) -> None:
    peer.drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc" + bytes(1000))


@pytest.mark.parametrize("behave", [_drip_handshake, say_nothing])
def test_a_handshake_that_never_ends_is_given_up_at_the_deadline(behave: Callable[[Peer], None]) -> None:
    with LoopbackServer(behave) as server, made_client(deadline_s=DEADLINE_S, connect_timeout_s=0.1) as client:
        outcome, took_s = timed(client, f"https://{NAME}:{server.port}/")
    assert outcome.error == "deadline_exceeded"
    assert DEADLINE_S - 0.01 <= took_s <= DEADLINE_S + SLACK_S


@pytest.mark.parametrize("behave", [drip_headers, drip_body_of(DRIPPED_BODIES["on a connection to be closed"])])
def test_the_deadline_holds_over_tls_too(tmp_path: Path, behave: Callable[[Peer], None]) -> None:
    context, authority = make_certificate(tmp_path)
    with LoopbackServer(behave, context) as server, made_client(deadline_s=DEADLINE_S, verify=authority) as client:
        outcome, took_s = timed(client, server.url(NAME))
    assert outcome.error == "deadline_exceeded" or outcome.status == 201
    assert took_s <= DEADLINE_S + SLACK_S


def test_a_connect_beyond_its_timeout_is_aborted() -> None:
    with silent_port("127.0.0.1") as port, made_client(connect_timeout_s=0.3) as client:
        outcome, took_s = timed(client, f"http://127.0.0.1:{port}/")
    assert outcome.error == "connect_timeout"
    assert 0.29 <= took_s < 0.3 + SLACK_S


def test_an_unreachable_address_leaves_time_for_the_next() -> None:
    resolver = FakeResolver({NAME: ["127.0.0.2", "127.0.0.1"]})
    with (
        silent_port("127.0.0.2") as port,
        LoopbackServer(always(), port=port) as server,
        made_client(resolver=resolver, connect_timeout_s=0.6) as client,
    ):
        outcome = post(client, server.url(NAME))
    assert (outcome.status, outcome.address) == (200, "127.0.0.1")


# ---------------------------------------------------------------- the watchdog


@pytest.mark.parametrize(("left_s", "may_be_kept"), [(60, True), (0, False), (-1, False)])
def test_a_released_connection_is_not_shut_down_and_past_the_deadline_not_kept(left_s: int, may_be_kept: bool) -> None:
    watched_end, other_end = socket.socketpair()
    with watched_end, other_end:
        watched, exchange, next_one = WatchedSocket(watched_end), Exchange(left_s), Exchange(60)
        exchange.use(watched, "")
        assert watched.release(exchange) is may_be_kept
        next_one.use(watched, "")
        exchange.expire()  # the watchdog is late
        watched_end.sendall(b"x")
        assert other_end.recv(1) == b"x"
        next_one.expire()
        assert other_end.recv(1) == b""


def test_a_connection_established_after_the_deadline_is_shut_down_at_once() -> None:
    watched_end, other_end = socket.socketpair()
    with watched_end, other_end:
        exchange = Exchange(0)
        exchange.expire()
        exchange.use(WatchedSocket(watched_end), "")
        assert other_end.recv(1) == b""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watchdog_that_failed_is_replaced() -> None:
    ended: list[threading.Thread] = []

    def tidy() -> bool:
        if not ended:
            ended.append(threading.current_thread())
            raise RuntimeError("A fault in what is called.")
        return False

    watchdog = Watchdog(tidy, tidy_every_s=0.01)
    watched_end, other_end = socket.socketpair()
    with watched_end, other_end:
        _watch_briefly(watchdog, watched_end)
        ended[0].join(SLACK_S)
        assert not ended[0].is_alive()
        _watch_briefly(watchdog, watched_end)
        other_end.settimeout(SLACK_S)
        assert other_end.recv(1) == b""  # closed by the watchdog


def test_an_idle_watchdog_thread_ends_and_the_next_exchange_starts_another() -> None:
    threads: list[threading.Thread] = []

    def tidy() -> bool:
        threads.append(threading.current_thread())
        return False

    watchdog = Watchdog(tidy, tidy_every_s=0.01)
    exchange = Exchange(60)
    watchdog.watch(exchange)
    wait_until(lambda: len(threads) > 1)
    assert threads[0].is_alive()
    watchdog.unwatch(exchange)
    threads[0].join(SLACK_S)
    assert not threads[0].is_alive()

    watched_end, other_end = socket.socketpair()
    with watched_end, other_end:
        _watch_briefly(watchdog, watched_end)
        other_end.settimeout(SLACK_S)
        assert other_end.recv(1) == b""  # closed by the watchdog


def _watch_briefly(watchdog: Watchdog, connected: socket.socket) -> None:
    """Watch an exchange over `connected` until some time after its deadline."""
    exchange = Exchange(DEADLINE_S)
    watchdog.watch(exchange)
    watched = WatchedSocket(connected.dup())
    exchange.use(watched, "")
    time.sleep(DEADLINE_S * 2)
    watchdog.unwatch(exchange)
    watched.close()
