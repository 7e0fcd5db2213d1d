"""`/metrics` in Prometheus' text format: the counters of every process, and figures from the database and Redis.

The route needs no authentication, so no label contains a value that a client or an account chose. To make frequent scrapes
cheap, a response is reused for a second, and one process reads the database's figures for all processes.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import falcon
from prometheus_client import Metric

from runtime import metrics
from runtime.clock import utc_now
from runtime.metrics import PAGE_FOR_S, ProcessKind, gauge, gauges
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.timestamps import from_ms
from schemas.exports.state_machine import ExportStatus
from schemas.settings.definitions import RouteFamily
from storage.db.disk_space import DiskState, free_bytes, state_of
from storage.db.engine import database_folders
from storage.reporting.metrics_snapshot import MetricsSnapshot, SnapshotCache


class MetricsResource:
    """Serves the metrics."""

    path = "/metrics"
    family = RouteFamily.HEALTH

    def __init__(self, data_dir: Path, wake_ups: WakeUpQueue) -> None:
        self._data_dir = data_dir
        self._wake_ups = wake_ups
        self._snapshots = SnapshotCache(data_dir / "metrics" / "snapshot.json")
        self._page = b""
        self._expires_at = 0.0

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 even if the database or Redis is down, without the figures that need it."""
        # No lock: a request that waits for an unresponsive database must not delay other requests.
        if time.monotonic() >= self._expires_at:
            self._page = metrics.exposition(self._metrics())
            self._expires_at = time.monotonic() + PAGE_FOR_S
        resp.content_type = metrics.CONTENT_TYPE
        resp.data = self._page

    on_head = on_get

    def _metrics(self) -> Iterator[Metric]:
        """Yield the current metrics; the counters of the processes come last."""
        now = utc_now()
        yield metrics.build_info()
        yield gauge("redis_up", "Whether Redis responds.", self._wake_ups.is_reachable())
        free = free_bytes([self._data_dir, *database_folders()])
        yield gauge("disk_free_bytes", "Free space of the disk of DATA_DIR, or of SQLite's file.", free)
        yield gauge("disk_full", "Whether a disk has no room to store anything.", state_of(free) is DiskState.FULL)
        figures = self._snapshots.figures(now)
        if figures is not None:
            yield gauge("database_up", "Whether the database responds and can be used.", figures.is_up)
            if figures.is_up:
                yield from _snapshot_metrics(figures, now)
        # Last, so that a response that waited for the database includes what was counted in that time.
        yield from metrics.counted(self._data_dir, ProcessKind)


def _snapshot_metrics(figures: MetricsSnapshot, now: datetime) -> Iterator[Metric]:
    """Return the figures from the database."""
    if figures.exports is not None and figures.exports_at is not None:
        by_status = {status.value: figures.exports.get(status, 0) for status in ExportStatus}
        yield gauges("exports", "Exports by status.", "status", by_status)
        age_s = max(0.0, (now - from_ms(figures.exports_at)).total_seconds())
        yield gauge("exports_age_seconds", "Seconds since the last count of exports by status began.", age_s)
    yield gauge("exports_waiting", "Exports that are due, scheduled or under way.", figures.waiting)
    yield gauge("due_age_seconds", "Seconds by which the oldest export that could be sent is late.", figures.due_age_s)
    yield gauges("targets", "Targets by status.", "status", figures.targets)
    yield gauges("targets_paused", "Targets that temporarily receive nothing, by reason.", "reason", figures.paused)
    yield gauge("workers", "Worker processes with a recent heartbeat.", figures.workers)
    if figures.sweep_lag_s is not None:
        yield gauge("sweep_lag_seconds", "Seconds since a worker last checked what is due.", figures.sweep_lag_s)
    yield gauge("events_waiting", "Events of tickets that are due, scheduled or under way.", figures.events_waiting)
    yield gauge("compliance_overdue", "Compliance requests that are past their legal term.", figures.compliance_overdue)
