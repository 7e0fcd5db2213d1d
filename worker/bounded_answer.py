"""What a receiver may say, bounded in bytes as they come: its headers, its body, and what frames the body.

A status counts only when its headers are complete. A body that is too long or breaks off ends its connection and is no
error: the status was the answer.
"""

from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from typing import Any, Final, cast

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

#: Enough for a ticket's id and link; what is longer is not read.
MAX_ANSWER_BYTES: Final = 64 * 1024
#: The part of an answer that is kept in memory for reading codes and links.
_PIECE_BYTES: Final = 16 * 1024
#: Servers and proxies send 8 to 32 KiB of headers at most; interim answers (100, 103) count as well.
MAX_HEAD_BYTES: Final = 64 * 1024
#: What a chunked body may be with its sizes, extensions and trailers: no honest one is framed by more than it holds.
MAX_CHUNKED_BYTES: Final = 2 * MAX_ANSWER_BYTES


def read_body(answer: BaseHTTPResponse) -> bytes:
    """Read the answer as far as the cap and the deadline allow; a longer or broken one ends its connection."""
    pieces: list[bytes] = []
    size = 0
    try:
        while size < MAX_ANSWER_BYTES:
            piece = answer.read(min(_PIECE_BYTES, MAX_ANSWER_BYTES - size), decode_content=False)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if answer.length_remaining == 0:
                return b"".join(pieces)
        answer.close()
    except (HTTPError, OSError):
        # Its status was an answer; what was read of the body is what there is.
        answer.close()
    return b"".join(pieces)


class _TooMuch(HTTPException):
    """The receiver says more than a client has to listen to."""


class _Counted:
    """A stream that ends with an error once it has given `limit` bytes."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def flush(self) -> None:
        """For closing: there is nothing to flush where nothing is written."""

    def close(self) -> None:
        self._stream.close()

    def _count(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise _TooMuch("The answer is longer than it may be.")
        return data


class _Head(_Counted):
    """The lines of a head, which must not end within one or before the next; http.client takes that for the headers' end."""

    def readline(self, limit: int) -> bytes:
        line = self._count(self._stream.readline(limit))
        if not line.endswith(b"\n") and len(line) < limit:
            raise RemoteDisconnected("The connection ended within the headers.")
        return line


class _Chunks(_Counted):
    """A chunked body with all that frames it; one byte can come in 64 KiB of extensions, and trailers need not end."""

    def readline(self, limit: int) -> bytes:
        return self._count(self._stream.readline(limit))

    def read(self, size: int) -> bytes:
        if size < 0:
            # http.client takes a size of -1 from the wire, which means to read whatever comes.
            raise _TooMuch("A chunk has a negative size.")
        return self._count(self._stream.read(size))


class BoundedAnswer(HTTPResponse):
    """An answer whose status counts only when its headers are complete, and whose bytes are counted as they come."""

    def begin(self) -> None:
        stream, head = self.fp, cast(Any, _Head(self.fp, MAX_HEAD_BYTES))
        self.fp = head
        try:
            super().begin()
        finally:
            # None where the headers were nonsense and the connection is closed already.
            self.fp = stream if self.fp is head else self.fp
        if self.chunked:
            self.fp = cast(Any, _Chunks(self.fp, MAX_CHUNKED_BYTES))

    def _read_status(self) -> tuple[str, int, str]:
        """Skip interim answers; http.client knows 100 alone and would take 103 for the last word."""
        told: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]  # typeshed shows what is public
        while HTTPStatus.CONTINUE < told[1] < HTTPStatus.OK and told[1] != HTTPStatus.SWITCHING_PROTOCOLS:
            while self.fp.readline(MAX_HEAD_BYTES) not in {b"\r\n", b"\n"}:
                pass
            told = super()._read_status()  # type: ignore[misc]  # http.client's own, which typeshed leaves out
        return told
