"""Posts over TLS: the certificate has to name the host of the URL, come from a trusted issuer, and be valid now."""

import socket
import ssl
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Final, cast

import pytest

from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.worker.receivers import NAME, always, made_client, make_certificate, post

#: The largest TLS record.
RECORD_BYTES: Final = 16 * 1024


def test_tls_names_the_host_of_the_url_whatever_address_is_dialed(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        outcomes = [post(client, server.url(NAME)) for _ in range(3)]
        assert server.connections == 1
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [(200, None)] * 3
    assert asked == [NAME]
    timings = [outcome.timings for outcome in outcomes]
    assert timings[0].tls_ms is not None
    assert timings[1].tls_ms is None


def test_the_certificate_has_to_name_an_address_in_the_url(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path, "127.0.0.1")
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        assert post(client, server.url("127.0.0.1")).status == 200
        assert post(client, server.url(NAME)).error == "tls_certificate"
    assert asked == [None, NAME]  # an IP address is not sent as a server name


@pytest.mark.parametrize("alternative", ["", "other.example.com"])
def test_the_common_name_of_a_certificate_is_ignored(tmp_path: Path, alternative: str) -> None:
    context, authority = make_certificate(tmp_path, alternative=alternative)
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        assert post(client, server.url(NAME)).error == "tls_certificate"


# The size of the response. Another response follows in the same TLS record, or in a record of its own if there is no room.
@pytest.mark.parametrize("answer_bytes", [1000, 4096, 8192, RECORD_BYTES - 1, RECORD_BYTES])
def test_data_after_a_response_is_not_taken_for_the_next_one_even_if_tls_buffers_it(
    tmp_path: Path, answer_bytes: int
) -> None:
    unasked = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %06d\r\n\r\n"
    answer = head % (answer_bytes - len(head % 0)) + bytes(answer_bytes - len(head % 0))
    sent = answer + unasked * ((RECORD_BYTES - answer_bytes) // len(unasked) or 1)

    def behave(peer: Peer) -> None:
        while peer.read():
            # In one packet, because a late arrival would prove nothing.
            peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            peer.send(sent)
            peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    context, authority = make_certificate(tmp_path)
    with LoopbackServer(behave, context) as server, made_client(verify=authority) as client:
        assert [post(client, server.url(NAME)).status for _ in range(3)] == [200] * 3
        assert server.connections == 3


def test_only_http_1_1_is_offered(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen: list[str | None] = []

    def behave(peer: Peer) -> None:
        chosen.append(cast(ssl.SSLSocket, peer.connection).selected_alpn_protocol())
        always()(peer)

    with LoopbackServer(behave, context) as server, made_client(verify=authority) as client:
        assert post(client, server.url(NAME)).status == 200
    assert chosen == ["http/1.1"]


def test_tls_versions_below_1_2_are_refused(tmp_path: Path) -> None:
    context, authority = make_certificate(tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        assert post(client, server.url(NAME)).status == 200
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ssl warns that the version is deprecated
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        assert post(client, server.url(NAME)).error == "tls_failed"


# Columns: name in the certificate; validity from now on; whether its issuer is trusted.
CERTIFICATES: Final = [
    ("other.example.com", timedelta(days=1), True),  # another host's
    (NAME, timedelta(days=-1), True),  # expired
    (NAME, timedelta(days=1), False),  # an unknown issuer
]


@pytest.mark.parametrize(("name", "lasts", "is_trusted"), CERTIFICATES)
def test_a_wrong_certificate_is_reported_and_nothing_is_sent(
    tmp_path: Path, name: str, lasts: timedelta, is_trusted: bool
) -> None:
    context, authority = make_certificate(tmp_path, name, lasts)
    requests: list[ReceivedRequest | None] = []
    with (
        LoopbackServer(lambda peer: requests.append(peer.read()), context) as server,
        made_client(verify=authority if is_trusted else True) as client,
    ):
        outcome = post(client, server.url(NAME))
    assert (outcome.error, outcome.status) == ("tls_certificate", None)
    assert requests in ([], [None])


def test_a_bundle_named_by_the_environment_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = make_certificate(tmp_path)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, authority)
    with LoopbackServer(always(), context) as server, made_client() as client:
        assert post(client, server.url(NAME)).error == "tls_certificate"


def test_a_peer_without_tls_is_reported() -> None:
    with LoopbackServer(lambda peer: peer.answer(400)) as server, made_client() as client:
        outcome = post(client, f"https://{NAME}:{server.port}/")
    assert outcome.error == "tls_failed"


def test_the_keys_of_a_session_are_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = make_certificate(tmp_path)
    key_log = tmp_path / "keys.log"
    monkeypatch.setenv("SSLKEYLOGFILE", str(key_log))
    with LoopbackServer(always(), context) as server, made_client(verify=authority) as client:
        assert post(client, server.url(NAME)).status == 200
    assert not key_log.exists()
