"""Samples the product's processes: memory, descriptors, threads; and row counts.

Processes are identified by role, so a restarted one continues its predecessor's series. Growth is checked in runs without
kills: after a warm-up, the second half is compared with the first.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, Final

from soak.installation import SoakInstallation
from storage.db.engine import OUTAGES, connection, is_sqlite, rows
from storage.db.models import ALL

_KIB_TO_MB: Final = 1024 / 1e6
#: Counting rows reads whole indexes, so only one sample of this many includes it.
_ROWS_EVERY: Final = 6
#: Share of the samples that are ignored: meanwhile caches fill, pools open, and the allocator reaches its size.
_WARM_UP: Final = 0.25
#: Fewer samples show no trend above the noise.
_MIN_POINTS: Final = 8
#: Allowed difference between the halves of a run for flat memory, descriptors and threads.
_FLAT_SHARE: Final = 0.05
_FLAT: Final = {"pss_mb": 2.0, "rss_mb": 4.0, "descriptors": 6.0, "threads": 2.0}

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend of one figure of one process: medians of both halves after the warm-up, and the slope."""

    process: str
    figure: str
    first: float
    second: float
    slope_per_hour: float
    highest: float

    @property
    def is_flat(self) -> bool:
        """Return whether the second half exceeds the first by no more than noise."""
        return self.second - self.first <= max(_FLAT[self.figure], self.first * _FLAT_SHARE)


class Sampler(threading.Thread):
    """Takes a sample every few seconds until stopped."""

    def __init__(self, installation: SoakInstallation, every_s: float, done: Callable[[], int]) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self._installation = installation
        self._every_s = every_s
        self._done = done
        self._stop_requested = threading.Event()
        self._began_at = time.monotonic()

    def run(self) -> None:
        """Sample until stopped."""
        number = 0
        while True:
            self.samples.append(self._sample(with_rows=number % _ROWS_EVERY == 0))
            number += 1
            if self._stop_requested.wait(self._every_s):
                return

    def stop(self) -> None:
        """Stop after a last full sample."""
        self._stop_requested.set()
        self.join()
        self.samples.append(self._sample(with_rows=True))

    def _sample(self, *, with_rows: bool) -> Sample:
        sample: Sample = {"s": round(time.monotonic() - self._began_at, 1), "done": self._done(), "processes": {}}
        for name, pid in self._installation.product_processes():
            figures = _figures(pid)
            if figures is not None:
                sample["processes"][name] = figures
        return {**sample, "database": _database()} if with_rows else sample


def _figures(pid: int) -> dict[str, float] | None:
    """Return a process's current figures; None if it has exited."""
    try:
        rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
        threads = _fields(Path(f"/proc/{pid}/status"))["Threads:"]
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return {
            "rss_mb": round(rollup["Rss:"] * _KIB_TO_MB, 2),
            "pss_mb": round(rollup["Pss:"] * _KIB_TO_MB, 2),
            "descriptors": descriptors,
            "threads": threads,
        }
    except (OSError, KeyError):
        return None


def _fields(path: Path) -> dict[str, int]:
    found = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in found if len(words) > 1 and words[1].isdigit()}


def _database() -> dict[str, Any] | None:
    try:
        with connection():
            counted = {table: rows(f"SELECT COUNT(*) FROM {table}")[0][0] for table in _TABLES}  # noqa: S608 - our own names
            return {"bytes": _bytes(), "rows": {table: count for table, count in counted.items() if count}}
    except OUTAGES:
        return None


_TABLES: Final = [str(model._meta.table_name) for model in ALL]


def _bytes() -> int:
    if is_sqlite():
        return int(rows("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")[0][0])
    return int(rows("SELECT pg_database_size(current_database())")[0][0])


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Return the trend of each figure of each process that has enough samples."""
    series: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    warm = samples[int(len(samples) * _WARM_UP) :]
    for sample in warm:
        for process, figures in sample["processes"].items():
            for figure, value in figures.items():
                series[process, figure].append((sample["s"], value))
    return [_trend(*key, points) for key, points in series.items() if len(points) >= _MIN_POINTS]


def _trend(process: str, figure: str, points: Sequence[tuple[float, float]]) -> Trend:
    half = len(points) // 2
    slope, _ = linear_regression([s / 3600 for s, _ in points], [value for _, value in points])
    return Trend(
        process,
        figure,
        median(value for _, value in points[:half]),
        median(value for _, value in points[half:]),
        round(slope, 3),
        max(value for _, value in points),
    )


def growing(found: Iterable[Trend]) -> list[Trend]:
    """Return the trends that are not flat."""
    return [trend for trend in found if not trend.is_flat]
