"""What a receiver may say, bounded in bytes as they come: its headers, its body, and what frames the body.

llhttp reads it, the parser of Node.js: 5 µs an answer, a twentieth of what urllib3, http.client and the parser of e-mail
headers behind them take. A status counts only when its headers are complete. A body that is too long or breaks off ends its
connection and is no error: the status was the answer. What comes behind an answer ends the connection too; it would be taken
for the next answer.

Refused: what is no HTTP/1, a line that is no header, lengths that nobody can read or that contradict each other, and the
same length twice: RFC 9112 lets a client take that, but llhttp has no switch for it, and what joins the two would have to
read every head a second time. Read, as RFC 9112 asks of clients and as old receivers need it: folded headers, lines that end
without a carriage return, sizes of chunks with spaces behind them, and a length beside `chunked`, which does not count then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

#: Enough for a ticket's id and link; what is longer is not read.
MAX_ANSWER_BYTES: Final = 64 * 1024
#: Servers and proxies send 8 to 32 KiB of headers at most; interim answers (100, 103) count as well.
MAX_HEAD_BYTES: Final = 64 * 1024
#: What a chunked body may be with its sizes, extensions and trailers: no honest one is framed by more than it holds.
MAX_CHUNKED_BYTES: Final = 2 * MAX_ANSWER_BYTES
#: What a single answer may have of headers, and a chunked body of trailers; http.client's number.
_MAX_HEADERS: Final = 100
#: What is read at once: a whole record of TLS, so that none of it waits unseen above the socket.
_PIECE_BYTES: Final = 16 * 1024
_RETRY_AFTER: Final = b"retry-after"
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_SWITCHING_PROTOCOLS: Final = 101
_FIRST_FINAL: Final = 200
_LOWEST_STATUS: Final = 100


class InvalidResponse(Exception):
    """What came is no HTTP answer, or more of one than a client has to listen to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said: `retry_after` as it was sent, `body` as far as it was read.

    `ends_connection` tells that nothing must be sent over the connection any more.
    """

    status: int
    retry_after: str | None
    body: bytes
    ends_connection: bool


class ResponseParser:
    """Reads the answers that come over one connection, one after the other."""

    __slots__ = ("_ends_connection", "_headers", "_is_done", "_parser", "_pieces", "_retry_after", "_size", "_status")

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_keep_alive=True,  # an interim answer that says `close` is followed by the final one
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._retry_after: str | None = None
        self._ends_connection = True
        self._is_done = False
        self._headers = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def read_head(self, receive: Callable[[int], bytes]) -> None:
        """Read to the end of the headers of the final answer; what comes along of its body is taken in.

        Raises InvalidResponse, ConnectionResetError where the peer hangs up, and whatever `receive` raises.
        """
        self._begin()
        left = MAX_HEAD_BYTES
        while not self._status:
            piece = receive(_PIECE_BYTES)
            if not piece:
                raise ConnectionResetError("The connection ended before the headers did.")
            if left == MAX_HEAD_BYTES and piece[0] != ord("H"):
                raise InvalidResponse("What came is not HTTP.")
            self._feed(piece[:left])
            if len(piece) >= left:
                self._go_past_the_head(piece[left:])
            left -= len(piece)

    def _go_past_the_head(self, rest: bytes) -> None:
        """Go on where no header may stand any more."""
        if not self._status:
            raise InvalidResponse("The headers are longer than they may be.")
        self._feed(rest)

    def read_body(self, receive: Callable[[int], bytes]) -> Answer:
        """Read the body as far as the caps and `receive` allow; a longer or broken one ends its connection."""
        if not self._is_done:
            self._read_on(receive)
        body = b"".join(self._pieces)[:MAX_ANSWER_BYTES]
        self._pieces = []  # a kept connection would hold up to 80 KiB of it
        return Answer(self._status, self._retry_after, body, self._ends_connection)

    def _read_on(self, receive: Callable[[int], bytes]) -> None:
        left = MAX_CHUNKED_BYTES
        while not self._is_done and self._size < MAX_ANSWER_BYTES and left > 0:
            try:
                piece = receive(_PIECE_BYTES)
            except OSError:
                return  # its status was an answer; what was read of the body is what there is
            if not piece:
                return
            self._feed(piece)
            left -= len(piece)

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade) as broken:
            stopped_by = broken.__context__ if isinstance(broken, HttpParserCallbackError) else None
            if stopped_by is not None and not isinstance(stopped_by, InvalidResponse):
                raise stopped_by from None  # a mistake of ours, or an interrupt: not the receiver's
            self._ends_connection = self._is_done = True
            if not self._status:
                raise InvalidResponse("What came is not HTTP.") from broken

    # What llhttp calls; what is raised in here ends its reading, and comes out of `_feed`.

    def on_message_begin(self) -> None:
        if self._is_done:
            raise InvalidResponse("Something came behind the answer.")
        self._headers = 0
        self._retry_after = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > _MAX_HEADERS:
            raise InvalidResponse("There are more headers than there may be.")
        # A trailer is none: it comes after the answer was judged.
        if len(name) == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER and not self._status:
            told = value.decode("latin-1")
            self._retry_after = told if self._retry_after is None else f"{self._retry_after}, {told}"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _LOWEST_STATUS or self._parser.get_http_version() not in _VERSIONS:
            raise InvalidResponse("What came is not HTTP/1.")
        if status >= _FIRST_FINAL or status == _SWITCHING_PROTOCOLS:
            self._headers = 0
            self._status = status

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    def on_message_complete(self) -> None:
        if self._status:
            self._is_done = True
            self._ends_connection = self._status == _SWITCHING_PROTOCOLS or not self._parser.should_keep_alive()
