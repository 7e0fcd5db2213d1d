"""Parses a receiver's response, bounded in bytes as they arrive: its headers, its body, and the framing of the body.

llhttp, the parser of Node.js, does the parsing: 5 µs per response, a twentieth of the time that urllib3, http.client and the
e-mail header parser behind them take. A status counts only when its headers are complete. A body that is too long or
incomplete ends its connection and is not an error: the status was the response. Bytes after a response end the connection
too: they would be read as the next response.

Refused: anything but HTTP/1, malformed header lines, lengths that are unreadable or contradict each other, and the same
length twice. RFC 9112 lets a client accept that, but llhttp has no switch for it, and joining the two lengths would require
parsing every head a second time. Accepted, because RFC 9112 requires it of clients or old receivers need it: folded headers,
lines that end without a carriage return, chunk sizes followed by spaces, and a length beside `chunked`, which is then
ignored.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

#: Enough for a ticket's id and link; the rest is not read.
MAX_RESPONSE_BYTES: Final = 64 * 1024
#: Servers and proxies send 8 to 32 KiB of headers at most; interim responses (100, 103) count as well.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Bytes to read of a chunked body, with its sizes, extensions and trailers, per byte of content: normal framing is never
#: longer than the content.
CHUNKED_FACTOR: Final = 2
#: Headers of one response, and trailers of a chunked body; the same limit as in http.client.
_MAX_HEADERS: Final = 100
#: Bytes per read: a whole TLS record, so that no decrypted bytes stay in the TLS layer, where `poll` does not see them.
_PIECE_BYTES: Final = 16 * 1024
_RETRY_AFTER: Final = b"retry-after"
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_SWITCHING_PROTOCOLS: Final = 101
_FIRST_FINAL: Final = 200
_LOWEST_STATUS: Final = 100


class InvalidResponse(Exception):
    """The bytes are not an HTTP/1 response, or its head exceeds the limits."""


class ParsedResponse(NamedTuple):
    """A response: `headers` as they were sent, `body` as far as it was read.

    If `ends_connection` is set, nothing more may be sent over the connection.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    ends_connection: bool

    @property
    def retry_after(self) -> str | None:
        """The values of Retry-After as they were sent, joined by commas; None without the header."""
        values = [value for name, value in self.headers if len(name) == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER]
        return b", ".join(values).decode("latin-1") if values else None


class ResponseParser:
    """Parses the responses that arrive over one connection, one after the other."""

    __slots__ = ("_ends_connection", "_headers", "_is_done", "_lines", "_parser", "_pieces", "_size", "_status")

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_keep_alive=True,  # an interim response with `close` is followed by the final one
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._ends_connection = True
        self._is_done = False
        #: Headers, or trailers, of the part that is being read.
        self._lines: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def read_head(self, receive: Callable[[int], bytes]) -> None:
        """Read to the end of the headers of the final response, and any part of its body that arrives with them.

        Raises InvalidResponse, ConnectionResetError if the peer hangs up, and whatever `receive` raises.
        """
        self._begin()
        left = MAX_HEAD_BYTES
        while not self._status:
            piece = receive(_PIECE_BYTES)
            if not piece:
                raise ConnectionResetError("The connection ended before the headers did.")
            if left == MAX_HEAD_BYTES and piece[0] != ord("H"):
                raise InvalidResponse("The response is not HTTP.")
            self._feed(piece[:left])
            if len(piece) >= left:
                self._feed_body(piece[left:])
            left -= len(piece)

    def _feed_body(self, rest: bytes) -> None:
        """Feed the bytes after the limit of the headers; only a body may begin there."""
        if not self._status:
            raise InvalidResponse("The response headers are too long.")
        self._feed(rest)

    def read_body(self, receive: Callable[[int], bytes], max_bytes: int = MAX_RESPONSE_BYTES) -> ParsedResponse:
        """Read up to `max_bytes` of the body; a longer or incomplete body ends the connection."""
        if not self._is_done:
            self._read_on(receive, max_bytes)
        body = b"".join(self._pieces)[:max_bytes]
        headers, self._headers = self._headers, []
        self._pieces, self._lines = [], []  # a kept connection would hold up to 200 KiB
        return ParsedResponse(self._status, headers, body, self._ends_connection)

    def _read_on(self, receive: Callable[[int], bytes], max_bytes: int) -> None:
        left = CHUNKED_FACTOR * max_bytes
        while not self._is_done and self._size < max_bytes and left > 0:
            try:
                piece = receive(_PIECE_BYTES)
            except OSError:
                return  # the status was the response; the body is what was read so far
            if not piece:
                return
            self._feed(piece)
            left -= len(piece)

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade) as broken:
            self._ends_connection = self._is_done = True
            if not self._status:
                raise InvalidResponse("The response is not HTTP.") from broken

    # Callbacks of llhttp: an exception ends its parsing and is raised by `_feed`.

    def on_message_begin(self) -> None:
        if self._is_done:
            raise InvalidResponse("Bytes follow the response.")
        self._lines = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name, value))
        if len(self._lines) > _MAX_HEADERS:
            raise InvalidResponse("The response has too many headers.")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _LOWEST_STATUS or self._parser.get_http_version() not in _VERSIONS:
            raise InvalidResponse("The response is not HTTP/1.")
        if status >= _FIRST_FINAL or status == _SWITCHING_PROTOCOLS:
            # Header lines from here on are trailers, which nothing reads.
            self._headers, self._lines = self._lines, []
            self._status = status

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    def on_message_complete(self) -> None:
        if self._status:
            self._is_done = True
            self._ends_connection = self._status == _SWITCHING_PROTOCOLS or not self._parser.should_keep_alive()
