"""Requests to the issuer over TLS: verified, and ended at the deadline."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Final

import pytest

from runtime.dns_resolver import DnsError, DnsFailure
from runtime.openid import bounded_requests
from runtime.openid.bounded_requests import DEADLINE_S, fetch_json
from runtime.openid.errors import IssuerUnavailable
from runtime.tls_context import client_context
from tests.support.servers.authorities import CertificateAuthority

AGENCY: Final = CertificateAuthority("Agency")
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def tls_server(name: str, answer: bytes, *, drips: bool = False, waits_s: float = 0.0) -> Iterator[str]:
    """Answer one request over TLS with the certificate of `name`, then a byte now and then if it `drips`; yield the URL.

    It waits for `waits_s` seconds before the handshake, and again before the answer.
    """
    context = AGENCY.server(name)

    def serve() -> None:
        with suppress(OSError):
            peer, _ = listener.accept()
            time.sleep(waits_s)
            with context.wrap_socket(peer, server_side=True) as secured:
                secured.recv(65_536)
                time.sleep(waits_s)
                secured.sendall(answer)
                while drips:
                    secured.sendall(b"x")
                    time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join(10)


@contextmanager
def plain_server() -> Iterator[int]:
    """Answer one request without TLS, on every address of loopback; yield the port."""

    def serve() -> None:
        with suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def resolving_to(monkeypatch: pytest.MonkeyPatch, resolve: Callable[[float], tuple[str, ...]]) -> None:
    """Let every name lead to what `resolve` returns for its time limit."""
    resolver = SimpleNamespace(resolve=lambda _host, _port, timeout_s: tuple(map(ip_address, resolve(timeout_s))))
    monkeypatch.setattr(bounded_requests, "_RESOLVER", resolver)


def test_an_address_that_does_not_accept_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    tried: list[str] = []

    def connecting(address: tuple[str, int], timeout_s: float) -> socket.socket:
        tried.append(address[0])
        if address[0] == "192.0.2.1":
            time.sleep(timeout_s)
            raise TimeoutError
        return connect(address, timeout_s)

    monkeypatch.setattr(socket, "create_connection", connecting)
    resolving_to(monkeypatch, lambda _timeout_s: ("192.0.2.1", "127.0.0.1"))
    with plain_server() as port:
        assert fetch_json(f"http://issuer.example:{port}/", client_context("")) == {}
    assert tried == ["192.0.2.1", "127.0.0.1"]


def test_a_lookup_or_a_connection_that_takes_the_whole_deadline_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(timeout_s: float) -> tuple[str, ...]:
        assert 0 < timeout_s <= DEADLINE_S
        raise DnsError(DnsFailure.TIMEOUT)

    def refused() -> str:
        with pytest.raises(IssuerUnavailable) as found:
            fetch_json("http://issuer.example/", client_context(""))
        return found.value.reason

    resolving_to(monkeypatch, hanging)
    assert refused() == "late"

    def unreachable(_address: tuple[str, int], _timeout_s: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", unreachable)
    resolving_to(monkeypatch, lambda _timeout_s: ("192.0.2.1",))
    assert refused() == "late"


def test_the_authority_of_the_operator_is_trusted() -> None:
    with tls_server("127.0.0.1", ANSWER) as url:
        assert fetch_json(url, client_context(AGENCY.pem)) == {}


@pytest.mark.parametrize(("name", "authorities"), [("127.0.0.1", ""), ("another.example", AGENCY.pem)])
def test_an_unknown_authority_or_another_name_is_refused(name: str, authorities: str) -> None:
    with tls_server(name, ANSWER) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(authorities))
    assert refused.value.reason == ssl.SSLCertVerificationError.__name__


def test_a_server_that_drips_over_tls_is_left() -> None:
    began = time.monotonic()
    with tls_server("127.0.0.1", b"HTTP/1.1 200 OK\r\n\r\n", drips=True) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(AGENCY.pem))
    assert refused.value.reason == "late"
    assert time.monotonic() - began < DEADLINE_S + 2


def test_the_deadline_includes_the_handshake() -> None:
    with tls_server("127.0.0.1", ANSWER, waits_s=DEADLINE_S * 0.7) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(AGENCY.pem))
    assert refused.value.reason == "late"
