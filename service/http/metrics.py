"""`/metrics`: what the processes of this installation have counted, and what there is, for Prometheus.

Open to whoever reaches the address, like the other questions of health, so no label holds anything that a client or an
account chose: routes as they are written in the application, statuses, outcomes. A page is good for a second, and what it
says of the database is read by one process for all: asking often costs little.
"""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import falcon
from prometheus_client import Counter, Histogram, Metric

from runtime import metrics
from runtime.clock import utc_now
from runtime.metrics import PAGE_FOR_S, PREFIX, Role, gauge, gauges
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.timestamps import from_ms
from schemas.exports.state_machine import ExportStatus
from schemas.settings.definitions import RouteFamily
from storage.reporting.metrics_snapshot import MetricsSnapshot, SnapshotCache

#: 5 ms is a read, 20 ms a write, 0.1 s a slow write; 5 s is how long a lock is waited for, and 20 s a ping's worst.
REQUEST_BUCKETS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 5, 20)
#: For a path that is none of ours, and for a request beyond the bound of series.
UNMATCHED: Final = "unmatched"
OTHER: Final = "other"
#: What has a meaning here; a client may make up others.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Series of requests in one process. Each route has a handful; who tries every method on each gets no further.
MAX_SERIES: Final = 600

_log: Final = logging.getLogger(__name__)


class RequestMetrics:
    """Counts what was answered; to count costs a few microseconds, and nothing that goes wrong with it is felt."""

    def __init__(self) -> None:
        self._total = Counter(
            f"{PREFIX}http_requests_total", "Requests answered.", ("method", "route", "status"), registry=None
        )
        self._seconds = Histogram(
            f"{PREFIX}http_request_seconds", "Seconds to an answer.", ("route",), buckets=REQUEST_BUCKETS_S, registry=None
        )
        #: What counts each kind of answer: to look a series up by its labels costs more than to count.
        self._bound: dict[tuple[str, str | None, int], _Series] = {}

    def count(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count one answer; `route` is the template of the application, None for a path that is none of ours."""
        series = self._bound.get((method, route, status)) or self._bind(method, route, status)
        series.add()
        series.observe(seconds)

    def _bind(self, method: str, route: str | None, status: int) -> "_Series":
        if method not in _METHODS:
            # Not kept: a client can make up as many as it likes.
            return self._series(OTHER, UNMATCHED, str(status))
        if len(self._bound) >= MAX_SERIES:
            return self._series(OTHER, UNMATCHED, OTHER)
        return self._bound.setdefault((method, route, status), self._series(method, route or UNMATCHED, str(status)))

    def _series(self, method: str, route: str, status: str) -> "_Series":
        try:
            return _Series(self._total.labels(method, route, status).inc, self._seconds.labels(route).observe)
        except OSError as failed:  # the folder is gone since the start
            _log.warning("requests are not counted", extra={"route": route, "error": type(failed).__name__})
            return _UNCOUNTED


class _Series(NamedTuple):
    """What to call for one kind of answer."""

    add: Callable[[], None]
    observe: Callable[[float], None]


_UNCOUNTED: Final = _Series(lambda: None, lambda _: None)


class MetricsResource:
    """Shows everything in Prometheus' text format."""

    path = "/metrics"
    family = RouteFamily.HEALTH

    def __init__(self, data_dir: Path, wake_ups: WakeUpQueue) -> None:
        self._data_dir = data_dir
        self._wake_ups = wake_ups
        self._snapshots = SnapshotCache(data_dir / "metrics" / "snapshot.json")
        self._page = b""
        self._good_until = 0.0

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 whatever is away; what is not known is left out."""
        # No lock: who waits for a database that does not answer must not keep the others from saying so.
        if time.monotonic() >= self._good_until:
            self._page = metrics.exposition(self._everything())
            self._good_until = time.monotonic() + PAGE_FOR_S
        resp.content_type = metrics.CONTENT_TYPE
        resp.data = self._page

    on_head = on_get

    def _everything(self) -> Iterator[Metric]:
        now = utc_now()
        yield metrics.build_info()
        yield gauge("redis_up", "Whether Redis answers.", self._wake_ups.is_reachable())
        figures = self._snapshots.figures(now)
        if figures is not None:
            yield gauge("database_up", "Whether the database answers and is fit for use.", figures.is_up)
            if figures.is_up:
                yield from _found(figures, now)
        # Last, so that a page that had to wait says what was counted meanwhile.
        yield from metrics.counted(self._data_dir, Role)


def _found(figures: MetricsSnapshot, now: datetime) -> Iterator[Metric]:
    """Return what a look at the database found."""
    if figures.exports is not None and figures.exports_at is not None:
        by_status = {status.value: figures.exports.get(status, 0) for status in ExportStatus}
        yield gauges("exports", "Exports by status.", "status", by_status)
        age_s = max(0.0, (now - from_ms(figures.exports_at)).total_seconds())
        yield gauge("exports_age_seconds", "Since the count of exports by status began.", age_s)
    yield gauge("exports_waiting", "Exports that are due, scheduled or under way.", figures.waiting)
    yield gauge("due_age_seconds", "How late the oldest export is that could be sent.", figures.due_age_s)
    yield gauges("targets", "Targets by status.", "status", figures.targets)
    yield gauges("targets_paused", "Targets that nothing is sent to for now, by reason.", "reason", figures.paused)
    yield gauge("workers", "Worker processes that were seen in the last seconds.", figures.workers)
    if figures.sweep_lag_s is not None:
        yield gauge("sweep_lag_seconds", "Since any worker last looked for what is due.", figures.sweep_lag_s)
    yield gauge("compliance_overdue", "Compliance requests that are past their legal term.", figures.compliance_overdue)
