"""Metrics: counters of processes, in files under DATA_DIR/metrics that are summed over all processes of a role.

The files are those of prometheus_client's multiprocess mode. This module adds what that mode lacks: unique file names,
since in containers every process may have the same id; allocated disk space, because a write to a mapped file on a full disk
kills the process; and the counts of an ended process, which the next process of its role continues in the same files. If no
process of a role runs, its counters begin at 0.

If the folder cannot be written to, nothing is counted, a warning is logged, and the process works on.
"""

import fcntl
import logging
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from prometheus_client import Metric, generate_latest, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from runtime.files import try_lock
from schemas.version import VERSION

#: The text format that every Prometheus reads.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "riskrelay_"
#: How long a page is reused: shorter than any scrape interval, so that no scrape sees less than the one before.
PAGE_FOR_S: Final = 1.0

#: Bytes for each type of metric in each process: more than all series that the labels allow
#: (tests/service/http/test_metrics.py).
RESERVED_BYTES: Final[Mapping[str, int]] = {"counter": 256 * 1024, "histogram": 256 * 1024}
#: Reading or starting takes milliseconds; a longer wait means that another process is suspended.
_LOCK_WITHIN_S: Final = 1.0
_LOCK_RETRY_S: Final = 0.005

#: Errors of reading a damaged file.
_DAMAGED: Final = (struct.error, ValueError, TypeError, RuntimeError)

_log: Final = logging.getLogger(__name__)


class ProcessKind(StrEnum):
    """The processes that share counters; each kind has a folder."""

    SERVICE = "service"
    WORKER = "worker"


def open_files(data_dir: Path, role: ProcessKind) -> bool:
    """Store this process's counters in files from now on; return whether that is possible.

    Call it before anything is counted, once per process and not before a fork.
    """
    folder = data_dir / "metrics" / role
    try:
        _make_folders(data_dir, folder)
        with _folder_lock(folder, fcntl.LOCK_EX):
            name = _free_name(folder)
            for kind in RESERVED_BYTES:
                _hold(folder, kind, name)
    except OSError as failed:
        _log.warning("metrics are not counted: DATA_DIR/metrics is not writable", extra={"error": type(failed).__name__})
        return False
    # prometheus_client reads this whenever it opens a file.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: name)
    return True


def counted(data_dir: Path, roles: Iterable[ProcessKind]) -> list[Metric]:
    """Return the sums of all processes of these roles, as far as they can be read."""
    return [metric for role in roles for metric in _read_counters(data_dir / "metrics" / role)]


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format."""
    return generate_latest(_Collected(metrics))


def gauge(name: str, documentation: str, value: float) -> Metric:
    """Return one value as a metric."""
    return GaugeMetricFamily(PREFIX + name, documentation, value=float(value))


def gauges(name: str, documentation: str, label: str, by_label: Mapping[str, float]) -> Metric:
    """Return a metric with one value for each value of a label."""
    family = GaugeMetricFamily(PREFIX + name, documentation, labels=(label,))
    for known, value in by_label.items():
        family.add_metric([known], float(value))
    return family


def build_info() -> Metric:
    """Return the running version as a metric."""
    return gauges("build_info", "1, labelled with the version.", "version", {VERSION: 1})


class _Collected(Collector):
    """Metrics that were collected already, as a collector of prometheus_client."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _read_counters(folder: Path) -> list[Metric]:
    if not folder.is_dir():
        return []
    try:
        with _folder_lock(folder, fcntl.LOCK_SH):
            return list(MultiProcessCollector.merge([str(file) for file in folder.glob("*.db")]))
    except (OSError, *_DAMAGED) as failed:
        _log.warning("metrics cannot be read", extra={"error": type(failed).__name__})
        return []


@contextmanager
def _folder_lock(folder: Path, kind: int) -> Iterator[None]:
    """Lock the set of files: LOCK_SH to read it, LOCK_EX to change it. Raises BlockingIOError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Sleep between two attempts, so that the other greenlets of a service can run.
    retrying = Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        stop=stop_after_attempt(round(_LOCK_WITHIN_S / _LOCK_RETRY_S)),
        wait=wait_fixed(_LOCK_RETRY_S),
        reraise=True,
    )
    try:
        retrying(fcntl.flock, descriptor, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _make_folders(data_dir: Path, folder: Path) -> None:
    # One by one, each with its mode: mkdir(parents=True) would create readable parents.
    for each in (data_dir, folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)


def _free_name(folder: Path) -> str:
    """Return the name of an ended process, whose counts this process continues, or a new name; the caller holds the lock.

    If no process runs, all counts are deleted first.
    """
    for unfinished in folder.glob("*.new"):
        unfinished.unlink()
    files = list(folder.glob("*.db"))
    ended = [file for file in files if _has_ended(file)]
    is_alone = len(ended) == len(files)
    for file in ended:
        if is_alone or not _is_whole(file):
            file.unlink()
    left = [file.stem.partition("_")[2] for file in ended if file.exists()]
    return left[0] if left else f"{os.getpid()}-{secrets.token_hex(4)}"


def _has_ended(file: Path) -> bool:
    """Return whether no process holds the lock of a file; the kernel releases it however the process ends."""
    with file.open("r+b") as opened:
        return try_lock(opened)


def _is_whole(file: Path) -> bool:
    """Return whether another process can continue the counts of a file: it is readable, and has all its space."""
    kind, _, _ = file.stem.partition("_")
    return file.stat().st_size >= RESERVED_BYTES[kind] and _is_readable(str(file))


def _is_readable(name: str) -> bool:
    try:
        MultiProcessCollector.merge([name], accumulate=False)
    except _DAMAGED:
        return False
    return True


def _hold(folder: Path, kind: str, name: str) -> None:
    """Lock a file until this process ends, which shows that it runs; a missing file is created with all its space."""
    path = folder / f"{kind}_{name}.db"
    if not path.exists():
        beside = path.with_suffix(".new")
        _allocate(beside, RESERVED_BYTES[kind])
        beside.replace(path)
    # Never closed: the lock belongs to the descriptor.
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)


def _allocate(path: Path, size_bytes: int) -> None:
    """Create a file whose disk space is allocated. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)
