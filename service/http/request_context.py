"""Falcon middleware around every request: request id, security headers, access log, metrics, release of the connection.

Requests are counted by method, route and status. A label contains no value that a client or an account chose: routes are
templates of the application. Clients can invent methods and paths, so the number of series is limited.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import falcon
from prometheus_client import Counter, Histogram

from runtime import logs, tracing
from runtime.clock import utc_now
from runtime.metrics import PREFIX
from schemas.base.errors import NotFound
from service.http.security_headers import SAFE_HEADERS
from storage.db import engine, identifiers

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

#: The prefixes of the ids in our paths, by the names of the route parameters.
_IDS: Final = {"export_id": identifiers.EXPORT, "target_id": identifiers.TARGET}
#: The buckets: 5 ms is a read, 20 ms a write, 0.1 s a slow write, 5 s the wait for a lock, 20 s the slowest ping.
REQUEST_BUCKETS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 5, 20)
#: Label values for an unknown path, and for requests beyond MAX_SERIES.
UNMATCHED: Final = "unmatched"
OTHER: Final = "other"
#: Methods that have their own label value; clients can invent other methods.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Methods that Falcon's router knows.
_ROUTED_METHODS: Final = frozenset(falcon.COMBINED_METHODS) - {"WEBSOCKET"}
#: The functions that count one kind of response, and its seconds.
_Series = tuple[Callable[[], None], Callable[[float], None]]
#: Maximum number of series in one process. Each route has a few. A client that tries every method on every route cannot add
#: more.
MAX_SERIES: Final = 600

_log: Final = logging.getLogger(__name__)


class ServiceRequest(falcon.Request):
    """A request. A method that a client invents is handled, counted and logged like TRACE, which no route has.

    Falcon responds with 405 to the methods that it knows and with 400 to others, and runs no middleware for its own method
    `WEBSOCKET`.
    """

    __slots__ = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.method not in _ROUTED_METHODS:
            self.method = "TRACE"

    @property
    def accept(self) -> str:
        """The Accept header in lower case: Falcon compares media types case-sensitively, HTTP does not."""
        return super().accept.lower()


class RequestMetrics:
    """Counts responses, which takes a few microseconds each. If counting fails, the request does not fail."""

    def __init__(self) -> None:
        self._total = Counter(
            f"{PREFIX}http_requests_total", "Requests responded to.", ("method", "route", "status"), registry=None
        )
        self._seconds = Histogram(
            f"{PREFIX}http_request_seconds",
            "Seconds until the response.",
            ("route",),
            buckets=REQUEST_BUCKETS_S,
            registry=None,
        )
        #: The series of each kind of response; finding a series by its labels takes longer than counting.
        self._bound: dict[tuple[str, str | None, int], _Series] = {}

    def count(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count one response; `route` is the application's route template, None for an unknown path."""
        try:
            add, observe = self._bound.get((method, route, status)) or self._bind(method, route, status)
        except OSError as failed:  # the metrics folder was removed after the start
            _log.warning("requests are not counted", extra={"route": route, "error": type(failed).__name__})
            return
        add()
        observe(seconds)

    def _bind(self, method: str, route: str | None, status: int) -> _Series:
        if method not in _METHODS:
            # Not cached: a client can invent any number of methods.
            return self._series(OTHER, UNMATCHED, str(status))
        if len(self._bound) >= MAX_SERIES:
            return self._series(OTHER, UNMATCHED, OTHER)
        return self._bound.setdefault((method, route, status), self._series(method, route or UNMATCHED, str(status)))

    def _series(self, method: str, route: str, status: str) -> _Series:
        return self._total.labels(method, route, status).inc, self._seconds.labels(route).observe


class RequestContext:
    """Prepares every request and finishes every response."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Accept or create the request id, before anything can fail."""
        # Read from the environment, because for a missing header, which is the usual case, `get_header` takes ten times as
        # long.
        received_id = req.env.get("HTTP_X_REQUEST_ID", "")
        is_valid = bool(received_id) and _REQUEST_ID.fullmatch(received_id) is not None
        request_id = received_id if is_valid else identifiers.new_id(identifiers.REQUEST, utc_now())
        context = req.context
        context.request_id = request_id
        context.began_at = time.perf_counter()
        # Until the response is sent, every log line and error report contains the request id.
        logs.set_context(request_id=request_id)
        context.span = tracing.request_began(req.method, req.env.get("HTTP_TRACEPARENT"))
        resp.set_header("X-Request-Id", request_id)
        resp.set_headers(SAFE_HEADERS)
        if req.path.startswith("//"):
            # The router collapses repeated slashes, but a proxy that protects /metrics may not.
            raise NotFound

    def process_resource(
        self, _req: falcon.Request, _resp: falcon.Response, _resource: Any, params: Mapping[str, str]
    ) -> None:
        """Log the ids in the path. A parameter that does not have the form of an id is client text, so it is not logged."""
        if params:
            named = {name: value for name, value in params.items() if name in _IDS and identifiers.is_id(_IDS[name], value)}
            logs.add_context(**named)

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, _req_succeeded: bool) -> None:
        """Release the connection, count the response, and write the access log.

        The log contains the caller and the route, never the path, the query or a header.
        """
        engine.release()
        route = req.uri_template if resource is not None else None
        elapsed_s = time.perf_counter() - req.context.began_at
        principal = req.context.get("principal")
        caller = None if principal is None else principal.key
        self._requests.count(req.method, route, resp.status_code, elapsed_s)
        logs.access_log(req.method, route, resp.status_code, round(elapsed_s * 1000, 1), req.context.request_id, caller)
        logs.set_context()
        tracing.request_ended(req.context.span, req.method, route, resp.status_code, req.context.request_id)
