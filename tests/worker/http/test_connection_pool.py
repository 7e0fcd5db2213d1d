"""Kept-alive connections: used only while their name resolves to their address; nothing is sent twice."""

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from runtime.dns_resolver import Addresses, DnsFailure, DnsResolver
from tests.support.fakes import FakeResolver, LoopbackServer, Peer
from tests.support.worker.receivers import NAME, PATIENCE_S, RebindingResolver, made_client, make_certificate, post, until
from worker.http import connection_pool

HERE: Final = ["127.0.0.1"]
THERE: Final = ["127.0.0.2"]
PRIVATE: Final = ["10.0.0.1"]


class GatedServer:
    """Responds to each request after `gate` returns; counts requests and closed connections."""

    def __init__(self, gate: Callable[[], object] = lambda: None) -> None:
        self.requests = 0
        self.closed = 0
        self._gate = gate
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        try:
            while peer.read():
                with self._lock:
                    self.requests += 1
                self._gate()
                peer.answer()
        finally:
            with self._lock:
                self.closed += 1

    def await_closed(self, count: int) -> bool:
        return until(lambda: self.closed >= count)


def test_a_kept_connection_is_closed_if_its_name_resolves_to_a_private_address() -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, PRIVATE)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        assert post(client, server.url(NAME)).status == 200
        outcomes = [post(client, server.url(NAME)) for _ in range(2)]
        assert gated.await_closed(1)
        assert (server.connections, gated.requests) == (1, 1)
    assert [(outcome.error, outcome.refused) for outcome in outcomes] == [("address_private", True)] * 2
    assert [outcome.address for outcome in outcomes] == [None] * 2


def test_kept_connections_over_tls_are_checked_too(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    gated, resolver = GatedServer(), RebindingResolver(HERE, HERE, PRIVATE)
    with (
        LoopbackServer(gated, context) as server,
        made_client(resolver=resolver, confirmed_for_s=0, verify=authority) as client,
    ):
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert gated.await_closed(1)
        assert (server.connections, gated.requests) == (1, 2)
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [(200, None), (200, None), (None, "address_private")]


# The addresses of the name besides the address of the kept connection.
@pytest.mark.parametrize("others", [["10.0.0.1"], ["169.254.169.254"], ["127.0.0.2", "fe80::1"]])
def test_an_additional_refused_address_ends_a_kept_connection(others: list[str]) -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, [*HERE, *others])
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        assert post(client, server.url(NAME)).status == 200
        assert post(client, server.url(NAME)).refused
        assert gated.await_closed(1)
        assert gated.requests == 1


def test_all_kept_connections_of_a_refused_name_are_closed() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)
    gated, resolver = GatedServer(together.wait), RebindingResolver(HERE, HERE, HERE, PRIVATE)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        with ThreadPoolExecutor(3) as pool:
            first = list(pool.map(lambda _: post(client, server.url(NAME)).status, range(3)))
        assert (first, server.connections) == ([200] * 3, 3)
        assert post(client, server.url(NAME)).refused
        assert gated.await_closed(3)
        assert gated.requests == 3


def test_a_connection_in_use_during_a_refusal_is_checked_before_its_next_use() -> None:
    release = threading.Event()
    gated, resolver = GatedServer(lambda: release.wait(PATIENCE_S)), RebindingResolver(HERE, PRIVATE)
    with LoopbackServer(gated) as server, made_client(resolver=resolver) as client, ThreadPoolExecutor(1) as pool:
        used = pool.submit(post, client, server.url(NAME))
        assert until(lambda: gated.requests == 1)
        assert post(client, server.url(NAME)).error == "address_private"  # this post dials by itself
        release.set()
        assert used.result().status == 200
        assert post(client, server.url(NAME)).error == "address_private"
        assert (server.connections, gated.requests) == (1, 1)


def test_a_name_that_resolves_to_a_new_address_gets_a_new_connection_and_each_request_once() -> None:
    before, after, resolver = GatedServer(), GatedServer(), RebindingResolver(HERE, THERE)
    with (
        LoopbackServer(before) as old,
        LoopbackServer(after, host="127.0.0.2", port=old.port) as new,
        made_client(resolver=resolver, confirmed_for_s=0) as client,
    ):
        outcomes = [post(client, old.url(NAME)) for _ in range(3)]
        assert before.await_closed(1)
        assert (old.connections, new.connections) == (1, 1)
    assert [(outcome.status, outcome.address) for outcome in outcomes] == [(200, "127.0.0.1"), *[(200, "127.0.0.2")] * 2]
    assert (before.requests, after.requests) == (1, 2)


def test_a_name_with_more_addresses_keeps_the_connection_to_one_of_them() -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, [*THERE, *HERE])
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        assert [post(client, server.url(NAME)).address for _ in range(3)] == HERE * 3
        assert (server.connections, resolver.asked) == (1, 3)


@pytest.mark.parametrize("reason", [DnsFailure.TIMEOUT, DnsFailure.FAILED, DnsFailure.OVERLOADED])
def test_an_unavailable_name_server_ends_no_kept_connection(reason: DnsFailure) -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, reason)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert (server.connections, resolver.asked) == (1, 3)
    assert [(outcome.status, outcome.address) for outcome in outcomes] == [(200, "127.0.0.1")] * 3


def test_a_hanging_name_server_leaves_enough_time_for_a_delivery() -> None:
    hung = threading.Event()
    asked = []

    def resolve(host: str, *_: object, **__: object) -> Sequence[tuple[object, ...]]:
        asked.append(host)
        if len(asked) > 1:
            hung.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    gated = GatedServer()
    resolver = DnsResolver(getaddrinfo=resolve)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, deadline_s=30, confirmed_for_s=0) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(2)]
        hung.set()
        assert server.connections == 1
    assert [outcome.status for outcome in outcomes] == [200, 200]
    assert outcomes[1].timings.dns_ms is not None
    assert 900 <= outcomes[1].timings.dns_ms < 15_000


def test_a_name_that_no_longer_exists_ends_its_connection_but_is_not_refused() -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, DnsFailure.NOT_FOUND)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=0) as client:
        assert post(client, server.url(NAME)).status == 200
        outcome = post(client, server.url(NAME))
        assert gated.await_closed(1)
        assert gated.requests == 1
    assert (outcome.error, outcome.refused) == ("dns_not_found", False)


def test_a_confirmed_name_is_not_looked_up_again() -> None:
    gated, resolver = GatedServer(), RebindingResolver(HERE, PRIVATE)
    with LoopbackServer(gated) as server, made_client(resolver=resolver, confirmed_for_s=600) as client:
        assert {post(client, server.url(NAME)).status for _ in range(100)} == {200}
        assert (server.connections, resolver.asked) == (1, 1)


def test_one_lookup_of_a_name_confirms_all_its_connections() -> None:
    release, together = threading.Event(), threading.Barrier(2)
    gate: list[Callable[[float], object]] = [release.wait]
    gated, resolver = GatedServer(lambda: gate[0](PATIENCE_S)), RebindingResolver(HERE, HERE, PRIVATE, HERE)
    with LoopbackServer(gated) as server, made_client(resolver=resolver) as client, ThreadPoolExecutor(2) as pool:
        used = [pool.submit(post, client, server.url(NAME)) for _ in range(2)]
        assert until(lambda: gated.requests == 2)
        assert post(client, server.url(NAME)).refused  # so that neither connection counts as confirmed
        release.set()
        assert [kept.result().status for kept in used] == [200, 200]
        gate[0] = together.wait
        used = [pool.submit(post, client, server.url(NAME))]
        assert until(lambda: gated.requests == 3)
        used.append(pool.submit(post, client, server.url(NAME)))
        assert [kept.result().status for kept in used] == [200, 200]
        assert (server.connections, resolver.asked) == (2, 4)


class CountingResolver(FakeResolver):
    """A resolver that takes a moment, so that other threads ask for the same name meanwhile."""

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        time.sleep(0.002)
        return super().resolve(host, port, timeout_s, account_id)


def test_many_posts_on_many_threads_share_the_lookups() -> None:
    threads, period_s = 8, 0.3
    gated, resolver = GatedServer(), CountingResolver({NAME: HERE})

    def keep_posting(until_at: float) -> set[int | None]:
        met = set()
        while time.monotonic() < until_at:
            met.add(post(client, server.url(NAME)).status)
        return met

    with (
        LoopbackServer(gated) as server,
        made_client(resolver=resolver, confirmed_for_s=period_s) as client,
        ThreadPoolExecutor(threads) as pool,
    ):
        began = time.monotonic()
        assert set().union(*pool.map(keep_posting, [began + 4 * period_s] * threads)) == {200}
        periods = (time.monotonic() - began) / period_s
        assert server.connections <= threads
    # Each thread dials once; then, at worst, all of them look the name up at the end of each period.
    assert server.connections < len(resolver.asked) <= threads * (periods + 2)


def hang_up_on_the_second_request(peer: Peer) -> None:
    """Answer one request, and close the connection at the next one, as if the request and the close had crossed."""
    peer.read()
    peer.answer()
    peer.read()


def test_a_receiver_that_closes_kept_connections_gets_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(hang_up_on_the_second_request) as server, made_client() as client:
        outcomes = [post(client, server.url()) for _ in range(10)]
        assert [each.error for each in outcomes] == [None, "connection_closed", *[None] * 8]
        assert server.connections == 9
        # Later, connections to this receiver are kept alive again.
        monkeypatch.setattr(connection_pool, "KEEPS_NONE_S", -math.inf)
        client.close()
        outcomes = [post(client, server.url()) for _ in range(4)]
        assert [each.error for each in outcomes] == [None, "connection_closed"] * 2


def test_a_timeout_does_not_close_other_kept_connections() -> None:
    waits = threading.Event()
    gates: list[Callable[[], object]] = [lambda: None, lambda: waits.wait(PATIENCE_S)]
    gated = GatedServer(lambda: gates.pop(0)() if gates else None)
    with LoopbackServer(gated) as server, made_client(deadline_s=0.5) as client:
        outcomes = [post(client, server.url()) for _ in range(4)]
        waits.set()
        assert [each.error for each in outcomes] == [None, "deadline_exceeded", None, None]
        assert server.connections == 2


def test_idle_connections_are_closed() -> None:
    gated = GatedServer()
    with LoopbackServer(gated) as server, made_client(kept_idle_s=0.2) as client:
        assert post(client, server.url(NAME)).status == 200
        assert gated.await_closed(1)
        assert post(client, server.url(NAME)).status == 200
        assert gated.await_closed(2)


def test_a_connection_in_use_is_not_idle() -> None:
    gated = GatedServer(lambda: time.sleep(0.8))
    with LoopbackServer(gated) as server, made_client(kept_idle_s=0.1) as client:
        assert post(client, server.url(NAME)).status == 200
