"""The counters of all processes add up, including those of a killed process; an error in counting ends no process."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import Metric

from runtime import metrics
from runtime.metrics import RESERVED_BYTES, ProcessKind

ROOT = Path(__file__).resolve().parents[2]

#: Counts as often as each line of its standard input says, and prints "done" after each line; exits when its input ends.
COUNTING = """
import logging, resource, sys
from pathlib import Path
logging.basicConfig(format="%(message)s")
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
from runtime import metrics
is_open = metrics.open_files(Path(sys.argv[1]), metrics.ProcessKind(sys.argv[2]))
from prometheus_client import Counter, Histogram
seen = Counter("riskrelay_seen_total", "Seen.", ("what",), registry=None)
took = Histogram("riskrelay_took_seconds", "Took.", buckets=(1, 2), registry=None)
print("open" if is_open else "shut", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        seen.labels("this").inc()
        took.observe(1.5)
    print("done", flush=True)
"""


class Counting:
    """A child process that counts."""

    def __init__(self, folder: Path, role: ProcessKind = ProcessKind.SERVICE, *limits: int) -> None:
        words = [sys.executable, "-c", COUNTING, str(folder), role.value, *map(str, limits)]
        self.process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.is_open = self._state() == "open"

    def count(self, times: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{times}\n")
        self.process.stdin.flush()
        assert self._state() == "done"

    def kill(self) -> str:
        """Kill the process as a crash would; return what it logged."""
        self.process.kill()
        return self.process.communicate()[1]

    def _state(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def counting(folder: Path, role: ProcessKind = ProcessKind.SERVICE, *limits: int) -> Iterator[Counting]:
    process = Counting(folder, role, *limits)
    try:
        yield process
    finally:
        process.kill()


def values(found: list[Metric]) -> dict[str, float]:
    """Return the samples by name, those of buckets by name and bound."""
    samples = [sample for metric in found for sample in metric.samples]
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in samples}


def total_of(folder: Path, *roles: ProcessKind) -> float | None:
    return values(metrics.counted(folder, roles or ProcessKind)).get("riskrelay_seen_total")


def test_counts_of_all_processes_and_roles_add_up(tmp_path: Path) -> None:
    with counting(tmp_path) as one, counting(tmp_path) as two, counting(tmp_path, ProcessKind.WORKER) as worker:
        for process, times in ((one, 3), (two, 4), (worker, 5)):
            process.count(times)
        assert total_of(tmp_path, ProcessKind.SERVICE) == 7
        assert total_of(tmp_path, ProcessKind.WORKER) == 5
        # A bucket of a histogram counts the values up to its bound.
        assert values(metrics.counted(tmp_path, [ProcessKind.SERVICE])) == {
            "riskrelay_seen_total": 7,
            "riskrelay_took_seconds_bucket1.0": 0,
            "riskrelay_took_seconds_bucket2.0": 7,
            "riskrelay_took_seconds_bucket+Inf": 7,
            "riskrelay_took_seconds_count": 7,
            "riskrelay_took_seconds_sum": 10.5,
        }


def test_counts_of_ended_processes_continue_in_their_files_while_another_process_lives(tmp_path: Path) -> None:
    with counting(tmp_path) as living:
        living.count(1)
        for times in (10, 100, 1000):
            with counting(tmp_path) as dying:
                dying.count(times)
        with counting(tmp_path):
            found = values(metrics.counted(tmp_path, [ProcessKind.SERVICE]))
            files = sorted(file.name.partition("_")[0] for file in (tmp_path / "metrics" / "service").glob("*.db"))

    assert found["riskrelay_seen_total"] == 1111
    assert found["riskrelay_took_seconds_bucket2.0"] == found["riskrelay_took_seconds_count"] == 1111
    assert found["riskrelay_took_seconds_sum"] == 1666.5
    # Two processes live, so there are two files of each kind: each new process reuses the files of a dead one.
    assert files == ["counter"] * 2 + ["histogram"] * 2


def test_counts_start_at_0_if_no_process_of_the_role_is_alive(tmp_path: Path) -> None:
    with counting(tmp_path, ProcessKind.WORKER) as worker, counting(tmp_path) as service:
        worker.count(2)
        service.count(3)
        service.kill()
        # The counts of a role last until its next process starts; counts of other roles are not affected.
        assert (total_of(tmp_path, ProcessKind.SERVICE), total_of(tmp_path, ProcessKind.WORKER)) == (3, 2)
        with counting(tmp_path) as next_one:
            next_one.count(1)
            assert (total_of(tmp_path, ProcessKind.SERVICE), total_of(tmp_path, ProcessKind.WORKER)) == (1, 2)


def test_processes_that_start_and_end_at_once_lose_no_counts(tmp_path: Path) -> None:
    with counting(tmp_path) as living:
        living.count(1)
        for _ in range(3):
            with ThreadPoolExecutor(4) as pool:
                some = list(pool.map(Counting, [tmp_path] * 4))
            for each in some:
                each.count(5)
            for each in some:
                each.kill()
        assert total_of(tmp_path) == 61


def test_a_damaged_file_is_deleted_by_the_next_process(tmp_path: Path) -> None:
    with counting(tmp_path) as living:
        living.count(2)
        folder = tmp_path / "metrics" / "service"
        for number, content in enumerate((b"", b"\xff" * 4096, b"\x40\0\0\0\0\0\0\0\x08\0\0\0not json" + b" " * 100)):
            (folder / f"counter_{number}-ab.db").write_bytes(content)
        assert metrics.counted(tmp_path, ProcessKind) == []
        with counting(tmp_path) as next_one:
            next_one.count(1)
            assert total_of(tmp_path) == 3


def test_a_folder_that_is_not_writable_is_logged_once_and_nothing_is_counted(tmp_path: Path) -> None:
    # A file in place of the folder, because root may write to any folder.
    (tmp_path / "metrics").write_text("")
    process = Counting(tmp_path)
    process.count(3)
    logged = process.kill()

    assert not process.is_open
    assert logged.count("metrics are not counted") == 1
    assert metrics.counted(tmp_path, ProcessKind) == []


def test_a_full_disk_is_detected_before_files_are_mapped(tmp_path: Path) -> None:
    """Space is reserved at the start: on a full disk, a write to a mapped page would kill the process."""
    process = Counting(tmp_path, ProcessKind.SERVICE, RESERVED_BYTES["counter"] - 1)
    process.count(3)
    logged = process.kill()

    assert not process.is_open
    assert "metrics are not counted" in logged
    assert [file.name for file in (tmp_path / "metrics" / "service").iterdir()] == ["lock"]


def test_the_space_of_each_file_is_reserved_on_the_disk(tmp_path: Path) -> None:
    with counting(tmp_path):
        files = list((tmp_path / "metrics" / "service").glob("*.db"))
        assert {file.stat().st_size for file in files} == set(RESERVED_BYTES.values())
        assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in files)


def test_metrics_files_are_private(tmp_path: Path) -> None:
    with counting(tmp_path / "data"):
        found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
        assert {path.stat().st_mode & 0o077 for path in found} == {0}


def test_a_page_is_in_prometheus_text_format() -> None:
    page = metrics.exposition(
        [metrics.gauge("up", "Seen.", value=True), metrics.gauges("of", "By kind.", "kind", {"a": 1, "b": 0.5})]
    )
    assert page.decode().splitlines() == [
        "# HELP riskrelay_up Seen.",
        "# TYPE riskrelay_up gauge",
        "riskrelay_up 1.0",
        "# HELP riskrelay_of By kind.",
        "# TYPE riskrelay_of gauge",
        'riskrelay_of{kind="a"} 1.0',
        'riskrelay_of{kind="b"} 0.5',
    ]
