"""Requests to the issuer over TLS: verified, and ended at the deadline."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

from runtime.openid import bounded_requests
from runtime.openid.bounded_requests import DEADLINE_S, fetch_json
from runtime.openid.errors import IssuerUnavailable
from runtime.tls_context import client_context
from tests.support.servers.authorities import CertificateAuthority

AGENCY: Final = CertificateAuthority("Agency")
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def tls_server(name: str, answer: bytes, *, drips: bool = False, waits_s: float = 0.0) -> Iterator[str]:
    """Answer one request over TLS with the certificate of `name`; yield the URL.

    The server waits `waits_s` seconds before the handshake and again before its response. If it `drips`, it then sends one
    byte from time to time.
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
def plain_server(answer: bytes = ANSWER) -> Iterator[int]:
    """Answer one request without TLS; yield the port."""

    def serve() -> None:
        with suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make every name resolve to these addresses."""

    def resolve(_host: str, port: int, *_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def refusal(url: str = "http://issuer.example/") -> str:
    """Return why a request fails."""
    with pytest.raises(IssuerUnavailable) as found:
        fetch_json(url, client_context(""))
    return found.value.reason


def test_a_connection_timeout_leaves_time_for_the_next_address(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect
    tried: list[str] = []

    def connecting(connected: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address[0])
        if address[0] == "192.0.2.1":
            time.sleep(connected.gettimeout() or DEADLINE_S)
            raise TimeoutError
        connect(connected, address)

    monkeypatch.setattr(socket.socket, "connect", connecting)
    resolving_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    with plain_server() as port:
        assert fetch_json(f"http://issuer.example:{port}/", client_context("")) == {}
    assert tried == ["192.0.2.1", "127.0.0.1"]


def test_a_hanging_lookup_or_connection_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()

    def hang(*_: object) -> None:
        ends.wait(10)

    monkeypatch.setattr(bounded_requests, "DEADLINE_S", 0.2)
    with monkeypatch.context() as hanging:
        hanging.setattr(socket, "getaddrinfo", hang)
        assert refusal() == "late"
    resolving_to(monkeypatch, "192.0.2.1")
    monkeypatch.setattr(socket.socket, "connect", hang)
    assert refusal() == "late"
    ends.set()


def test_an_unknown_host_name_is_reported_as_dns_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert refusal() == "dns_failed"


def test_a_body_is_read_up_to_the_limit() -> None:
    longest = b"HTTP/1.1 200 OK\r\n\r\n{" + b" " * (bounded_requests.MAX_BODY_BYTES - 2)
    with plain_server(longest + b"}") as port:
        assert fetch_json(f"http://127.0.0.1:{port}/", client_context("")) == {}
    with plain_server(longest + b" }") as port:
        assert refusal(f"http://127.0.0.1:{port}/") == "too_large"


def test_the_configured_certificate_authority_is_trusted() -> None:
    with tls_server("127.0.0.1", ANSWER) as url:
        assert fetch_json(url, client_context(AGENCY.pem)) == {}


@pytest.mark.parametrize(("name", "authorities"), [("127.0.0.1", ""), ("another.example", AGENCY.pem)])
def test_an_untrusted_authority_or_wrong_host_name_is_refused(name: str, authorities: str) -> None:
    with tls_server(name, ANSWER) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(authorities))
    assert refused.value.reason == ssl.SSLCertVerificationError.__name__


def test_a_slow_response_over_tls_ends_at_the_deadline() -> None:
    began = time.monotonic()
    with tls_server("127.0.0.1", b"HTTP/1.1 200 OK\r\n\r\n", drips=True) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(AGENCY.pem))
    assert refused.value.reason == "late"
    assert time.monotonic() - began < DEADLINE_S + 2


def test_the_deadline_includes_the_handshake() -> None:
    with tls_server("127.0.0.1", ANSWER, waits_s=DEADLINE_S * 0.7) as url, pytest.raises(IssuerUnavailable) as refused:
        fetch_json(url, client_context(AGENCY.pem))
    assert refused.value.reason == "late"
