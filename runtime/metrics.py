"""Metrics: what processes count, in files under DATA_DIR/metrics that add up over all processes of a role.

Like logs they are what both doors ask of the outside, so they stand here. The files are those of prometheus_client's
multiprocess mode, and this module does what that leaves to others: names that no second process has, though in containers
every process may have the same number; room on the disk before it is written to, because a write to a mapped file that the
disk has no room for ends the process; and what the dead have counted, which goes on in one file when the next process of
their role starts. Where none of a role lives, everything begins at 0.

A folder that cannot be written to keeps nobody from answering or delivering: nothing is counted then, and a line says so.
"""

import fcntl
import logging
import os
import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from schemas.version import VERSION

#: What every Prometheus reads.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "riskrelay_"
#: How long a page is good for: shorter than any interval of scraping, so that no scrape sees less than the one before.
PAGE_FOR_S: Final = 1.0

#: Room for each kind of metric in each process: more than all series that the labels allow
#: (tests/service/http/test_metrics.py).
RESERVED_BYTES: Final[Mapping[str, int]] = {"counter": 256 * 1024, "histogram": 256 * 1024}
#: What the dead have counted, in place of a process's name, which has a hyphen.
_THE_DEAD: Final = "dead"
#: A reading or a start takes milliseconds; who waits longer waits for a process that stands still.
_TURN_WITHIN_S: Final = 1.0
_ASK_AGAIN_S: Final = 0.005

#: What bytes that nobody of ours has written lead to.
_DAMAGED: Final = (struct.error, ValueError, TypeError, RuntimeError)

#: Keeps the locks on this process's files, by which the others know that it lives.
_held_open: Final[list[int]] = []

_log: Final = logging.getLogger(__name__)


class Role(StrEnum):
    """Whose counts they are; each role has a folder."""

    SERVICE = "service"
    WORKER = "worker"


def open_files(data_dir: Path, role: Role) -> bool:
    """Let what this process counts from now on be seen; tell whether it will be.

    Call it before the first counter is made, once a process and not before a fork.
    """
    folder = data_dir / "metrics" / role
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _make_folders(data_dir, folder)
        with _turn(folder, fcntl.LOCK_EX):
            _settle(folder)
            _held_open.extend(_reserved(folder, kind, name) for kind in RESERVED_BYTES)
    except OSError as failed:
        _log.warning("metrics are not counted: their folder cannot be written to", extra={"error": type(failed).__name__})
        return False
    # prometheus_client looks here whenever it opens a file.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: name)
    return True


def counted(data_dir: Path, roles: Iterable[Role]) -> list[Metric]:
    """Return what all processes of these roles have counted, as far as it can be read."""
    return [metric for role in roles for metric in _counted(data_dir / "metrics" / role)]


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(list(metrics)))
    return generate_latest(registry)


def gauge(name: str, told: str, value: float) -> Metric:
    """Return one figure as a metric."""
    return GaugeMetricFamily(PREFIX + name, told, value=float(value))


def gauges(name: str, told: str, label: str, by_label: Mapping[str, float]) -> Metric:
    """Return a figure for each value of one label as a metric."""
    family = GaugeMetricFamily(PREFIX + name, told, labels=(label,))
    for known, value in by_label.items():
        family.add_metric([known], float(value))
    return family


def build_info() -> Metric:
    """Return the version that runs here as a metric."""
    return gauges("build_info", "1, labelled with the version.", "version", {VERSION: 1})


class _Collected(Collector):
    """What was collected already, in the form that prometheus_client writes out."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counted(folder: Path) -> list[Metric]:
    if not folder.is_dir():
        return []
    try:
        with _turn(folder, fcntl.LOCK_SH):
            return _merged(folder.glob("*.db"), accumulate=True)
    except OSError as failed:
        _log.warning("metrics cannot be read", extra={"error": type(failed).__name__})
        return []


@contextmanager
def _turn(folder: Path, kind: int) -> Iterator[None]:
    """Keep the set of files as it is while it is read, or to oneself while it changes. Raises TimeoutError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        gives_up_at = time.monotonic() + _TURN_WITHIN_S
        # Asleep between two tries, so that the other greenlets of a service go on.
        while not _is_locked(descriptor, kind):
            if time.monotonic() > gives_up_at:
                raise TimeoutError
            time.sleep(_ASK_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_folders(data_dir: Path, folder: Path) -> None:
    # Each with its mode: parents that mkdir makes by the way are everybody's to read.
    for each in (data_dir, folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)


def _settle(folder: Path) -> None:
    """Put the dead's counts into one file, or begin anew where nobody lives; the caller has the turn.

    Who is killed between the two last steps has counted twice what the dead left: too much once, never too little.
    """
    for unfinished in folder.glob("*.new"):
        unfinished.unlink()
    gone = [file for file in folder.glob("*.db") if _is_of_the_dead(file)]
    if len(gone) < len(list(folder.glob("*.db"))):
        for kind in RESERVED_BYTES:
            _fold(folder, kind, [file for file in gone if file.name.startswith(kind)])
        gone = [file for file in gone if not _is_sum(file)]
    for file in gone:
        file.unlink()


def _is_of_the_dead(file: Path) -> bool:
    """Tell whether nobody holds a file; the kernel lets go of it for whoever ends, however that happens."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _is_locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _is_sum(file: Path) -> bool:
    return file.stem.partition("_")[2] == _THE_DEAD


def _fold(folder: Path, kind: str, files: Sequence[Path]) -> None:
    if all(_is_sum(file) for file in files):
        return
    merged = _merged(files, accumulate=False)
    beside = folder / f"{kind}_{_THE_DEAD}.new"
    _allocate(beside, RESERVED_BYTES[kind])
    sums = MmapedDict(str(beside))
    for metric in merged:
        for sample in metric.samples:
            key = mmap_key(metric.name, sample.name, list(sample.labels), list(sample.labels.values()), metric.documentation)
            sums.write_value(key, sample.value, 0.0)
    sums.close()
    beside.replace(beside.with_suffix(".db"))


def _merged(files: Iterable[Path], *, accumulate: bool) -> list[Metric]:
    """Return the sums of what stands in files; one that is damaged does not hide the rest."""
    names = [str(file) for file in files]
    try:
        return list(MultiProcessCollector.merge(names, accumulate))
    except _DAMAGED:
        return list(MultiProcessCollector.merge([name for name in names if _is_legible(name)], accumulate))


def _is_legible(name: str) -> bool:
    try:
        MultiProcessCollector.merge([name], accumulate=False)
    except _DAMAGED as damaged:
        _log.warning("a file of metrics is damaged and left out", extra={"error": type(damaged).__name__})
        return False
    return True


def _reserved(folder: Path, kind: str, name: str) -> int:
    """Make a file with room for everything, and return the descriptor by which this process holds it."""
    path = folder / f"{kind}_{name}.db"
    beside = path.with_suffix(".new")
    _allocate(beside, RESERVED_BYTES[kind])
    descriptor = os.open(beside, os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    beside.replace(path)
    return descriptor


def _allocate(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)
