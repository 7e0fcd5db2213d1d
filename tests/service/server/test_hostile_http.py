"""Requests that two HTTP parsers may interpret differently, and other malicious input to the service's port.

Each row of a table has the expected result. If a request could be meant to smuggle another one, a complete, valid postback
follows it. The postback may be served only if it is clearly a separate request; otherwise nothing in the table leaves a row
behind. Errors have our format, and neither they nor the log repeat anything from the request.
"""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from storage.db.engine import close_database, connection, open_database
from tests.support.factories import SCANNER_SECRET, environment, issue, make_customer, postback
from tests.support.http.raw_http import CANARY, EXPORTS, RESULTS, SAFE_HEADERS, TARGETS
from tests.support.processes.gunicorn_process import RawResponse, Service

WORD: Final = CANARY.encode()
SECRET: Final = b"X-Scanner-Secret: " + SCANNER_SECRET.encode()
TYPE: Final = b"Content-Type: application/json"
GOOD: Final = json.dumps(postback(7)).encode()
CHUNKED: Final = b"Transfer-Encoding: chunked"

GET: Final = b"GET /healthz HTTP/1.1"
POST: Final = b"POST " + RESULTS.encode() + b" HTTP/1.1"


LIMIT_BYTES: Final = 16 * 1024


def lines(*several: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((*several, b"", body))


def get(*headers: bytes, line: bytes = GET) -> bytes:
    return lines(line, b"Host: x", *headers)


def post(*headers: bytes, body: bytes = b"", line: bytes = POST) -> bytes:
    return lines(line, b"Host: x", SECRET, TYPE, *headers, body=body)


def length(count: int) -> bytes:
    return b"Content-Length: %d" % count


def chunks(body: bytes) -> bytes:
    return post(CHUNKED, body=body)


#: The request that must never be executed if its beginning is ambiguous.
SMUGGLED_BODY: Final = json.dumps(postback(9, issues=[issue("stowaway")])).encode()
SMUGGLED_REQUEST: Final = post(length(len(SMUGGLED_BODY)), body=SMUGGLED_BODY)
#: The end of a chunked body.
END: Final = b"0\r\n\r\n"
EMPTY: Final = b"{}"


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """The bytes to send, the statuses of all responses, and whether the connection stays open afterwards."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    is_kept: bool = False


def refused(name: str, sent: bytes, status: int = 400) -> HostileRequest:
    """Return a row with one error and a closed connection: the bytes that follow are not treated as a request."""
    return HostileRequest(name, sent + SMUGGLED_REQUEST, (status,))


def kept(name: str, sent: bytes, *statuses: int) -> HostileRequest:
    """Return a row whose connection stays open after the responses."""
    return HostileRequest(name, sent, statuses, is_kept=True)


#: The end of a body, given twice or in a form that parsers interpret differently.
FRAMING: Final = [
    # A proxy that uses the length and a service that uses the chunks disagree about where the next request begins.
    refused("length and chunks", post(length(5), CHUNKED, body=END)),
    refused("chunks and length", post(CHUNKED, length(5), body=END)),
    # Even equal ones: a repeated length suggests that the request was manipulated.
    refused("two equal lengths", post(length(2), length(2), body=EMPTY)),
    refused("two different lengths", post(length(2), length(7), body=EMPTY)),
    refused("a list of lengths", post(b"Content-Length: 2, 2", body=EMPTY)),
    # Parsers that use their language's number parser accept these.
    refused("a length with a sign", post(b"Content-Length: +2", body=EMPTY)),
    refused("a negative length", post(b"Content-Length: -2", body=EMPTY)),
    refused("a length with a space inside", post(b"Content-Length: 2 2", body=EMPTY)),
    refused("a length with an underscore", post(b"Content-Length: 0_2", body=EMPTY)),
    refused("a length in hexadecimal", post(b"Content-Length: 0x2", body=EMPTY)),
    refused("a length with a fraction", post(b"Content-Length: 2.0", body=EMPTY)),
    refused("a length in superscript", post(b"Content-Length: \xb2", body=EMPTY)),
    refused("an empty length", post(b"Content-Length:", body=EMPTY)),
    refused("a length beyond Python's numbers", post(b"Content-Length: " + b"9" * 5000, body=EMPTY)),
    # Still digits for every parser: the body has two bytes and is invalid, and a separate request follows.
    kept("a length with leading zeros", post(b"Content-Length: 0002", body=EMPTY) + get(), 422, 200),
    # Rejected by the length; the rest of the data is not treated as a request.
    refused("a length beyond 64 bits", post(b"Content-Length: " + b"9" * 40, body=EMPTY), 413),
    # The last coding determines the end of the body, and a request must end with chunked coding.
    refused("chunks, then identity", post(b"Transfer-Encoding: chunked, identity", body=END)),
    refused("chunks, then gzip", post(b"Transfer-Encoding: chunked, gzip", body=END)),
    refused("chunks in chunks", post(b"Transfer-Encoding: chunked, chunked", body=END)),
    refused("a coding nobody knows", post(b"Transfer-Encoding: xchunked", body=END)),
    refused("identity", post(b"Transfer-Encoding: identity", body=END)),
    refused("a coding in quotes", post(b'Transfer-Encoding: "chunked"', body=END)),
    refused("a coding with a parameter", post(b"Transfer-Encoding: chunked;q=1", body=END)),
    refused("a coding behind a vertical tab", post(b"Transfer-Encoding: \x0bchunked", body=END)),
    refused("a space before the colon", post(b"Transfer-Encoding : chunked", body=END)),
    refused("two codings", post(CHUNKED, CHUNKED, body=END)),
    refused("two codings that differ", post(CHUNKED, b"Transfer-Encoding: identity", body=END)),
    # HTTP/1.0 has no chunks; an old proxy passes them on as plain bytes.
    refused("chunks in HTTP/1.0", post(CHUNKED, body=END, line=POST[:-1] + b"0")),
    # Compressed bytes are not JSON, and the service does not decompress them; the end of the body is unambiguous.
    refused("gzip in chunks", post(b"Transfer-Encoding: gzip, chunked", body=END), 422),
    # HTTP allows a tab and letters of either case.
    kept("chunks after a tab, in capitals", post(b"TRANSFER-ENCODING:\tCHUNKED", body=END), 422),
    # A name with an underscore is a different name: it affects neither framing nor authentication.
    kept("a coding with an underscore", post(b"Transfer_Encoding: chunked") + get(), 422, 200),
    kept("a length with an underscore in its name", post(b"Content_Length: 500") + get(), 422, 200),
]

#: Chunks: sizes that number parsers accept, unusual line ends, and data after a size or after the last chunk.
CHUNKS: Final = [
    refused("a size with 0x", chunks(b"0x2\r\n{}\r\n" + END), 422),
    refused("a size with a sign", chunks(b"+2\r\n{}\r\n" + END), 422),
    refused("a negative size", chunks(b"-2\r\n{}\r\n" + END), 422),
    refused("a size with an underscore", chunks(b"0_2\r\n{}\r\n" + END), 422),
    refused("a size behind a space", chunks(b" 2\r\n{}\r\n" + END), 422),
    refused("a size with another letter", chunks(b"2g\r\n{}\r\n" + END), 422),
    refused("no size", chunks(b"\r\n{}\r\n" + END), 422),
    # A 64-bit parser would wrap around to 2.
    refused("a size beyond 64 bits", chunks(b"1" + b"0" * 15 + b"2\r\n{}\r\n" + END + b" " * 6 * LIMIT_BYTES), 413),
    refused("a size without an end", chunks(b"f" * 20_000), 422),
    refused("a chunk longer than its size", chunks(b"2\r\n{}{}\r\n" + END), 422),
    refused("a size that ends in a bare LF", chunks(b"2\n{}\n0\n\n"), 422),
    refused("an extension with a bare LF", chunks(b"2;\n\r\n{}\r\n" + END), 422),
    refused("an extension with a bare CR", chunks(b"2;a\rb\r\n{}\r\n" + END), 422),
    refused("an extension that does not end", chunks(b"2;a=" + b"b" * 20_000 + b"\r\n{}\r\n" + END), 422),
    # Allowed, and ignored.
    kept("an extension", chunks(b"2;a=b\r\n{}\r\n" + END), 422),
    kept("a trailer", chunks(b"2\r\n{}\r\n0\r\nX-Note: late\r\n\r\n"), 422),
    # Only headers before the body affect how a request is handled.
    refused("a trailer that frames", chunks(b"2\r\n{}\r\n0\r\nContent-Length: 4\r\n\r\n"), 422),
    refused("a trailer that authorizes", chunks(b"2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n"), 422),
    refused("a trailer that does not end", chunks(b"2\r\n{}\r\n0\r\n" + b"X-A: b\r\n" * 200), 422),
    kept(
        "a secret in a trailer",
        lines(POST, b"Host: x", TYPE, CHUNKED, body=b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(GOOD), GOOD, SECRET)),
        401,
    ),
]

#: The request line and the headers.
HEADS: Final = [
    # Lines end with CRLF: a parser that splits at LF or CR alone sees more headers than we do.
    refused("lines that end in LF", b"GET /healthz HTTP/1.1\nHost: x\n\n"),
    refused("lines that end in CR", b"GET /healthz HTTP/1.1\rHost: x\r\r"),
    refused("a bare LF between two headers", lines(GET, b"Host: x\nX-A: b")),
    refused("a bare CR in a value", get(b"X-A: a\rX-B: b")),
    refused("NUL in a value", get(b"X-A: a\0b")),
    refused("NUL in a name", get(b"X\0A: b")),
    refused("a folded header", get(b"X-A: a", b" X-B: b")),
    refused("a folded first header", lines(GET, b" Host: x")),
    refused("a header without a colon", get(WORD)),
    refused("a header without a name", get(b": " + WORD)),
    refused("a name beyond ASCII", get(b"X-\xe9: a")),
    refused("a space before the line", b" " + get()),
    refused("two spaces in the line", get(line=b"GET  /healthz HTTP/1.1")),
    refused("tabs in the line", get(line=b"GET\t/healthz\tHTTP/1.1")),
    refused("a space in the path", get(line=b"GET /health z HTTP/1.1")),
    refused("no path", get(line=b"GET HTTP/1.1")),
    refused("a path beyond ASCII", get(line=b"GET /\xe9 HTTP/1.1")),
    # HTTP allows one empty line before a request; more are rejected.
    kept("an empty line first", b"\r\n" + get(), 200),
    refused("two empty lines first", b"\r\n\r\n" + get()),
    # The Host header matters to proxies; the service never uses it, so it may be unusual or missing, but not repeated.
    refused("two hosts", get(b"Host: elsewhere.example")),
    kept("no host", lines(GET), 200),
    kept("an odd host", lines(GET, b"Host: a b@c:99999/\\"), 200),
    # Other forms of a request target.
    kept("an absolute target", get(line=b"GET http://elsewhere.example/healthz HTTP/1.1"), 200),
    kept("an absolute target elsewhere", get(line=b"GET file:///etc/passwd HTTP/1.1"), 404),
    refused("an absolute target that does not parse", get(line=b"GET http://[::1/ HTTP/1.1")),
    refused("host and port as target", get(line=b"GET elsewhere.example:80 HTTP/1.1")),
    # CONNECT opens a tunnel; it is never a request to this service.
    refused("a tunnel", get(line=b"CONNECT elsewhere.example:443 HTTP/1.1"), 404),
    refused("an asterisk", get(line=b"GET * HTTP/1.1")),
    kept("an asterisk to OPTIONS", get(line=b"OPTIONS * HTTP/1.1"), 404),
    # TRACE would echo the request, including its secrets.
    kept("TRACE", get(b"X-A: " + WORD, line=b"TRACE /healthz HTTP/1.1"), 405),
    kept("a method of WebDAV", get(line=b"PROPFIND /healthz HTTP/1.1"), 405),
    kept("a method nobody knows", get(line=b"FROBNICATE /healthz HTTP/1.1"), 405),
    kept("a method that only the framework knows", get(line=b"WEBSOCKET /healthz HTTP/1.1"), 405),
    refused("a method in small letters", get(line=b"get /healthz HTTP/1.1")),
    refused("a method with a brace", get(line=b"G{T /healthz HTTP/1.1")),
    refused("a method without an end", get(line=b"G" * 64 + b" /healthz HTTP/1.1")),
    # Other versions and other protocols.
    refused("HTTP/0.9", b"GET /healthz\r\n"),
    kept("HTTP/1.2", get(line=b"GET /healthz HTTP/1.2"), 200),
    refused("HTTP/2.0", get(line=b"GET /healthz HTTP/2.0")),
    refused("HTTP/11.1", get(line=b"GET /healthz HTTP/11.1")),
    refused("HTTP in small letters", get(line=b"GET /healthz http/1.1")),
    refused("HTTP/2's first words", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    kept(
        "a wish for HTTP/2", get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"), 200
    ),
    kept("a wish for WebSocket", get(b"Connection: Upgrade", b"Upgrade: websocket"), 200),
    # No proxy is trusted here: the connected peer is the client.
    refused("PROXY in text", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + get()),
    refused("PROXY in bytes", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\1" * 12 + get()),
    refused("TLS", bytes.fromhex("16030100c8010000c40303") + WORD + b"\r\n\r\n"),
    # Sizes.
    refused("a line without an end", get(line=b"GET /" + WORD * 500 + b" HTTP/1.1"), 414),
    refused("one header without an end", get(b"X-A: " + WORD * 800), 431),
    refused("headers without an end", get(*[b"X-%d: a" % number for number in range(500)]), 431),
    refused("headers larger than all may be", get(*[b"X-%d: " % number + b"a" * 8000 for number in range(12)]), 431),
    kept("headers as large as they may be", get(*[b"X-%d: " % number + b"a" * 8000 for number in range(6)]), 200),
]

#: Headers with a special meaning.
HEADERS: Final = [
    # A repeated header is rejected: an attacker could otherwise choose which of the two is used.
    kept("two secrets", post(SECRET, length(2), body=EMPTY), 401),
    kept(
        "two tokens",
        get(b"Authorization: Bearer a", b"Authorization: Bearer b", line=b"GET " + EXPORTS.encode() + b" HTTP/1.1"),
        401,
    ),
    refused("two types", post(TYPE, length(2), body=EMPTY)),
    kept("two keys", post(b"Idempotency-Key: a", b"Idempotency-Key: a", length(len(GOOD)), body=GOOD), 422),
    kept("two keys, one of them empty", post(b"Idempotency-Key: a", b"Idempotency-Key:", length(len(GOOD)), body=GOOD), 422),
    # These may be lists, or have no effect.
    kept("two request ids", get(b"X-Request-Id: " + WORD, b"X-Request-Id: " + WORD), 200),
    kept("two forwarded addresses", get(b"X-Forwarded-For: 10.0.0.1", b"X-Forwarded-For: 10.0.0.2"), 200),
    kept("two versions known", get(b'If-None-Match: "a"', b'If-None-Match: "b"'), 200),
    # A different name is a different header.
    kept(
        "a secret with underscores",
        lines(POST, b"Host: x", TYPE, b"X_Scanner_Secret: " + SCANNER_SECRET.encode(), length(2), body=EMPTY),
        401,
    ),
    kept(
        "a token with an underscore",
        get(b"HTTP_AUTHORIZATION: Bearer a", line=b"GET " + TARGETS.encode() + b" HTTP/1.1"),
        401,
    ),
    # Proxies pass these on, sometimes from any client; the path is that of the request line.
    kept("another place of the application", get(b"SCRIPT_NAME: /a", line=b"GET /a/metrics HTTP/1.1"), 404),
    kept("a place that is not there", get(b"SCRIPT_NAME: /a"), 200),
    kept(
        "another path",
        get(b"PATH_INFO: /metrics", b"X-Original-URL: /metrics", b"X-Rewrite-URL: /metrics", line=b"GET /a HTTP/1.1"),
        404,
    ),
    kept("another method", get(b"X-HTTP-Method-Override: POST", line=b"GET " + RESULTS.encode() + b" HTTP/1.1"), 405),
    kept("two schemes", get(b"X-Forwarded-Proto: https", b"X-Forwarded-Proto: http", b"X-Forwarded-Ssl: on"), 200),
    # Expectations of a client, and its requirements for the response.
    kept("a wish to be told to go on", post(b"Expect: 100-continue", length(2), body=EMPTY), 100, 422),
    refused("another wish", post(b"Expect: 200-ok", length(2), body=EMPTY)),
    kept("parts of an answer", get(b"Range: bytes=0-0,0-,-1"), 200),
    kept("a compressed body", post(b"Content-Encoding: gzip", length(2), body=EMPTY), 415),
    kept("a connection named after a header", post(b"Connection: X-Scanner-Secret", length(2), body=EMPTY), 422),
]

#: Paths have only one spelling, so that a proxy's rule for a path cannot be bypassed.
PATHS: Final = [
    ("/%68ealthz", 200),  # a proxy has to decode this too
    ("/healthz?" + "a=b&" * 900, 200),
    ("/healthz?%00=%ff", 200),
    ("//healthz", 404),
    ("///metrics", 404),
    ("/%2fmetrics", 404),
    ("/metrics/", 404),
    ("/./metrics", 404),
    ("/a/../metrics", 404),
    ("/a/%2e%2e/metrics", 404),
    ("/metrics%2f", 404),
    ("/metrics;a=b", 404),
    ("/metrics%00", 404),
    ("/metrics%20", 404),
    ("/METRICS", 404),
    ("/\\metrics", 404),
    ("/metrics%0d%0aX-A:b", 404),
    ("/%c0%afmetrics", 404),
    ("/%zz", 404),
    ("/" + "a/" * 1900, 404),
]

TABLE: Final = [
    *FRAMING,
    *CHUNKS,
    *HEADS,
    *HEADERS,
    *(kept(path[:24], get(line=f"GET {path} HTTP/1.1".encode()), status) for path, status in PATHS),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Service]:
    """One service that would accept the smuggled postback, without limits for failed authentication."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    open_database(url)
    with connection():
        project_id = make_customer().project_id
    close_database()
    unhurried = {"AUTH_FAILURES_PER_MINUTE": "100000", "RATE_LIMIT_PER_MINUTE": "100000"}
    known = {
        "DATABASE_URL": url,
        "DEFAULT_PROJECT_ID": str(project_id),
        "WEB_PROCESSES": "1",
        "MAX_BODY_BYTES": str(LIMIT_BYTES),
    }
    with Service(environment(folder, **known, **unhurried)) as running:
        yield running


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_a_hostile_request_has_the_result_in_the_table(row: HostileRequest, service: Service) -> None:
    with service.connect() as client:
        send(client, row.sent)
        answers = ResponseReader(client)
        found = [answers.next() for _ in row.statuses]
        assert tuple(each.status for each in found) == row.statuses
        if row.is_kept:
            client.sendall(get(b"X-Request-Id: a-probe"))
            assert answers.next().headers["x-request-id"] == "a-probe"
        else:
            assert answers.is_at_end()
    for answer in found:
        assert WORD not in answer.content
        assert WORD not in repr(answer.headers).encode()
        if answer.status >= 400:
            assert_is_refusal(answer)


def test_hostile_requests_leave_no_rows_and_no_text_in_the_log(service: Service) -> None:
    """Runs after the table. The smuggled postback is accepted when sent by itself, and its finding is new then."""
    answer = service.exchange(SMUGGLED_REQUEST)
    assert (answer.status, answer.json["findings"]) == (202, {"new": 1, "seen": 0, "fixed": 0, "reopened": 0})
    output = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert [line for line in output if line["level"] == "error"] == []
    assert CANARY not in service.log.read_text()


def assert_is_refusal(answer: RawResponse) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert {name: answer.headers.get(name) for name in SAFE_HEADERS} == SAFE_HEADERS
    assert list(answer.json) == ["error"]
    assert set(answer.json["error"]) == {"code", "message", "details", "request_id"}
    assert answer.json["error"]["request_id"] == answer.headers["x-request-id"]


def send(client: socket.socket, sent: bytes) -> None:
    """Send as much as the service accepts: it may have responded and closed the connection."""
    try:
        client.sendall(sent)
    except OSError:
        assert len(sent) > 8192, "a small request is taken whole"


class ResponseReader:
    """Reads the responses of a connection one after the other."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._rest = b""

    def next(self) -> RawResponse:
        """Read the next response."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._some()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status_line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        size = int(headers.get("content-length", "0"))
        while len(self._rest) < size:
            self._rest += self._some()
        content, self._rest = self._rest[:size], self._rest[size:]
        return RawResponse(int(status_line.split()[1]), headers, content)

    def is_at_end(self) -> bool:
        """Wait for the service to close the connection; return whether nothing else was received."""
        return not self._rest and not self._client.recv(1)

    def _some(self) -> bytes:
        data = self._client.recv(65536)
        assert data, "the other side hung up before its answer"
        return data
