"""Endless responses: a post reads a bounded number of bytes, in whatever part of the response they arrive."""

import gzip
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fakes import LoopbackServer, Peer
from tests.support.worker.receivers import always, made_client, once, post
from worker.http.client import HttpClient
from worker.http.response_parser import CHUNKED_FACTOR, MAX_HEAD_BYTES, MAX_RESPONSE_BYTES

#: An endless receiver stops after so many bytes if the client never closes the connection.
ENOUGH_BYTES: Final = 100_000_000
#: Sent but not read: as many bytes as the kernel buffers on both sides of loopback.
UNREAD_BYTES: Final = 20_000_000
#: More than is needed to read, join and parse the allowed bytes, and far less than is sent.
MEMORY_BYTES: Final = 4_000_000


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client(deadline_s=20) as made:
        yield made


class Endless:
    """Sends `head`, then `piece` again and again until the client closes the connection; counts the bytes."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self._head = head
        self._piece = piece * max(1, 4096 // len(piece))
        self.sent = 0

    def __call__(self, peer: Peer) -> None:
        peer.read()
        for data in chain([self._head], repeat(self._piece)):
            if self.sent > ENOUGH_BYTES:
                return
            peer.send(data)
            self.sent += len(data)


@pytest.mark.parametrize("status", [200, 302, 503])
@pytest.mark.parametrize("framing", [b"", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1000000000\r\n"])
def test_an_endless_body_is_read_to_64_kib(client: HttpClient, status: int, framing: bytes) -> None:
    head = b"HTTP/1.1 %d Told\r\nLocation: /next\r\n%s\r\n" % (status, framing)
    endless = Endless(head, b"1000\r\n" + b"x" * 4096 + b"\r\n" if b"chunked" in framing else b"x")
    with LoopbackServer(endless) as server:
        outcome = post(client, server.url())
    assert (outcome.status, len(outcome.body)) == (status, MAX_RESPONSE_BYTES)
    assert endless.sent < UNREAD_BYTES


CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# What is sent first, what is sent again and again, the status and the error.
ENDLESS: Final = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", None, "bad_answer"),
    "interim answers with headers": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", None, "bad_answer"),
    "headers of an interim answer": (b"HTTP/1.1 102 Processing\r\n", b"A: b\r\n", None, "bad_answer"),
    "one status line": (b"HTTP/1.1 200 ", b"x", None, "bad_answer"),
    "one header": (b"HTTP/1.1 200 OK\r\nA: ", b"x", None, "bad_answer"),
    "one folded header": (b"HTTP/1.1 200 OK\r\nA: b\r\n", b" x\r\n", None, "bad_answer"),
    "long headers": (b"HTTP/1.1 200 OK\r\n", b"A: " + b"b" * 60_000 + b"\r\n", None, "bad_answer"),
    "the size of a chunk": (CHUNKED, b"0", 200, None),
    "extensions of a chunk": (CHUNKED, b"1;a=b", 200, None),
    "chunks that are all extension": (CHUNKED, b"1;" + b"x" * 60_000 + b"\r\nx\r\n", 200, None),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"A: b\r\n", 200, None),
    "long trailers": (CHUNKED + b"0\r\n", b"A: " + b"b" * 60_000 + b"\r\n", 200, None),
    "a chunk of size -1": (CHUNKED + b"-1\r\n", b"x", 200, None),  # read(-1) would read to the end
    "a chunk of size -2": (CHUNKED + b"-2\r\n", b"x", 200, None),
    "a chunk without end": (CHUNKED + b"f" * 1000 + b"\r\n", b"x", 200, None),
    "a body of a length nobody reaches": (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 19 + b"\r\n\r\n", b"x", 200, None),
    "a body of a length nobody can read": (
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"x",
        None,
        "bad_answer",
    ),
}


@pytest.mark.parametrize(("head", "piece", "status", "error"), ENDLESS.values(), ids=list(ENDLESS))
def test_endless_responses_are_read_up_to_a_limit_in_bounded_memory(
    client: HttpClient, head: bytes, piece: bytes, status: int | None, error: str | None
) -> None:
    endless = Endless(head, piece)
    with LoopbackServer(endless) as server:
        tracemalloc.start()
        try:
            outcome = post(client, server.url())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (outcome.status, outcome.error) == (status, error)
    assert len(outcome.body) <= MAX_RESPONSE_BYTES
    assert endless.sent < UNREAD_BYTES
    assert peak_bytes < MEMORY_BYTES


def _head_of(size: int) -> bytes:
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


def test_response_headers_may_have_64_kib_and_no_byte_more(client: HttpClient) -> None:
    with LoopbackServer(once(_head_of(MAX_HEAD_BYTES) + b"{}")) as server:
        assert post(client, server.url()).body == b"{}"
    with LoopbackServer(once(_head_of(MAX_HEAD_BYTES + 1) + b"{}")) as server:
        assert post(client, server.url()).error == "bad_answer"


def test_a_body_in_many_small_chunks_is_read(client: HttpClient) -> None:
    body = b'{"id": "T-1", "url": "https://tickets.example.com/T-1"}' * 100
    chunks = b"".join(b"a;n=1\r\n%b\r\n" % body[at : at + 10] for at in range(0, len(body), 10))
    assert len(chunks) < CHUNKED_FACTOR * MAX_RESPONSE_BYTES
    with LoopbackServer(once(CHUNKED + chunks + b"0\r\nTrailer: 1\r\n\r\n")) as server:
        outcome = post(client, server.url())
    assert outcome.body == body


def test_interim_responses_are_skipped_and_the_connection_is_kept(client: HttpClient) -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
            peer.answer(201, b'{"id": "T-1"}')

    with LoopbackServer(behave) as server:
        outcomes = [post(client, server.url()) for _ in range(2)]
        assert server.connections == 1
    assert [(outcome.status, outcome.body) for outcome in outcomes] == [(201, b'{"id": "T-1"}')] * 2


# Content-Encoding and the body; nothing is decompressed.
BOMBS: Final = {
    "gzip": ("gzip", gzip.compress(bytes(50_000_000))),
    "gzip in gzip": ("gzip, gzip", gzip.compress(gzip.compress(bytes(50_000_000)))),
    "nothing that it says": ("br, zstd, deflate", b"{}"),
}


@pytest.mark.parametrize(("encoding", "bomb"), BOMBS.values(), ids=list(BOMBS))
@pytest.mark.parametrize("status", [200, 302])
def test_a_compressed_body_is_not_inflated(client: HttpClient, encoding: str, bomb: bytes, status: int) -> None:
    assert len(bomb) < MAX_RESPONSE_BYTES
    with LoopbackServer(always(status, bomb, Content_Encoding=encoding, Location="/next")) as server:
        assert post(client, server.url()).body == bomb


def test_a_response_with_a_hundred_encodings_loses_its_body_and_keeps_its_status(client: HttpClient) -> None:
    with LoopbackServer(always(200, b"{}", Content_Encoding=", ".join(["gzip"] * 100))) as server:
        assert post(client, server.url()).status == 200


FRAGMENTS: Final = st.sampled_from([
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 204 \r\n", b"HTTP/2 200\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: -3\r\n", b"Content-Length: 3, 3\r\n", b"Content-Length: 1_0\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Retry-After: \xff\r\n", b": \r\n", b" x\r\n", b"\r\n", b"\n", b"\r",
    b"0\r\n", b"-1\r\n", b"-5\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"g\r\n",
])  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(FRAGMENTS | st.binary(max_size=8), max_size=12).map(b"".join))
def test_any_bytes_of_a_response_result_in_a_status_or_an_error(answer: bytes) -> None:
    with LoopbackServer(once(answer)) as server, made_client() as client:
        outcome = post(client, server.url())
    assert (outcome.status is None) == (outcome.error in {"bad_answer", "connection_closed"})
