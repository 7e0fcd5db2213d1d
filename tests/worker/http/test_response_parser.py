"""Parsing a response, byte by byte or at once: what is valid, where it ends, and whether the connection can be reused."""

import tracemalloc
from io import BytesIO
from typing import Final, NamedTuple

import pytest

from tests.support.fakes import LoopbackServer, Peer
from tests.support.worker.receivers import made_client, post, until
from worker.http.response_parser import MAX_HEAD_BYTES, MAX_RESPONSE_BYTES, InvalidResponse, ParsedResponse, ResponseParser

OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TWO: Final = b"Content-Length: 2\r\n\r\n{}"


class Read(NamedTuple):
    """The parts of a response that a delivery uses."""

    status: int
    retry_after: str | None
    body: bytes
    ends_connection: bool


def read(data: bytes, piece_bytes: int) -> Read | type[Exception]:
    """Parse a response that arrives in pieces, after which the receiver closes the connection."""
    stream, reader = BytesIO(data), ResponseParser()

    def receive(most: int) -> bytes:
        return stream.read(min(most, piece_bytes))

    try:
        reader.read_head(receive)
    except (InvalidResponse, OSError) as failed:
        return type(failed)
    return what_matters(reader.read_body(receive))


def what_matters(response: ParsedResponse) -> Read:
    return Read(response.status, response.retry_after, response.body, response.ends_connection)


def kept(body: bytes = b"{}", status: int = 200, retry_after: str | None = None) -> Read:
    return Read(status, retry_after, body, ends_connection=False)


def last(body: bytes = b"{}", status: int = 200) -> Read:
    return Read(status, None, body, ends_connection=True)


ANSWERS: Final = {
    "a length": (OK + TWO, kept()),
    "spaces around a length": (OK + b"Content-Length:\t 2 \r\n\r\n{}", kept()),
    "no length": (OK + b"\r\n{}", last()),  # the body ends with the connection
    "less than its length": (OK + b"Content-Length: 3\r\n\r\n{}", last()),
    "a length and close": (OK + b"Connection: close\r\n" + TWO, last()),
    "a length and close, folded": (OK + b"Connection:\r\n close\r\n" + TWO, last()),
    "an offer to upgrade": (OK + b"Upgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\n" + TWO, kept()),
    "no reason": (b"HTTP/1.1 200\r\n" + TWO, kept()),
    "a reason that is no ASCII": (b"HTTP/1.1 200 Tr\xe9s bien\r\n" + TWO, kept()),
    "a status nobody knows": (b"HTTP/1.1 999 What\r\n" + TWO, kept(status=999)),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + TWO, last()),
    "HTTP/1.0 that keeps": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + TWO, kept()),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", kept(b"", 204)),
    "no content of some length": (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", kept(b"", 204)),
    "no content in chunks": (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", kept(b"", 204)),
    "not modified, of some length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", kept(b"", 304)),
    # contradictory or unreadable lengths
    "the same length twice": (OK + b"Content-Length: 2\r\n" + TWO, InvalidResponse),
    "two lengths": (OK + b"Content-Length: 3\r\n" + TWO, InvalidResponse),
    "two lengths in one": (OK + b"Content-Length: 2, 3\r\n\r\n{}", InvalidResponse),
    "a length with a sign": (OK + b"Content-Length: +2\r\n\r\n{}", InvalidResponse),
    "a length below nothing": (OK + b"Content-Length: -2\r\n\r\n{}", InvalidResponse),
    "an empty length": (OK + b"Content-Length:\r\n\r\n{}", InvalidResponse),
    "a length that goes on": (OK + b"Content-Length: 2\r\n 5\r\n\r\n{}", InvalidResponse),
    # chunks override a length, in any order
    "a length, then chunks": (OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", kept()),
    "chunks, then a length": (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n", kept()),
    "chunks, a length as trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n", kept()),
    "a late trailer of time": (CHUNKED + b"2\r\n{}\r\n0\r\nRetry-After: 9\r\n\r\n", kept()),
    # a body of another encoding ends with the connection
    "an encoding beside a length": (OK + b"Transfer-Encoding: identity\r\n" + TWO, last()),
    "an encoding around chunks": (OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n{}", last()),
    "an encoding with a zero byte": (OK + b"Transfer-Encoding: chunked\0\r\n\r\n{}", last()),
    # chunks
    "chunks": (CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", kept()),
    "chunks by HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + CHUNKED[len(OK) :] + b"2\r\n{}\r\n0\r\n\r\n", last()),
    "extensions": (CHUNKED + b'2;a="b;c";d\r\n{}\r\n0;e\r\n\r\n', kept()),
    "spaces behind a size": (CHUNKED + b"2  \r\n{}\r\n0\r\n\r\n", kept()),
    "a size that is no number": (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", last(b"")),
    "a size with a prefix": (CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", last(b"")),
    "a size below nothing": (CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", last(b"")),
    "a size beyond 64 bits": (CHUNKED + b"f" * 17 + b"\r\n{}", last(b"")),
    "no size": (CHUNKED + b"\r\n{}\r\n0\r\n\r\n", last(b"")),
    "a chunk that is longer than its size": (CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n", last()),
    "too many trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 101 + b"\r\n", last()),
    # headers
    "a folded header": (OK + b"A: b\r\n c\r\n\td\r\n" + TWO, kept()),
    "a header without a value": (OK + b"A:\r\n" + TWO, kept()),
    "a header that is no ASCII": (OK + b"A: \xff\xc3\xa9\r\n" + TWO, kept()),
    "a zero byte in a header": (OK + b"A: b\0c\r\n" + TWO, kept()),  # the headers that matter contain no NUL
    "a hundred headers": (OK + b"A: b\r\n" * 99 + TWO, kept()),
    "a hundred and one": (OK + b"A: b\r\n" * 100 + TWO, InvalidResponse),
    "a line that is no header": (OK + b"nonsense\r\n" + TWO, InvalidResponse),
    "a header without a name": (OK + b": b\r\n" + TWO, InvalidResponse),
    "a space in a name": (OK + b"A B: c\r\n" + TWO, InvalidResponse),
    "a space behind a name": (OK + b"A : c\r\n" + TWO, InvalidResponse),
    "a bracket in a name": (OK + b"A(b): c\r\n" + TWO, InvalidResponse),
    "a name that is no ASCII": (OK + b"\xc3\xa9: b\r\n" + TWO, InvalidResponse),
    "a header that begins with a space": (OK + b" A: b\r\n" + TWO, kept()),
    # line endings
    "line feeds alone": (b"HTTP/1.1 200 OK\nRetry-After: 7\nContent-Length: 2\n\n{}", kept(retry_after="7")),
    "carriage returns alone": (b"HTTP/1.1 200 OK\rContent-Length: 2\r\r{}", InvalidResponse),
    "a carriage return in a header": (OK + b"A: b\rc\r\n" + TWO, InvalidResponse),
    # Retry-After
    "a time": (OK + b"retry-AFTER: 7\r\n" + TWO, kept(retry_after="7")),
    "two times": (OK + b"Retry-After: 7\r\nRetry-After: 9\r\n" + TWO, kept(retry_after="7, 9")),
    "a time that is no ASCII": (OK + b"Retry-After: \xff\r\n" + TWO, kept(retry_after="\xff")),
    "a time of an interim answer": (b"HTTP/1.1 103 Early\r\nRetry-After: 7\r\n\r\n" + OK + TWO, kept()),
    # interim responses
    "100 and the answer": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + TWO, kept()),
    "100 that closes": (b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + OK + TWO, kept()),
    "100 by HTTP/1.0": (b"HTTP/1.0 100 Continue\r\n\r\n" + OK + TWO, kept()),
    "103 of some length": (b"HTTP/1.1 103 Early\r\nContent-Length: 5\r\n\r\n" + OK + TWO, kept()),
    "102 in chunks": (b"HTTP/1.1 102 Wait\r\nTransfer-Encoding: chunked\r\n\r\n" + OK + TWO, kept()),
    "100 and no more": (b"HTTP/1.1 100 Continue\r\n\r\n", ConnectionResetError),
    "103 without end": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2000, InvalidResponse),
    "100 and nonsense": (b"HTTP/1.1 100 Continue\r\n\r\nnonsense", InvalidResponse),
    "101": (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", last(b"", 101)),
    "101 to nothing": (b"HTTP/1.1 101 Switching\r\n\r\n", last(b"", 101)),
    # not HTTP/1
    "nothing": (b"", ConnectionResetError),
    "the beginning of an answer": (OK + b"Content-Length: 2\r\n", ConnectionResetError),
    "HTTP/0.9": (b"<html>hello</html>", InvalidResponse),
    "HTTP/0.9 by name": (b"HTTP/0.9 200 OK\r\n" + TWO, InvalidResponse),
    "HTTP/1.2": (b"HTTP/1.2 200 OK\r\n" + TWO, InvalidResponse),
    "HTTP/2 in words": (b"HTTP/2 200 OK\r\n" + TWO, InvalidResponse),
    "HTTP/2.0 in words": (b"HTTP/2.0 200 OK\r\n" + TWO, InvalidResponse),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", InvalidResponse),
    "HTTP/2's settings": (b"\0\0\x12\x04\0\0\0\0\0", InvalidResponse),
    "RTSP": (b"RTSP/1.0 200 OK\r\n" + TWO, InvalidResponse),
    "a radio": (b"ICY 200 OK\r\n" + TWO, InvalidResponse),
    "lower case": (b"http/1.1 200 ok\r\n" + TWO, InvalidResponse),
    "empty lines first": (b"\r\n\r\n" + OK + TWO, InvalidResponse),
    "a status of one digit": (b"HTTP/1.1 2 OK\r\n" + TWO, InvalidResponse),
    "a status of four digits": (b"HTTP/1.1 2000 OK\r\n" + TWO, InvalidResponse),
    "a status below 100": (b"HTTP/1.1 099 OK\r\n" + TWO, InvalidResponse),
    "a status of nothing": (b"HTTP/1.1 000 OK\r\n" + TWO, InvalidResponse),
    "a tab behind the status": (b"HTTP/1.1 200\tOK\r\n" + TWO, InvalidResponse),
    "two spaces before the status": (b"HTTP/1.1  200 OK\r\n" + TWO, InvalidResponse),
    "no status": (b"HTTP/1.1 OK\r\n" + TWO, InvalidResponse),
}


@pytest.mark.parametrize("piece_bytes", [1_000_000, 7, 1])
@pytest.mark.parametrize(("data", "expected"), ANSWERS.values(), ids=list(ANSWERS))
def test_a_response_is_parsed_the_same_in_pieces_of_any_size(
    data: bytes, expected: Read | type[Exception], piece_bytes: int
) -> None:
    assert read(data, piece_bytes) == expected


# What arrives behind a response whose connection could be kept: no request asked for it.
@pytest.mark.parametrize("behind", [b"x", b"HTTP/1.1 500 No\r\n\r\n", OK + TWO, b"\0", b"\r\n\r\nx"])
@pytest.mark.parametrize("data", [OK + TWO, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"])
def test_data_after_a_response_ends_its_connection_and_changes_nothing(data: bytes, behind: bytes) -> None:
    assert read(data + behind, len(data + behind)) == last()


# Columns: length of the body; bytes that are kept; whether the connection ends.
BODIES: Final = [
    (MAX_RESPONSE_BYTES - 1, MAX_RESPONSE_BYTES - 1, False),
    (MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES, False),
    (MAX_RESPONSE_BYTES + 20_000, MAX_RESPONSE_BYTES, True),  # more than the piece in which the limit is reached
]


@pytest.mark.parametrize("piece_bytes", [1_000_000, 1000])
@pytest.mark.parametrize(("length", "kept_bytes", "ends_connection"), BODIES)
def test_a_body_is_stored_up_to_its_limit_without_waiting_for_the_rest(
    length: int, kept_bytes: int, ends_connection: bool, piece_bytes: int
) -> None:
    data = OK + b"Content-Length: %d\r\n\r\n" % length + b"x" * length
    assert read(data, piece_bytes) == Read(200, None, b"x" * kept_bytes, ends_connection)


@pytest.mark.parametrize("piece_bytes", [1_000_000, 4096, 1000])
@pytest.mark.parametrize(("size", "is_read"), [(MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)])
def test_interim_responses_count_towards_the_limit_of_headers(size: int, is_read: bool, piece_bytes: int) -> None:
    interim, final = b"HTTP/1.1 103 Early\r\nA: %b\r\n\r\n", OK + b"Content-Length: 2\r\n\r\n"
    filler = b"a" * (size - len(interim % b"") - len(final))
    assert read(interim % filler + final + b"{}", piece_bytes) == (kept() if is_read else InvalidResponse)


def test_a_parser_starts_afresh_with_each_response() -> None:
    reader = ResponseParser()
    data = [
        b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",  # the same leniency applies to every response
        CHUNKED + b"2\r\n{}\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        OK + b"Connection: close\r\n" + TWO,
    ]
    answers = []
    for each in data:
        stream = BytesIO(each)
        reader.read_head(stream.read)
        answers.append(what_matters(reader.read_body(stream.read)))
    assert answers == [kept(b"slow", 429, "7"), kept(), kept(), kept(b"", 204), last()]


def test_a_parser_keeps_nothing_of_a_body_that_it_has_returned() -> None:
    readers, body = [ResponseParser() for _ in range(50)], b"x" * MAX_RESPONSE_BYTES
    tracemalloc.start()
    try:
        for reader in readers:
            stream = BytesIO(OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            reader.read_head(stream.read)
            assert not reader.read_body(stream.read).ends_connection
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 10 * MAX_RESPONSE_BYTES


# ---------------------------------------------------------------- over real connections


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_unrequested_response_is_not_taken_for_the_next_one(is_apart: bool) -> None:
    unasked, sent = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            own = OK + b"Content-Length: %d\r\n\r\n%b" % (len(request.body), request.body)
            for piece in [own, unasked] if is_apart else [own + unasked]:
                peer.send(piece)
            sent.append(request.body)

    with LoopbackServer(behave) as server, made_client() as client:
        for body in (b"1", b"2", b"3"):
            outcome = post(client, server.url(), body)
            assert (outcome.status, outcome.body) == (200, body)
            assert until(lambda expected=body: expected in sent)  # type: ignore[misc]  # the loop's, of now
        assert server.connections == 3


@pytest.mark.parametrize("head", [b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + TWO])
def test_a_connection_is_closed_if_the_response_says_so(head: bytes) -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            peer.send(head)
        hung_up.append(peer.number)

    hung_up: list[int] = []
    with LoopbackServer(behave) as server, made_client() as client:
        for _ in range(2):
            assert post(client, server.url()).error is None
    assert sorted(hung_up) == [1, 2]
