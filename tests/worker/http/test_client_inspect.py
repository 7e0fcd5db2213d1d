"""Inspection of a target: it reports every problem that a delivery would meet before its first byte, and sends nothing."""

import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from runtime.dns_resolver import DnsFailure, DnsResolver
from schemas.targets.validations import EXPIRES_SOON, EXPIRES_SOON_DAYS, Validation
from schemas.url_policy.policy import TargetPolicy
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest
from tests.support.worker.receivers import (
    DEADLINE_S,
    NAME,
    RebindingResolver,
    always,
    made_client,
    make_certificate,
    post,
    say_nothing,
    until,
)


class Listener:
    """Records what a client sends, and never responds."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest | None] = []

    def __call__(self, peer: Peer) -> None:
        self.received.append(peer.read())


MONTHS: Final = timedelta(days=60)
#: A margin of a minute, because the test takes time.
JUST: Final = timedelta(minutes=1)
SOON: Final = timedelta(days=EXPIRES_SOON_DAYS)

# Columns: name in the certificate; validity from now on; its begin; whether its issuer is trusted; the reason.
CERTIFICATES: Final = [
    (NAME, MONTHS, -JUST, True, None),
    (NAME, SOON + JUST, -JUST, True, None),
    (NAME, SOON - JUST, -JUST, True, EXPIRES_SOON),
    (NAME, JUST, -JUST, True, EXPIRES_SOON),
    (NAME, -JUST, -MONTHS, True, "certificate_expired"),
    (NAME, MONTHS, SOON, True, "tls_certificate"),  # not valid yet
    ("other.example.com", MONTHS, -JUST, True, "tls_certificate"),
    ("*.example.com", MONTHS, -JUST, True, None),
    ("*.receiver.example.com", MONTHS, -JUST, True, "tls_certificate"),
    (NAME, MONTHS, -JUST, False, "tls_certificate"),  # an unknown issuer
    (NAME, JUST, -JUST, False, "tls_certificate"),  # an unknown issuer matters more than an early expiry
]


@pytest.mark.parametrize(("name", "lasts", "begins", "is_trusted", "reason"), CERTIFICATES)
def test_an_inspection_checks_the_certificate_and_sends_nothing(
    tmp_path: Path, name: str, lasts: timedelta, begins: timedelta, is_trusted: bool, reason: str | None
) -> None:
    context, authority = make_certificate(tmp_path, name, lasts, begins)
    listener = Listener()
    with LoopbackServer(listener, context) as server, made_client(verify=authority if is_trusted else True) as client:
        validation = client.inspect(server.url(NAME))
    assert validation == Validation(reason)
    assert validation.has_passed == (reason in {None, EXPIRES_SOON})
    assert listener.received in ([], [None])


def test_a_bundle_named_by_the_environment_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = make_certificate(tmp_path, NAME, MONTHS, -JUST)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, authority)
    with LoopbackServer(say_nothing, context) as server, made_client() as client:
        assert client.inspect(server.url(NAME)) == Validation("tls_certificate")


def test_over_plain_http_an_inspection_only_connects() -> None:
    listener = Listener()
    with LoopbackServer(listener) as server, made_client() as client:
        assert client.inspect(server.url(NAME)) == Validation()
        assert until(lambda: listener.received == [None])


# Columns: URL; reason. No name is looked up.
URLS: Final = [
    ("", "scheme_missing"),
    ("https://user:password@receiver.example.com/", "userinfo"),
    ("https://localhost/", "local_suffix"),
    ("https://0x7f000001/", "host_numeric"),
    ("http://169.254.169.254/", "address_metadata"),
    ("https://[fd00::1]/", "address_private"),
]


@pytest.mark.parametrize(("url", "reason"), URLS)
def test_a_url_that_the_policy_refuses_is_refused(url: str, reason: str) -> None:
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    with made_client(resolver=resolver) as client:
        assert client.inspect(url) == Validation(reason, is_refused=True)
    assert resolver.asked == []


# Columns: addresses of the name; reason. The policy allows 127.0.0.0/8.
ADDRESSES: Final = [
    (["10.0.0.1"], "address_private"),
    (["127.0.0.1", "10.0.0.1"], "address_private"),
    (["127.0.0.1", "::ffff:169.254.169.254"], "address_metadata"),
    (["64:ff9b::7f00:1"], "address_nat64"),
]


@pytest.mark.parametrize(("addresses", "reason"), ADDRESSES)
def test_a_name_with_an_address_that_the_policy_refuses_is_refused_without_a_connection(
    addresses: list[str], reason: str
) -> None:
    with LoopbackServer(say_nothing) as server, made_client(resolver=FakeResolver({NAME: addresses})) as client:
        assert client.inspect(server.url(NAME)) == Validation(reason, is_refused=True)
        assert server.connections == 0


def test_loopback_is_refused_unless_it_is_allowed() -> None:
    shut = TargetPolicy(allow_http=True, allowed_ports=((1, 65535),))
    with LoopbackServer(say_nothing) as server, made_client(shut) as client:
        assert client.inspect(server.url(NAME)) == Validation("address_loopback", is_refused=True)
        assert server.connections == 0


@pytest.mark.parametrize("reason", list(DnsFailure))
def test_a_name_without_an_address_names_why_and_is_not_refused(reason: DnsFailure) -> None:
    with made_client(resolver=FakeResolver({NAME: reason})) as client:
        assert client.inspect(f"https://{NAME}/") == Validation(reason)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_closed_port_is_reported(scheme: str) -> None:
    with LoopbackServer(say_nothing) as server:
        url = f"{scheme}://{NAME}:{server.port}/"
    with made_client() as client:
        assert client.inspect(url) == Validation("connect_refused")


def _hang_up(peer: Peer) -> None:
    peer.connection.recv(1)


def _reset(peer: Peer) -> None:
    peer.connection.recv(1)
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def _talk_http(peer: Peer) -> None:
    peer.answer(400)


def test_a_peer_without_tls_is_reported() -> None:
    with LoopbackServer(_talk_http) as server, made_client() as client:
        assert client.inspect(f"https://{NAME}:{server.port}/") == Validation("tls_failed")


@pytest.mark.parametrize("behave", [_hang_up, _reset])
def test_a_peer_that_disconnects_in_the_handshake_is_reported(behave: Callable[[Peer], None]) -> None:
    with LoopbackServer(behave) as server, made_client() as client:
        assert client.inspect(f"https://{NAME}:{server.port}/").reason in {"tls_failed", "connection_closed"}


def test_a_handshake_that_never_ends_is_given_up_at_the_deadline() -> None:
    with LoopbackServer(say_nothing) as server, made_client(deadline_s=DEADLINE_S) as client:
        assert client.inspect(f"https://{NAME}:{server.port}/") == Validation("deadline_exceeded")


def test_a_slow_name_server_is_given_up_at_the_deadline() -> None:
    hung = threading.Event()

    def resolve(*_: object, **__: object) -> Sequence[tuple[object, ...]]:
        hung.wait(60)
        return []

    with made_client(resolver=DnsResolver(getaddrinfo=resolve), deadline_s=DEADLINE_S) as client:
        assert client.inspect(f"https://{NAME}/") == Validation("dns_timeout")
    hung.set()


def test_a_name_that_resolves_to_a_refused_address_after_its_approval_is_refused_by_a_post() -> None:
    resolver = RebindingResolver(["127.0.0.1"], ["10.0.0.1"])
    listener = Listener()
    with LoopbackServer(listener) as server, made_client(resolver=resolver) as client:
        assert client.inspect(server.url(NAME)).has_passed
        outcome = post(client, server.url(NAME))
        assert client.inspect(server.url(NAME)) == Validation("address_private", is_refused=True)
        assert until(lambda: listener.received == [None])
        assert server.connections == 1
    assert (outcome.error, outcome.refused) == ("address_private", True)


def test_an_inspection_does_not_affect_kept_connections() -> None:
    with LoopbackServer(always()) as server, made_client() as client:
        assert post(client, server.url(NAME)).status == 200
        assert client.inspect(server.url(NAME)).has_passed
        assert post(client, server.url(NAME)).status == 200
        assert until(lambda: server.connections == 2)
