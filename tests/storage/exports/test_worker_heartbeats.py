"""A worker with a recent heartbeat has a rank among the workers; one without has none."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from schemas.base.timestamps import to_ms
from schemas.targets.throttle_state import WorkerShare
from storage.db.engine import connection, rows
from storage.exports import worker_heartbeats
from tests.support.factories import NOW
from tests.support.processes.workers import ROOT


def in_s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_a_single_worker_has_the_whole_share(database: str) -> None:
    assert worker_heartbeats.beat("a", NOW) == WorkerShare(0, 1)
    assert rows("SELECT name, started_at, seen_at FROM workers") == [("a", to_ms(NOW), to_ms(NOW))]


def test_each_worker_has_its_own_position(database: str) -> None:
    for name in ("c", "a", "b"):
        worker_heartbeats.beat(name, NOW)
    assert [worker_heartbeats.beat(name, NOW + in_s(1)) for name in ("a", "b", "c")] == [
        WorkerShare(0, 3),
        WorkerShare(1, 3),
        WorkerShare(2, 3),
    ]


def test_a_worker_that_sends_another_heartbeat_keeps_its_position(database: str) -> None:
    worker_heartbeats.beat("a", NOW)
    assert worker_heartbeats.beat("a", NOW + in_s(2)) == WorkerShare(0, 1)
    assert rows("SELECT started_at, seen_at FROM workers") == [(to_ms(NOW), to_ms(NOW + in_s(2)))]


def test_the_share_of_a_worker_silent_for_a_lease_goes_to_the_others(database: str) -> None:
    worker_heartbeats.beat("a", NOW)
    assert worker_heartbeats.beat("b", NOW + in_s(5.999)) == WorkerShare(1, 2)
    assert worker_heartbeats.beat("b", NOW + in_s(6)) == WorkerShare(0, 1)
    # A worker that was silent and sends a heartbeat again counts again.
    assert worker_heartbeats.beat("a", NOW + in_s(7)) == WorkerShare(0, 2)


def test_the_share_of_a_stopped_worker_is_free_at_once(database: str) -> None:
    worker_heartbeats.beat("a", NOW)
    worker_heartbeats.beat("b", NOW)
    worker_heartbeats.remove("a")
    worker_heartbeats.remove("a")
    assert worker_heartbeats.share("b", NOW) == WorkerShare(0, 1)
    assert rows("SELECT name FROM workers") == [("b",)]


def test_a_worker_without_a_heartbeat_has_a_position_too(database: str) -> None:
    worker_heartbeats.beat("a", NOW)
    assert worker_heartbeats.share("b", NOW) == WorkerShare(1, 2)
    assert worker_heartbeats.share("a", NOW) == WorkerShare(0, 1)


def test_living_workers_delete_the_rows_of_dead_ones(database: str) -> None:
    worker_heartbeats.beat("dead", NOW)
    worker_heartbeats.beat("b", NOW + in_s(600))
    assert rows("SELECT name FROM workers ORDER BY name") == [("b",), ("dead",)]
    worker_heartbeats.beat("b", NOW + in_s(601))
    assert rows("SELECT name FROM workers") == [("b",)]


def test_a_worker_that_was_killed_long_ago_is_neither_recent_nor_living(database: str) -> None:
    worker_heartbeats.beat("dead", NOW)
    assert [each.name for each in worker_heartbeats.list_recent(NOW + in_s(599))] == ["dead"]
    assert worker_heartbeats.list_recent(NOW + in_s(86_400)) == []


def test_after_the_clock_was_set_back_a_later_heartbeat_is_no_living_worker(database: str) -> None:
    here = f"worker:{socket.gethostname()}:1"
    worker_heartbeats.beat(here, NOW)
    assert worker_heartbeats.on_this_host_since_before(NOW + in_s(1), NOW) == [here]
    assert worker_heartbeats.on_this_host_since_before(NOW + in_s(1), NOW - in_s(3600)) == []


def test_simultaneous_heartbeats_give_workers_distinct_positions(database: str) -> None:
    names = [f"worker-{number:02}" for number in range(16)]

    def beat(name: str) -> WorkerShare:
        with connection():
            for second in range(5):
                share = worker_heartbeats.beat(name, NOW + in_s(second))
            return share

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(beat, names))
        assert list(pool.map(beat, names)) == [WorkerShare(rank, 16) for rank in range(16)]


def test_no_two_processes_share_a_name_even_on_hosts_with_equal_names_and_pids() -> None:
    """Containers of one image have process ID 1 and may share a host name."""
    asked = (
        "import os, socket; os.getpid = lambda: 1; socket.gethostname = lambda: 'app'\n"
        "from storage.exports.worker_heartbeats import process_name; print(process_name('worker'), process_name('worker'))"
    )
    reported = [subprocess.check_output([sys.executable, "-c", asked], cwd=ROOT, text=True).split() for _ in range(2)]
    assert [first == again for first, again in reported] == [True, True]
    assert reported[0] != reported[1]
    assert all(first.startswith("worker:app:1:") for first, _ in reported)
