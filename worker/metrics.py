"""Counts attempts, and serves the counts on a worker host that has no service.

`work` starts the server once for all its processes, at WORKER_METRICS_BIND. It exposes no metrics of the database; the
service does.
"""

import logging
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, start_http_server
from prometheus_client.registry import Collector

from runtime import metrics
from runtime.metrics import PREFIX, ProcessKind
from schemas.exports.delivery import DELIVERED, CompletedAttempt

#: From a receiver on the same network to the deadline of 15 s; a longer attempt has also waited for a thread.
DELIVERY_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
#: An attempt whose lease expired before its result was written: it was made, and another worker has the export.
LATE: Final = "late"
#: The outcomes of an attempt (`worker.delivery.outcomes`).
OUTCOMES: Final = (DELIVERED, "retryable", "rejected", "refused", "exhausted", LATE)

#: A scrape sends one line and a few headers.
_REQUEST_TIMEOUT_S: Final = 5

_log: Final = logging.getLogger(__name__)


class Attempts:
    """Counts attempts by outcome; an error in counting affects no delivery.

    `registry` is for tests; counters in files need none.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._total = Counter(f"{PREFIX}attempts_total", "Attempts by outcome.", ("outcome",), registry=registry)
        self._seconds = _Seconds(
            f"{PREFIX}delivery_seconds", "Seconds an attempt took.", buckets=DELIVERY_BUCKETS_S, registry=registry
        )
        # All outcomes from the start: one that has not occurred is 0, not absent.
        for outcome in OUTCOMES:
            self._total.labels(outcome)

    def count(self, attempts: Sequence[CompletedAttempt], moved: Collection[str]) -> None:
        """Count attempts that are written; an attempt was late if its export is not in `moved`."""
        # Counting once per tick takes 0.8 µs per attempt; counting each attempt alone takes 4 µs.
        outcomes = Tally([each.verdict.outcome if each.claim.export_id in moved else LATE for each in attempts])
        for outcome, count in outcomes.items():
            self._total.labels(outcome).inc(count)
        self._seconds.observe_all([each.outcome.timings.total_ms / 1000 for each in attempts])


class _Seconds(Histogram):
    """A histogram that takes many observations at once."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe each amount as `observe` does: count it in the first bucket that holds it, and add it to the sum."""
        self._sum.inc(sum(amounts))
        for place, count in Tally([bisect_left(self._upper_bounds, amount) for amount in amounts]).items():
            self._buckets[place].inc(count)


def serve(bind: str, data_dir: Path) -> int:
    """Serve the counts of all workers with this DATA_DIR at `bind` (HOST:PORT), on threads; return the port.

    Raises OSError if the address cannot be bound.
    """
    host, _, port = bind.rpartition(":")
    registry = CollectorRegistry()
    registry.register(_WorkerCounts(data_dir))
    started: tuple[Any, Any] = start_http_server(int(port), host.strip("[]"), registry)
    server, _ = started
    # Each connection has a thread: without a timeout, the threads of disconnected clients would never end.
    limited = {"timeout": _REQUEST_TIMEOUT_S}
    server.RequestHandlerClass = type("MetricsHandler", (server.RequestHandlerClass,), limited)
    # By default, Python prints a stack trace with the client's address.
    server.handle_error = lambda *_: _log.debug("scrape interrupted")
    return int(server.server_port)


class _WorkerCounts(Collector):
    """The counts of all workers with this DATA_DIR."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def collect(self) -> Iterable[Metric]:
        return [metrics.build_info(), *metrics.counted(self._data_dir, [ProcessKind.WORKER])]
