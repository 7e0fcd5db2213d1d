"""gunicorn's gevent worker, told not to wait for connections on which nothing is being asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gunicorn.http.errors import NoMoreData
from gunicorn.workers.ggevent import GeventWorker


class ServiceWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no annotations
    """Closes idle connections at SIGTERM; a client that keeps one between polls would hold up the stop otherwise.

    Requests that are being answered are finished, as the graceful timeout allows.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: set[gevent.Greenlet] = set()

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Note that this greenlet waits for a request, for as long as it does."""
        greenlet = gevent.getcurrent()
        self._waiting.add(greenlet)
        try:
            with super().timeout_ctx():
                yield
        finally:
            self._waiting.discard(greenlet)

    def notify(self) -> None:
        """Report to the parent once a second, and once stopping, hang up on whoever asks nothing."""
        super().notify()
        if not self.alive:
            for greenlet in list(self._waiting):
                # What gunicorn sees when a client hangs up between requests.
                greenlet.kill(NoMoreData(), block=False)
