"""The guarded adapter on a plain session of requests: it keeps its limits and refusals, and raises errors of requests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests

from schemas.url_policy.policy import RefusalReason, TargetPolicy
from tests.support.fakes import FakeResolver, LoopbackServer, Peer, ReceivedRequest
from tests.support.worker.receivers import (
    DEADLINE_S,
    NAME,
    OPEN,
    SLACK_S,
    always,
    drip_headers,
    make_certificate,
    silent_port,
)
from worker.http.adapter import GuardedAdapter
from worker.http.errors import TargetRefused, TransportError
from worker.http.response_parser import MAX_RESPONSE_BYTES


@contextmanager
def session(
    policy: TargetPolicy = OPEN, addresses: tuple[str, ...] = ("127.0.0.1",), deadline_s: float = 5.0
) -> Iterator[requests.Session]:
    """A session of requests that differs from a plain one only in its adapter."""
    adapter = GuardedAdapter(policy, FakeResolver({NAME: addresses}), deadline_s, connect_timeout_s=5.0)
    with requests.Session() as made:
        made.mount("https://", adapter)
        made.mount("http://", adapter)
        yield made


def collecting(seen: list[ReceivedRequest | None], **headers: str) -> Any:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            seen.append(request)
            peer.answer(200, b'{"id": "T-1"}', **headers)

    return behave


def test_the_adapter_returns_a_response_of_requests() -> None:
    seen: list[ReceivedRequest | None] = []
    server = LoopbackServer(collecting(seen, Content_Type="application/json; charset=utf-8", X_Seen="one"))
    with server, session() as client:
        response = client.post(server.url(NAME), json={"a": 1}, headers={"X-Own": "mine"})
        assert isinstance(response, requests.Response)
        assert (response.status_code, response.reason, response.ok) == (200, "OK", True)
        assert (response.json(), response.content) == ({"id": "T-1"}, b'{"id": "T-1"}')
        assert (response.headers["x-seen"], response.encoding) == ("one", "utf-8")
        assert (response.url, response.request.method) == (server.url(NAME), "POST")
        assert timedelta(0) < response.elapsed < timedelta(seconds=SLACK_S)
        assert response.history == []
        response.raise_for_status()
        client.post(server.url(NAME), data=b"again")
        assert server.connections == 1  # the connection is kept alive
    [first, second] = seen
    assert first is not None
    assert second is not None
    assert (first.body, first.headers["x-own"], first.headers["accept-encoding"]) == (b'{"a": 1}', "mine", "identity")
    assert second.body == b"again"


@pytest.mark.parametrize(
    ("method", "data", "body"),
    [
        ("GET", None, b""),
        ("DELETE", None, b""),
        ("PUT", "é", "é".encode()),
        ("PATCH", {"a": "b"}, b"a=b"),
        ("POST", BytesIO(b"a file"), b"a file"),
        ("POST", (piece for piece in (b"in ", b"pieces")), b"in pieces"),
    ],
    ids=["none", "none to delete", "text", "form", "file", "iterator"],
)
def test_every_kind_of_body_is_sent_with_its_length(method: str, data: Any, body: bytes) -> None:
    seen: list[ReceivedRequest | None] = []
    with LoopbackServer(collecting(seen)) as server, session() as client:
        assert client.request(method, server.url(NAME), data=data).status_code == 200
    [request] = seen
    assert request is not None
    assert (request.line.split()[0], request.body) == (method, body)
    assert "transfer-encoding" not in request.headers


def test_a_response_to_head_has_no_body() -> None:
    def behave(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        peer.read()

    with LoopbackServer(behave) as server, session() as client:
        response = client.head(server.url(NAME))
    assert (response.status_code, response.content, response.headers["content-length"]) == (200, b"", "100")


def test_a_body_is_read_to_its_limit_and_never_decompressed() -> None:
    long = always(200, b"x" * (MAX_RESPONSE_BYTES * 3), Content_Encoding="gzip")
    with LoopbackServer(long) as server, session() as client:
        response = client.get(server.url(NAME), stream=True)
        assert response.raw.read(10) == b"x" * 10
        assert len(client.get(server.url(NAME)).content) == MAX_RESPONSE_BYTES


@pytest.mark.parametrize(("address", "reason"), [("10.0.0.1", "address_private"), ("169.254.169.254", "address_metadata")])
def test_a_refused_address_is_an_error_of_requests_that_carries_the_verdict(address: str, reason: str) -> None:
    with session(TargetPolicy(), (address,)) as client, pytest.raises(requests.RequestException) as caught:
        client.get(f"https://{NAME}/in")
    assert isinstance(caught.value, TargetRefused)
    assert (caught.value.error, caught.value.request and caught.value.request.url) == (reason, f"https://{NAME}/in")
    assert address not in str(caught.value)


def test_a_refused_url_raises_the_refusal_with_its_reason() -> None:
    with session(TargetPolicy()) as client, pytest.raises(TargetRefused) as caught:
        client.get(f"https://{NAME}:8000/")
    assert caught.value.error is RefusalReason.PORT_NOT_ALLOWED


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_though_the_session_allows_it(status: int) -> None:
    elsewhere: list[ReceivedRequest | None] = []
    with LoopbackServer(collecting(elsewhere)) as other, session() as client:
        with LoopbackServer(always(status, Location=other.url("127.0.0.1"))) as server:
            response = client.get(server.url(NAME), allow_redirects=True)
        assert (response.status_code, response.history, response.is_redirect, response.next) == (status, [], False, None)
    assert elsewhere == []


def test_proxies_of_the_environment_and_the_session_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    proxied: list[ReceivedRequest | None] = []
    with LoopbackServer(collecting(proxied)) as proxy, LoopbackServer(always()) as server, session() as client:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url("127.0.0.1"))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
        assert client.get(server.url(NAME), proxies={"http": proxy.url("127.0.0.1")}).status_code == 200
    assert proxied == []


# Columns: the timeout of the request; the deadline of the adapter.
@pytest.mark.parametrize(
    ("timeout", "deadline_s"),
    [(None, DEADLINE_S), (DEADLINE_S, 30), ((5, DEADLINE_S), 30), ((None, DEADLINE_S), 30), ((0.1, None), DEADLINE_S)],
)
def test_a_deadline_ends_the_whole_exchange(timeout: Any, deadline_s: float) -> None:
    with LoopbackServer(drip_headers) as server, session(deadline_s=deadline_s) as client:
        began = time.monotonic()
        with pytest.raises(requests.ReadTimeout) as caught:
            client.get(server.url(NAME), timeout=timeout)
        assert DEADLINE_S - 0.1 < time.monotonic() - began < DEADLINE_S + SLACK_S
    assert isinstance(caught.value, TransportError)
    assert caught.value.error == "deadline_exceeded"


def test_a_connect_timeout_is_a_connect_timeout_of_requests() -> None:
    with silent_port("127.0.0.1") as port, session() as client, pytest.raises(requests.ConnectTimeout) as caught:
        client.get(f"http://{NAME}:{port}/", timeout=(0.2, 30))
    assert isinstance(caught.value, TransportError)
    assert caught.value.error == "connect_timeout"


@pytest.mark.parametrize(
    ("behave", "error"),
    [(lambda peer: peer.send(b"SSH-2.0-x\r\n"), "bad_answer"), (lambda peer: peer.read(), "connection_closed")],
    ids=["no http", "hangs up"],
)
def test_no_response_is_a_connection_error(behave: Any, error: str) -> None:
    with LoopbackServer(behave) as server, session() as client, pytest.raises(requests.ConnectionError) as caught:
        client.get(server.url(NAME))
    assert isinstance(caught.value, TransportError)
    assert caught.value.error == error


def test_a_certificate_that_is_not_valid_is_an_ssl_error(tmp_path: Path) -> None:
    context, _ = make_certificate(tmp_path)
    server = LoopbackServer(always(), context)
    with server, session() as client, pytest.raises(requests.exceptions.SSLError) as caught:
        client.get(server.url(NAME))
    assert isinstance(caught.value, TransportError)
    assert caught.value.error == "tls_certificate"


@pytest.mark.parametrize("options", [{"verify": False}, {"cert": "/a/certificate"}])
def test_certificates_are_always_verified(options: dict[str, Any]) -> None:
    with session() as client, pytest.raises(ValueError, match="always verifies"):
        client.get(f"http://{NAME}/", **options)


def test_a_header_with_a_line_end_is_refused() -> None:
    request = requests.Request("GET", f"http://{NAME}/").prepare()
    request.headers["X-Split"] = "a\r\nX-Other: b"
    with session() as client, pytest.raises(requests.exceptions.InvalidHeader):
        client.send(request)
