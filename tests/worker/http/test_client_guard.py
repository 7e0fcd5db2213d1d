"""The addresses that a post may reach: the address that was checked is dialed, whatever the name resolves to later."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from runtime.dns_resolver import DnsFailure
from schemas.url_policy.policy import TargetPolicy
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest
from tests.support.worker.receivers import NAME, RebindingResolver, always, made_client, post
from worker.http.client import HttpClient


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client() as made:
        yield made


def test_a_closed_port_is_refused(client: HttpClient) -> None:
    with LoopbackServer(always()) as server:
        url = server.url()
    outcome = post(client, url)
    assert (outcome.error, outcome.refused) == ("connect_refused", False)


@pytest.mark.parametrize("reason", list(DnsFailure))
def test_the_error_of_a_name_without_an_address_has_the_reason(reason: DnsFailure) -> None:
    with made_client(resolver=FakeResolver({NAME: reason})) as client:
        outcome = post(client, f"http://{NAME}/")
    assert (outcome.error, outcome.refused) == (reason.value, False)


# Columns: URL; why it is refused. No part of it may reach the network.
REFUSED_URLS: Final = [
    ("ftp://receiver.example.com/", "scheme_not_allowed"),
    ("http://user:password@receiver.example.com/", "userinfo"),
    ("http://localhost/", "local_suffix"),
    ("http://0x7f000001/", "host_numeric"),
    ("http://169.254.169.254/", "address_metadata"),
    ("http://10.0.0.1/", "address_private"),
]


@pytest.mark.parametrize(("url", "reason"), REFUSED_URLS)
def test_the_name_in_a_url_that_the_policy_refuses_is_not_looked_up(url: str, reason: str) -> None:
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    with made_client(resolver=resolver) as client:
        outcome = post(client, url)
    assert (outcome.error, outcome.refused, outcome.address) == (reason, True, None)
    assert resolver.asked == []


# Columns: addresses of the name; the error. The policy allows 127.0.0.0/8.
MIXED: Final = [
    (["127.0.0.1", "10.0.0.1"], "address_private"),  # one forbidden address refuses all
    (["10.0.0.1", "127.0.0.1"], "address_private"),
    (["127.0.0.1", "169.254.169.254"], "address_metadata"),
    (["127.0.0.1", "fe80::1"], "address_link_local"),
    (["::ffff:10.0.0.1"], "address_private"),
]


@pytest.mark.parametrize(("addresses", "reason"), MIXED)
def test_a_host_name_with_one_forbidden_address_is_refused(addresses: list[str], reason: str) -> None:
    with LoopbackServer(always()) as server, made_client(resolver=FakeResolver({NAME: addresses})) as client:
        outcome = post(client, server.url(NAME))
        assert server.connections == 0
    assert (outcome.error, outcome.refused) == (reason, True)
    assert outcome.address is None


def test_a_name_that_resolves_to_loopback_is_refused_unless_loopback_is_allowed() -> None:
    shut = TargetPolicy(allow_http=True, allowed_ports=((1, 65535),))
    with LoopbackServer(always()) as server, made_client(shut) as client:
        outcome = post(client, server.url(NAME))
        assert server.connections == 0
    assert (outcome.error, outcome.refused) == ("address_loopback", True)


def test_a_name_is_looked_up_once_per_connection_and_the_checked_address_is_used() -> None:
    resolver = RebindingResolver(["127.0.0.2"], ["10.0.0.1"])
    with LoopbackServer(always(), host="127.0.0.2") as server, made_client(resolver=resolver) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert (server.connections, resolver.asked) == (1, 1)
    assert [(outcome.status, outcome.address) for outcome in outcomes] == [(200, "127.0.0.2")] * 3


def test_a_name_that_later_resolves_to_a_refused_address_is_refused() -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.answer(Connection="close")

    resolver = RebindingResolver(["127.0.0.1"], ["10.0.0.1"])
    with LoopbackServer(behave) as server, made_client(resolver=resolver) as client:
        assert post(client, server.url(NAME)).status == 200
        assert post(client, server.url(NAME)).error == "address_private"
        assert server.connections == 1


def test_proxy_and_netrc_settings_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[ReceivedRequest] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            seen.append(request)
            peer.answer()

    (tmp_path / ".netrc").write_text(f"machine {NAME} login me password secret\ndefault login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with LoopbackServer(always()) as proxy, LoopbackServer(behave) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "elsewhere.example.com")
        with made_client() as client:
            assert post(client, server.url(NAME)).status == 200
        assert proxy.connections == 0
    assert "authorization" not in seen[0].headers
