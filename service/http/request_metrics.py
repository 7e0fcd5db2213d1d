"""Counts requests by method, route and status, and their time.

A label holds nothing that a client or an account chose: routes are templates of the application. Clients can invent methods
and paths, so the number of series is bounded.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import Counter, Histogram

from runtime.metrics import PREFIX

#: 5 ms is a read, 20 ms a write, 0.1 s a slow write, 5 s the wait for a lock, 20 s the slowest ping.
REQUEST_BUCKETS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 5, 20)
#: The labels of an unknown path, and of a request beyond the bound of series.
UNMATCHED: Final = "unmatched"
OTHER: Final = "other"
#: Methods with a label of their own; clients can invent others.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: The most series in one process. Each route has a few; a client that tries every method on every route cannot add more.
MAX_SERIES: Final = 600

_log: Final = logging.getLogger(__name__)


class RequestMetrics:
    """Counts responses, at a few microseconds each; a failure to count fails no request."""

    def __init__(self) -> None:
        self._total = Counter(
            f"{PREFIX}http_requests_total", "Requests answered.", ("method", "route", "status"), registry=None
        )
        self._seconds = Histogram(
            f"{PREFIX}http_request_seconds", "Seconds to an answer.", ("route",), buckets=REQUEST_BUCKETS_S, registry=None
        )
        #: The series of each kind of response: looking one up by its labels costs more than counting.
        self._bound: dict[tuple[str, str | None, int], _Series] = {}

    def count(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count one response; `route` is the template of the application, None for an unknown path."""
        series = self._bound.get((method, route, status)) or self._bind(method, route, status)
        series.add()
        series.observe(seconds)

    def _bind(self, method: str, route: str | None, status: int) -> "_Series":
        if method not in _METHODS:
            # Not cached: a client can invent any number.
            return self._series(OTHER, UNMATCHED, str(status))
        if len(self._bound) >= MAX_SERIES:
            return self._series(OTHER, UNMATCHED, OTHER)
        return self._bound.setdefault((method, route, status), self._series(method, route or UNMATCHED, str(status)))

    def _series(self, method: str, route: str, status: str) -> "_Series":
        try:
            return _Series(self._total.labels(method, route, status).inc, self._seconds.labels(route).observe)
        except OSError as failed:  # the folder was removed after the start
            _log.warning("requests are not counted", extra={"route": route, "error": type(failed).__name__})
            return _UNCOUNTED


class _Series(NamedTuple):
    """The functions that count one kind of response."""

    add: Callable[[], None]
    observe: Callable[[float], None]


_UNCOUNTED: Final = _Series(lambda: None, lambda _: None)
