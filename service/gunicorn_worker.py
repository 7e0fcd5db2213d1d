"""gunicorn's gevent worker with our manners where no application has been reached yet, or no longer is.

It imports neither the application nor the storage: the parent process loads this module before gevent has patched anything.
"""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import gevent
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, NoMoreData, ParseException
from gunicorn.util import write_nonblock
from gunicorn.workers.ggevent import GeventWorker

from schemas.errors import PayloadTooLarge, RiskRelayError, ValidationFailed, error_body

#: How long answers are given without a look at who else waits. To look takes 2 µs.
_TURN_S: Final = 0.005


class ServiceWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no annotations
    """Closes idle connections at SIGTERM, and refuses what is not HTTP in the common body, repeating nothing of it.

    Who asks without a pause takes turns with the others: the next request is there before gevent would wait for it, and the
    process would serve that one connection alone, for up to a second under `wrk`. A client that keeps a connection between
    polls would hold up the stop; requests that are being answered are finished, as the graceful timeout allows.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: set[gevent.Greenlet] = set()
        self._gave_way_at = 0.0

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Note that this greenlet waits for a request, for as long as it does."""
        self._give_way()
        greenlet = gevent.getcurrent()
        self._waiting.add(greenlet)
        try:
            with super().timeout_ctx():
                yield
        finally:
            self._waiting.discard(greenlet)

    def _give_way(self) -> None:
        if time.monotonic() - self._gave_way_at > _TURN_S:
            gevent.sleep(0)
            self._gave_way_at = time.monotonic()

    def notify(self) -> None:
        """Report to the parent once a second, and once stopping, hang up on whoever asks nothing."""
        super().notify()
        if not self.alive:
            for greenlet in list(self._waiting):
                # What gunicorn sees when a client hangs up between requests.
                greenlet.kill(NoMoreData(), block=False)

    def handle_error(self, _req: Any, client: Any, _addr: Any, exc: BaseException) -> None:
        """Answer a request that could not be read; gunicorn's own page would repeat what it held."""
        status, error = _refusal(exc)
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("a connection broke: %s", type(exc).__name__)
        body = json.dumps(error_body(error, f"req_{secrets.token_hex(13)}")).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        safe = "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
        try:
            write_nonblock(client, f"{head}{safe}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except OSError:
            self.log.debug("the client was gone before its refusal")


def _refusal(exc: BaseException) -> tuple[HTTPStatus, RiskRelayError]:
    if isinstance(exc, LimitRequestLine):
        return HTTPStatus.REQUEST_URI_TOO_LONG, PayloadTooLarge("The request line is longer than this installation takes.")
    if isinstance(exc, LimitRequestHeaders):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, PayloadTooLarge(
            "The headers are larger than this installation takes."
        )
    if isinstance(exc, ParseException):
        return HTTPStatus.BAD_REQUEST, ValidationFailed()
    return HTTPStatus.INTERNAL_SERVER_ERROR, RiskRelayError()
