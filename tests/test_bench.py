"""The benchmark: the arithmetic of its figures, the names that it always writes, and the cleanup of its processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from bench import __main__ as bench
from bench.deliveries import trackers
from bench.figures import Extent, Figure, flat, print_figures, ratio
from bench.requests import postbacks
from bench.requests.rates import service_environment
from storage.accounts.account_limits import Limited

ROOT: Final = Path(__file__).resolve().parent.parent

#: Names of figures in bench/latest.json that must not disappear.
PROMISED: Final = {
    "delivery_vs_stock_rq",
    "delivery_vs_celery",
    "delivery_vs_session_post",
    "delivery_vs_prepared",
    "delivery_50ms_per_s",
    "postgres_vs_sqlite",
    "status_vs_bare",
    "status_vs_raw_sql",
    "not_modified_vs_bare",
    "not_modified_vs_raw_sql",
    "postback_vs_bare",
    "postback_vs_raw_sql",
    "postback_100_vs_raw_sql",
    "approval_per_s",
    "approval_vs_bare",
    "approval_vs_raw_sql",
    "submission_cpu_ms",
    "postgresql_submission_cpu_ms",
    "submit_to_arrival_p50_ms",
    "submit_to_arrival_p99_ms",
    "postgresql_submit_to_arrival_p50_ms",
    "postgresql_submit_to_arrival_p99_ms",
    "backlog_100k_s",
    "bulk_approval_per_s",
    "list_1e6_ms",
    "search_1e6_ms",
    "rows_1e6_vs_1e3",
    "slow_clients_p99_ms",
    "hostile_bodies_slowest_ms",
    "idle_memory_mb",
    "loaded_memory_mb",
}

STARTED_WITHIN_S: Final = 60.0
GONE_WITHIN_S: Final = 60.0

# the values, the aim, whether lower is better; the median, and whether the aim is met
MEDIANS: Final = [
    ([3.0], None, False, 3.0, None),  # has no aim
    ([], 1.0, False, None, None),  # not measured
    ([1.0, 9.0, 2.0], 2.0, False, 2.0, True),  # the median, not the mean; equal to the aim is enough
    ([1.0, 2.0], 2.0, False, 1.5, False),  # the mean of the two middle values
    ([30.0, 50.0, 40.0], 40.0, True, 40.0, True),  # equal to the maximum
    ([41.0], 40.0, True, 41.0, False),  # over the maximum
]


@pytest.mark.parametrize(("values", "aim", "is_cost", "median", "is_met"), MEDIANS)
def test_the_median_of_all_rounds_is_compared_with_the_aim(
    values: list[float], aim: float | None, is_cost: bool, median: float | None, is_met: bool | None
) -> None:
    figure = Figure("some_figure", values, "x", aim, is_cost)
    assert (figure.median, figure.is_met) == (median, is_met)


def test_a_ratio_is_computed_for_each_round() -> None:
    # The ratio is the same if the machine is half as fast in the second round.
    assert ratio("a_vs_b", [20.0, 10.0], [10.0, 5.0]).values == [2.0, 2.0]


def test_a_ratio_of_different_numbers_of_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio("a_vs_b", [20.0, 10.0], [10.0])


def test_written_figures_are_flat_rounded_and_complete() -> None:
    figures = [Figure("found", [1234.5678, 1234.9], "/s"), Figure("missing", [], "x")]
    assert flat(figures, ["found", "promised"]) == {"found": 1235.0, "missing": None, "promised": None}


def test_the_table_shows_median_spread_and_aim(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures("some", [Figure("fast", [2.0, 1.0, 3.0], "x", 2.5), Figure("slow", [20.0], "ms", 50.0, is_cost=True)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert rows[1:] == [
        ["fast", "2", "1", "3", "x", "at", "least", "2.5", "missed"],
        ["slow", "20", "20", "20", "ms", "at", "most", "50", "met"],
    ]


def test_every_promised_name_is_declared_once_by_a_section() -> None:
    declared = [name for parts in bench.SECTIONS.values() for part in parts for name in part.promised]
    assert set(declared) >= PROMISED
    assert len(declared) == len(set(declared))


def test_the_benchmark_raises_every_account_limit(tmp_path: Path) -> None:
    # By default, an account may have fewer targets than requests create within two seconds.
    made = service_environment(tmp_path)
    assert {each.value: made.get(each.value) for each in Limited} == {each.value: "100000000" for each in Limited}


def test_postbacks_are_measured_in_both_groupings() -> None:
    figures = {figure.name: figure for figure in postbacks.measure(Extent.QUICK)}
    cases = ("500_new", "500_seen", "site")
    assert figures.keys() == {f"postback_{case}_{grouping}_cpu_ms" for case in cases for grouping in ("finding", "rule")}
    assert all(figure.is_cost and min(figure.values) > 0 for figure in figures.values())


def test_issues_are_created_once_without_a_lookup() -> None:
    found = trackers.created("sqlite", 100)
    assert found["creates_per_s"] > 0
    assert found["lookups"] == 0


def test_a_failed_part_leaves_null_and_the_other_parts_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "latest.json"
    assert (
        bench.run({"odd": (_part(_fails, "lost"), _part(_finds, "found"))}, ["odd"], Extent.QUICK, into, STARTED_WITHIN_S)
        == 1
    )
    output = json.loads(into.read_text())
    assert (output["lost"], output["found"], output["is_quick"]) == (None, 7.0, True)
    assert "The receiver is gone." in capsys.readouterr().err


def test_an_unmeasured_figure_is_reported_and_is_not_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "latest.json"
    parts = (_part(_finds, "found", "needs_a_tool"),)
    assert (
        bench.run({"odd": parts, "not asked for": (_part(_fails, "later"),)}, ["odd"], Extent.FULL, into, STARTED_WITHIN_S)
        == 0
    )
    output = json.loads(into.read_text())
    assert (output["needs_a_tool"], output["later"], output["is_quick"]) == (None, None, False)
    assert "needs_a_tool" in capsys.readouterr().err


def test_a_hanging_part_fails_at_its_time_limit_and_cleans_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cleaned: list[str] = []

    def hangs(_: Extent) -> list[Figure]:
        try:
            time.sleep(STARTED_WITHIN_S)
        finally:
            cleaned.append("up")
        return []

    part = bench.Part(hangs, ["lost"], {Extent.QUICK: 0.05})
    assert bench.run({"odd": (part,)}, ["odd"], Extent.QUICK, tmp_path / "latest.json", STARTED_WITHIN_S) == 1
    assert cleaned == ["up"]
    assert "longer than 0.05 s" in capsys.readouterr().err


def test_a_part_without_remaining_time_is_reported_as_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "latest.json"
    assert bench.run({"odd": (_part(_finds, "found"),)}, ["odd"], Extent.QUICK, into, total_s=0) == 1
    assert json.loads(into.read_text())["found"] is None
    assert "took all the time" in capsys.readouterr().err


def test_an_unknown_section_is_refused() -> None:
    text = subprocess.run([*_COMMAND, "--only", "deliveries,pears"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert text.returncode == 2
    assert "pears" in text.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path, for the socket of a Redis. The paths of pytest's folders are too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_no_process_folder_or_record_remains(tmp_path: Path, folder: Path, number: signal.Signals) -> None:
    into = tmp_path / "latest.json"
    words = [*_COMMAND, "--quick", "--only", "starting", "--into", str(into)]
    with (tmp_path / "said").open("wb") as actual:
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, stdout=actual, stderr=actual, start_new_session=True
        )
    try:
        # The receiver, the supervisor, its Redis, a worker and the service.
        started = _wait_for_descendants(process, 5, tmp_path / "said")
        process.send_signal(number)
        assert process.wait(GONE_WITHIN_S) != 0
    finally:
        process.kill()
        process.wait()
    assert [pid for pid in started if _is_alive(pid)] == []
    assert list(folder.iterdir()) == []
    assert not into.exists()


_COMMAND: Final = (sys.executable, "-m", "bench")


def _part(measure: bench.Measure, *promised: str) -> bench.Part:
    return bench.Part(measure, promised, dict.fromkeys(Extent, STARTED_WITHIN_S))


def _fails(_: Extent) -> list[Figure]:
    raise AssertionError("The receiver is gone.")


def _finds(_: Extent) -> list[Figure]:
    return [Figure("found", [7.0], "/s")]


def _wait_for_descendants(process: subprocess.Popen[bytes], count: int, said: Path) -> Sequence[int]:
    until = time.monotonic() + STARTED_WITHIN_S
    while len(found := _descendants(process.pid)) < count:
        assert process.poll() is None, f"It ended before it was asked to: {said.read_text()}"
        assert time.monotonic() < until, (found, said.read_text())
        time.sleep(0.05)
    return found


def _descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    children: list[int] = []
    for output in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(word) for word in output.read_text().split()]
        except OSError:  # the thread has ended meanwhile
            continue
    return [found for child in children for found in (child, *_descendants(child))]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # the process has ended
        return False
