"""Counts attempts, and serves the counts on a worker host that has no service.

`work` starts the server once for all its processes, at WORKER_METRICS_BIND. It shows nothing of the database; the service's
page does.
"""

import logging
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, make_wsgi_app
from prometheus_client.registry import Collector

from runtime import metrics
from runtime.metrics import PAGE_FOR_S, PREFIX, ProcessKind
from schemas.exports.delivery import DELIVERED, CompletedAttempt

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

#: From a receiver on the same network to the deadline of 15 s; a longer attempt has also waited for a thread.
DELIVERY_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
#: An attempt whose lease expired before its result was written: it was made, and another worker has the export.
LATE: Final = "late"
#: The outcomes of an attempt (`worker.delivery.outcomes`).
OUTCOMES: Final = (DELIVERED, "retryable", "rejected", "refused", "exhausted", LATE)

#: Concurrent connections: a Prometheus or two, and a person.
_MAX_CONNECTIONS: Final = 8
#: A scrape sends one line and a few headers.
_REQUEST_TIMEOUT_S: Final = 5

_log: Final = logging.getLogger(__name__)


class Attempts:
    """Counts attempts by outcome; an error in counting affects no delivery.

    `registry` is for tests; counters in files need none.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        total = Counter(f"{PREFIX}attempts_total", "Attempts by outcome.", ("outcome",), registry=registry)
        self._seconds = _Seconds(
            f"{PREFIX}delivery_seconds", "Seconds an attempt took.", buckets=DELIVERY_BUCKETS_S, registry=registry
        )
        # All from the start: an outcome that has not occurred is 0, not absent.
        self._add: dict[str, Callable[[float], None]] = {outcome: total.labels(outcome).inc for outcome in OUTCOMES}

    def count(self, attempts: Sequence[CompletedAttempt], moved: Collection[str]) -> None:
        """Count attempts that are written; those of exports that were not `moved` were late."""
        # Once per tick, not per attempt: 0.8 µs each, not 4.
        outcomes = Tally([each.verdict.outcome if each.claim.export_id in moved else LATE for each in attempts])
        for outcome, count in outcomes.items():
            # An outcome outside OUTCOMES must not fail the tick that has just been written.
            self._add.get(outcome, _nothing)(count)
        self._seconds.observe_all([each.outcome.timings.total_ms / 1000 for each in attempts])


class _Seconds(Histogram):
    """A histogram that takes many observations at once."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe amounts as `observe` would each: into the first bucket that holds it, and into the sum."""
        self._sum.inc(sum(amounts))
        for place, count in Tally([bisect_left(self._upper_bounds, amount) for amount in amounts]).items():
            self._buckets[place].inc(count)


def _nothing(_count: float) -> None:
    """Count nothing."""


def serve(bind: str, data_dir: Path) -> int:
    """Serve the counts of all workers with this DATA_DIR at `bind` (HOST:PORT), on threads; return the port.

    Raises OSError if the address cannot be bound.
    """
    host, _, port = bind.rpartition(":")
    registry = CollectorRegistry()
    registry.register(_WorkerCounts(data_dir))
    server = _MetricsServer((host.strip("[]"), int(port)), _MetricsHandler)
    server.set_app(_only_metrics(make_wsgi_app(registry)))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server.server_port


class _WorkerCounts(Collector):
    """Collects the counts at most once in PAGE_FOR_S, however often it is scraped."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._collected: list[Metric] = []
        self._valid_until = 0.0

    def collect(self) -> Iterable[Metric]:
        if time.monotonic() >= self._valid_until:
            self._collected = [metrics.build_info(), *metrics.counted(self._data_dir, [ProcessKind.WORKER])]
            self._valid_until = time.monotonic() + PAGE_FOR_S
        return self._collected

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance, so that registering reads no files."""
        return []


def _only_metrics(pages: "WSGIApplication") -> "WSGIApplication":
    """Return an application that answers `GET /metrics` alone: prometheus_client's answers on every path."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            # wsgiref's own Server header would name versions.
            return start_response(status, [*headers, ("Server", "riskrelay")], *rest)

        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"] == "/metrics":
            return pages(environ, start)
        status = "404 Not Found" if environ["REQUEST_METHOD"] == "GET" else "501 Not Implemented"
        start(status, [("Content-Type", "text/plain")])
        return [b"Error response: only GET /metrics is served here.\n"]

    return app


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a few connections at once; beyond the limit, a new connection ends the oldest one."""

    daemon_threads = True
    #: Connections above the limit wait for a moment, not until the kernel tries again.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._connections: deque[Any] = deque()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for the host's name, as WSGIServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # of an internet address
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        if len(self._connections) > _MAX_CONNECTIONS:
            with suppress(OSError):  # the client has just closed it
                self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):  # a newer connection has ended it
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no stack for clients that hang up, as Python would."""
        _log.debug("scrape interrupted")


class _MetricsHandler(WSGIRequestHandler):
    """Refuses malformed requests without repeating them."""

    timeout = _REQUEST_TIMEOUT_S

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond with the status alone: Python's text would repeat the request line, in head and body."""
        super().send_error(code)

    def version_string(self) -> str:
        """Name no versions."""
        return "riskrelay"

    def log_message(self, *_: Any) -> None:
        """Log no scrapes, whose paths and clients are private."""
