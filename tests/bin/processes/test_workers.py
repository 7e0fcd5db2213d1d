"""Several workers: forked from one process, so that they share memory; they end together, however they end."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from bin.processes.workers import worker_command
from storage.db.engine import close_database, connection, open_database, rows
from tests.support.processes.workers import CountingReceiver, StartedWorker, all_are, approved, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

COUNT: Final = 2
#: Pages that two workers share, in KiB: most of what they import. Workers that are started one by one share the files only.
SHARED_KIB: Final = 15 * 1024


class Workers(StartedWorker):
    """Two workers and their supervisor, whose process this is."""

    command = tuple(worker_command(COUNT))

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in listed.split()]


@pytest.fixture
def workers(tmp_path: Path, sqlite_url: str, redis: RedisServer) -> Iterator[Workers]:
    open_database(sqlite_url)
    with Workers(tmp_path / "workers", sqlite_url, redis.url) as started, connection():
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(COUNT,)], 30)
        yield started
    close_database()


def are_gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(Path("/proc", str(pid)).exists() for pid in pids)


def shared_kib(pid: int) -> int:
    """Return how much memory without a file a process shares with others."""
    found = 0
    has_file = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            has_file = len(words) > 4 and words[4].startswith("/")
        elif name in {"Shared_Clean:", "Shared_Dirty:"} and not has_file:
            found += int(words[0])
    return found


def test_workers_deliver_and_share_what_they_import(workers: Workers, receiver: CountingReceiver) -> None:
    approved(receiver.url(), 20)
    wait_until(all_are("exported"), 30)
    assert len(workers.pids()) == COUNT
    for pid in workers.pids():
        assert shared_kib(pid) > SHARED_KIB


def test_a_signal_stops_all_workers(workers: Workers) -> None:
    pids = workers.pids()
    workers.signal()
    assert workers.wait(30) == 0
    assert are_gone(pids)()
    assert [line["message"] for line in workers.log_lines].count("worker stopped") == COUNT


def test_the_death_of_a_worker_stops_the_others(workers: Workers) -> None:
    pids = workers.pids()
    os.kill(pids[0], signal.SIGKILL)
    assert workers.wait(30) == 1
    assert are_gone(pids)()
    lines = workers.log.read_text().splitlines()
    assert "worker 1 exited with -9; stopping the other processes" in [json.loads(line)["message"] for line in lines]
    assert workers.has_logged("worker stopped")


def test_workers_end_when_their_supervisor_is_killed(workers: Workers) -> None:
    pids = workers.pids()
    workers.kill()
    wait_until(are_gone(pids), 30)
