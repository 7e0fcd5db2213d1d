"""Limits the time of a whole request: httpx limits only each read and write, which a slow server can repeat for hours."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, Token
from time import monotonic
from typing import Any, Final, Self

import httpx

#: The end of the blocking request that this thread sends now, as a time of `monotonic`.
_UNTIL: Final[ContextVar[float | None]] = ContextVar("riskrelay_until", default=None)

_WRITE_BYTES: Final = 64 * 1024  # size of one write; the deadline is checked before each
#: The events of httpx's `trace` after which a connection has a new stream.
_NEW_STREAM: Final = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


class AsyncDeadline:
    """Cancels the code in its context after `seconds`, and raises httpx.ReadTimeout."""

    def __init__(self, seconds: float) -> None:
        self.extensions: dict[str, Any] = {"trace": self._keep_new_stream}
        self._timeout = asyncio.timeout(seconds)
        self._stream: Any = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            # A TLS handshake that is cancelled leaves its connection open.
            if self._stream is not None:
                await self._stream.aclose()
            raise _too_slow() from None

    async def _keep_new_stream(self, event: str, info: Mapping[str, Any]) -> None:
        """Store the first stream of a request: that of the TCP connection, not the TLS stream over it."""
        if event.endswith(_NEW_STREAM) and self._stream is None:
            self._stream = info["return_value"]


class Deadline:
    """Raises httpx.ReadTimeout after `seconds` in a blocking request that is sent in its context with `extensions`.

    The lookup of the host's name is not limited, and each address of the host may take `seconds` to connect.
    """

    def __init__(self, seconds: float) -> None:
        self.extensions: dict[str, Any] = {"trace": _limit_new_stream}
        self._until = monotonic() + seconds
        self._outer: Token[float | None] | None = None

    def __enter__(self) -> Self:
        self._outer = _UNTIL.set(self._until)
        return self

    def __exit__(self, *_: object) -> None:
        if self._outer is not None:
            _UNTIL.reset(self._outer)


def _limit_new_stream(event: str, info: Mapping[str, Any]) -> None:
    """Limit the reads and writes of a new connection, for all requests that will use it."""
    if not event.endswith(_NEW_STREAM):
        return
    # Not a timer that closes the connection: httpx does not say which one a request uses before the response begins.
    stream = info["return_value"]
    read, write, start_tls = stream.read, stream.write, stream.start_tls

    def limited_read(max_bytes: int, timeout: float | None = None) -> Any:
        return read(max_bytes, _left(timeout))

    def limited_write(buffer: bytes, timeout: float | None = None) -> None:
        # In pieces, because `write` applies its timeout to each part that the server accepts.
        for start in range(0, len(buffer), _WRITE_BYTES):
            write(buffer[start : start + _WRITE_BYTES], _left(timeout))

    def limited_start_tls(ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return start_tls(ssl_context, server_hostname, _left(timeout))

    stream.read, stream.write, stream.start_tls = limited_read, limited_write, limited_start_tls


def _left(timeout: float | None) -> float | None:
    """Return the shorter of a timeout and the time left; raises httpx.ReadTimeout if none is left."""
    until = _UNTIL.get()
    if until is None:
        return timeout
    left = until - monotonic()
    if left <= 0:
        raise _too_slow()
    return left if timeout is None else min(timeout, left)


def _too_slow() -> httpx.ReadTimeout:
    return httpx.ReadTimeout("The response took too long.")
