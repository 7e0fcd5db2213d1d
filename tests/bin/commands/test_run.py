"""`run` supervises its processes: it stops them in order, exits if one of them exits, cleans up, and reports errors."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.factories import environment
from tests.support.servers.redis_and_postgres import free_port, processes_in

ROOT = Path(__file__).resolve().parents[3]
RISKRELAY = str(ROOT / "bin" / "riskrelay")

START_WITHIN_S = 30.0
STOP_WITHIN_S = 20.0


class RunProcess:
    """A real `bin/riskrelay run` in its own folder."""

    def __init__(self, folder: Path, **changes: str) -> None:
        self.folder = folder
        self.log = folder / "run.log"
        self.port = free_port()
        self.environment = environment(folder / "data", BIND=f"127.0.0.1:{self.port}", **changes)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [RISKRELAY, "run"], cwd=folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def reported(self) -> str:
        return self.log.read_text()

    def wait_until_ready(self) -> None:
        until = time.monotonic() + START_WITHIN_S
        while "is ready at" not in self.reported:
            assert self.process.poll() is None, self.reported
            assert time.monotonic() < until, self.reported
            time.sleep(0.05)

    def children(self) -> dict[str, int]:
        """Return the process ids of its child processes by their kind."""
        marks = {"redis": b"redis-server", "service": b"gunicorn", "worker": b"\0work\0"}
        found = {}
        for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, children.read_text().split()):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                found.update({name: pid for name, mark in marks.items() if mark in words})
        assert found.keys() == marks.keys()
        return found

    def assert_nothing_is_left(self) -> None:
        until = time.monotonic() + STOP_WITHIN_S
        while left := list(processes_in(self.folder)):
            assert time.monotonic() < until, left
            time.sleep(0.05)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self.port)) != 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in processes_in(self.folder):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[RunProcess]:
    made = RunProcess(tmp_path)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.end()


def test_the_readiness_check_ignores_proxy_settings_of_the_environment(tmp_path: Path) -> None:
    installation = RunProcess(tmp_path, http_proxy="http://127.0.0.1:9")
    try:
        installation.wait_until_ready()
    finally:
        installation.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_process_with_exit_code_0(installation: RunProcess, number: signal.Signals) -> None:
    installation.process.send_signal(number)
    assert installation.process.wait(STOP_WITHIN_S) == 0
    assert "Traceback" not in installation.reported
    installation.assert_nothing_is_left()


@pytest.mark.parametrize("part", ["redis", "service", "worker"])
def test_if_any_process_is_killed_run_exits_with_1(installation: RunProcess, part: str) -> None:
    os.kill(installation.children()[part], signal.SIGKILL)
    assert installation.process.wait(STOP_WITHIN_S) == 1
    assert f"{part}s exited" in installation.reported or f"{part} exited" in installation.reported
    installation.assert_nothing_is_left()


def test_run_needs_neither_a_current_folder_nor_its_outputs(tmp_path: Path) -> None:
    """A full standard output, and a folder that was removed."""
    start = '"$0" init >/dev/null && mkdir gone && cd gone && rmdir ../gone && exec "$0" run >/dev/full'
    environment_of_run = environment(tmp_path / "data", BIND=f"127.0.0.1:{free_port()}")
    process = subprocess.Popen(["/bin/sh", "-c", start, RISKRELAY], cwd=tmp_path, env=environment_of_run)
    until = time.monotonic() + START_WITHIN_S
    try:
        # The supervisor replaces the command when the installation is ready.
        while b"supervisor.py" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.terminate()
        assert process.wait(STOP_WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()
        for pid in processes_in(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_child_processes_exit_if_the_parent_is_killed(installation: RunProcess) -> None:
    installation.process.kill()
    installation.process.wait()
    installation.assert_nothing_is_left()


def test_a_port_in_use_is_reported_and_ends_with_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = _run(tmp_path, BIND=f"127.0.0.1:{port}")
    assert ended.returncode == 1
    assert f"127.0.0.1:{port} cannot be bound: Address already in use; stop the process that listens there" in ended.stderr
    assert list(processes_in(tmp_path)) == []


def test_a_data_folder_that_cannot_be_created_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = _run(tmp_path, DATA_DIR=str(tmp_path / "file" / "data"))
    assert ended.returncode == 1
    assert "DATA_DIR" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_installation_on_the_same_data_is_refused(installation: RunProcess) -> None:
    ended = _run(installation.folder, DATA_DIR=str(installation.folder / "data"))
    assert ended.returncode == 1
    assert "already running with this DATA_DIR" in ended.stderr
    assert installation.process.poll() is None


def _run(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    settings = {"BIND": f"127.0.0.1:{free_port()}", **changes}
    return subprocess.run(
        [RISKRELAY, "run"],
        cwd=folder,
        env={**environment(folder / "data"), **settings},
        capture_output=True,
        text=True,
        timeout=START_WITHIN_S,
        check=False,
    )
