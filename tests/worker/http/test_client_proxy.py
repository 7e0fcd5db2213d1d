"""Posts through a proxy: a real one, and faulty ones."""

import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest

from schemas.settings.egress import Egress, EgressProxy
from schemas.url_policy.policy import TargetPolicy
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest
from tests.support.servers.authorities import CertificateAuthority
from tests.support.servers.proxies import Tinyproxy, tinyproxy
from tests.support.worker.receivers import DEADLINE_S, NAME, SLACK_S, always, made_client, once, post, timed

COMPANY: Final = CertificateAuthority("Company")
#: A public address that no test reaches, because the proxies of these tests connect elsewhere.
PUBLIC: Final = "93.184.216.34"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Tinyproxy]:
    with tinyproxy(tmp_path) as running:
        yield running


def through(port: int, credentials: str | None = None) -> Egress:
    return Egress(COMPANY.pem, proxy=EgressProxy("127.0.0.1", port, credentials))


@pytest.mark.parametrize("tls", [COMPANY.server(NAME), None], ids=["https", "http"])
def test_a_proxy_opens_a_tunnel_to_the_address_and_tls_names_the_host(proxy: Tinyproxy, tls: object) -> None:
    context = COMPANY.server(NAME) if tls else None
    with LoopbackServer(always(), context) as server, made_client(egress=through(proxy.port)) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert [(outcome.status, outcome.address) for outcome in outcomes] == [(200, "127.0.0.1")] * 3
        assert server.connections == 1
        assert proxy.tunnels() == [f"127.0.0.1:{server.port}"]


def test_a_certificate_for_another_host_is_refused_in_a_tunnel_too(proxy: Tinyproxy) -> None:
    with (
        LoopbackServer(always(), COMPANY.server("other.example.com")) as server,
        made_client(egress=through(proxy.port)) as client,
    ):
        assert post(client, server.url(NAME)).error == "tls_certificate"


def test_a_proxy_gets_the_user_and_the_password(tmp_path: Path) -> None:
    with tinyproxy(tmp_path, credentials="relay s3cret") as proxy, LoopbackServer(always()) as server:
        for credentials, expected in (
            ("relay:s3cret", None),
            ("relay:wrong", "proxy_auth_required"),
            ("", "proxy_auth_required"),
        ):
            egress = Egress(proxy=proxy.at(credentials))
            with made_client(egress=egress) as client:
                assert post(client, server.url(NAME)).error == expected


def test_a_proxy_that_forbids_the_port_is_reported(tmp_path: Path) -> None:
    with tinyproxy(tmp_path, ports=[443]) as proxy, LoopbackServer(always()) as server:
        with made_client(egress=through(proxy.port)) as client:
            outcome = post(client, server.url(NAME))
        assert (outcome.error, outcome.refused) == ("proxy_refused", False)
        assert server.connections == 0


def test_a_proxy_that_cannot_reach_the_receiver_is_reported(proxy: Tinyproxy) -> None:
    with LoopbackServer(always()) as server:
        url = server.url(NAME)
    with made_client(egress=through(proxy.port)) as client:
        assert post(client, url).error == "proxy_connect_failed"


def test_an_unreachable_proxy_is_reported() -> None:
    with LoopbackServer(always()) as gone:
        port = gone.port
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    for egress in (through(port), Egress(proxy=EgressProxy("unknown.example.com", port))):
        with LoopbackServer(always()) as server, made_client(resolver=resolver, egress=egress) as client:
            assert post(client, server.url(NAME)).error == "proxy_unreachable"
            assert server.connections == 0


def test_the_policy_applies_to_the_receiver_and_not_to_the_proxy() -> None:
    asked: list[ReceivedRequest] = []
    strict = TargetPolicy(allow_http=True, allowed_ports=((1, 65535),))
    names = {NAME: [PUBLIC], "inside.example.com": ["127.0.0.1"], "proxy.example.com": ["127.0.0.1"]}

    def lead_to_receiver(peer: Peer) -> None:
        asked.append(request := peer.read() or ReceivedRequest("", {}, b""))
        assert request.line
        peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        always()(peer)

    with LoopbackServer(lead_to_receiver) as proxy:
        egress = Egress(proxy=EgressProxy("proxy.example.com", proxy.port))
        with made_client(strict, FakeResolver(names), egress=egress) as client:
            assert post(client, f"http://{NAME}:8080/hook").status == 200
            refused = post(client, "http://inside.example.com:8080/hook")
    assert (refused.error, refused.refused) == ("address_loopback", True)
    assert [request.line for request in asked] == [f"CONNECT {PUBLIC}:8080 HTTP/1.1"]
    assert "proxy-authorization" not in asked[0].headers
    assert NAME not in str(asked[0])


def test_if_the_proxy_cannot_reach_an_address_the_next_one_is_tried() -> None:
    def reach_one(peer: Peer) -> None:
        request = peer.read()
        if request is not None and "[::1]" in request.line:
            peer.send(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        else:
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            always()(peer)

    with (
        LoopbackServer(reach_one) as proxy,
        made_client(resolver=FakeResolver({NAME: ["::1", "127.0.0.1"]}), egress=through(proxy.port)) as client,
    ):
        outcome = post(client, f"http://{NAME}:8080/hook")
        assert (outcome.status, outcome.address) == (200, "127.0.0.1")


# Columns: what the proxy sends after CONNECT; the error.
@pytest.mark.parametrize(
    ("behave", "error"),
    [
        (once(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "proxy_bad_answer"),
        (once(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), "proxy_bad_answer"),
        (once(b"SSH-2.0-OpenSSH_9.2\r\n"), "proxy_bad_answer"),
        (once(b"HTTP/1.1 200 OK\r\nX-Filler: "), "proxy_bad_answer"),
        (once(b"HTTP/1.1 200 OK\r\n" + b"X-Filler: x\r\n" * 3000), "proxy_bad_answer"),
        (once(b"HTTP/1.1 2000 OK\r\n\r\n"), "proxy_bad_answer"),
        (once(), "proxy_bad_answer"),
        (once(b"HTTP/1.1 302 Found\r\nLocation: http://login.example.com/\r\n\r\n"), "proxy_refused"),
        (once(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\nDenied"), "proxy_refused"),
    ],
    ids=[
        *("it speaks for the receiver", "it does so after no body", "no HTTP", "half a head", "no end", "no status"),
        *("nothing", "redirect", "refusal"),
    ],
)
def test_each_protocol_error_of_a_proxy_is_reported(behave: Callable[[Peer], None], error: str) -> None:
    with LoopbackServer(behave) as proxy, made_client(egress=through(proxy.port)) as client:
        assert post(client, f"http://{NAME}:8080/hook").error == error


def _drip(peer: Peer) -> None:
    peer.read()
    peer.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 1000)


@pytest.mark.parametrize("behave", [Peer.wait, _drip], ids=["silent", "slow"])
def test_a_slow_proxy_is_bounded_by_the_deadline(behave: Callable[[Peer], None]) -> None:
    with LoopbackServer(behave) as proxy, made_client(connect_timeout_s=DEADLINE_S, egress=through(proxy.port)) as client:
        outcome, took_s = timed(client, f"http://{NAME}:8080/hook")
    assert outcome.error == "connect_timeout"
    assert took_s < DEADLINE_S + SLACK_S


def test_connections_start_at_the_fixed_source_address() -> None:
    sources: list[str] = []

    def note_source(peer: Peer) -> None:
        sources.append(peer.connection.getpeername()[0])
        always()(peer)

    with LoopbackServer(note_source) as server, made_client(egress=Egress(sources=(ip_address("127.0.0.7"),))) as client:
        assert post(client, server.url(NAME)).status == 200
    assert sources == ["127.0.0.7"]


@pytest.mark.parametrize(
    ("source", "addresses"),
    [("192.0.2.77", ["127.0.0.1"]), ("::1", ["127.0.0.1"])],
    ids=["not of this host", "of the other family"],
)
def test_no_connection_is_made_without_the_fixed_source_address(source: str, addresses: list[str]) -> None:
    egress = Egress(sources=(ip_address(source),))
    with LoopbackServer(always()) as server, made_client(resolver=FakeResolver({NAME: addresses}), egress=egress) as client:
        assert post(client, server.url(NAME)).error == "source_address_unavailable"
        assert server.connections == 0


def test_addresses_of_a_family_without_a_source_address_are_skipped() -> None:
    egress = Egress(sources=(ip_address("127.0.0.7"),))
    with (
        LoopbackServer(always()) as server,
        made_client(resolver=FakeResolver({NAME: ["::1", "127.0.0.1"]}), egress=egress) as client,
    ):
        began = time.monotonic()
        assert post(client, server.url(NAME)).address == "127.0.0.1"
        assert time.monotonic() - began < SLACK_S
