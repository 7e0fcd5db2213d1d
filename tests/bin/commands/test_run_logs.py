"""Without a terminal, `run` logs to standard error: all lines of its processes and of gunicorn have the same format."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.factories import environment
from tests.support.processes.workers import RISKRELAY, wait_until
from tests.support.servers.redis_and_postgres import free_port, processes_in

START_WITHIN_S: Final = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an `.env` that contains a misspelled setting."""
    (tmp_path / ".env").write_text("WORKER_PROCESES=2\n")
    return tmp_path


def test_every_log_line_is_json_from_the_first_warning_to_the_exit_of_a_process(folder: Path) -> None:
    port = free_port()
    settings = environment(folder / "data", BIND=f"127.0.0.1:{port}", WEB_PROCESSES="1")
    out, errors = folder / "out", folder / "errors"
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen([RISKRELAY, "run"], cwd=folder, env=settings, stdout=stdout, stderr=stderr)
    try:
        wait_until(lambda: "is ready at" in out.read_text() or process.poll() is not None, START_WITHIN_S)
        assert process.poll() is None, errors.read_text()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/nowhere")
        [arbiter] = [pid for pid in processes_in(folder) if is_gunicorn(pid, process.pid)]
        [server] = children(arbiter)
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: "SIGKILL" in errors.read_text())
        wait_until(lambda: children(arbiter) not in ([], [server]))
        os.kill(arbiter, signal.SIGKILL)
        assert process.wait(60) == 1
    finally:
        end(process, folder)

    reported: list[dict[str, Any]] = [json.loads(line) for line in errors.read_text().splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in reported)
    messages = [line["message"] for line in reported]
    assert any("WORKER_PROCESES" in message for message in messages)
    assert "worker started" in messages
    assert any(line["logger"] == "gunicorn.error" and "SIGKILL" in line["message"] for line in reported)
    assert "service exited with -9; stopping the other processes" in messages


def is_gunicorn(pid: int, parent: int) -> bool:
    """Return whether a process is gunicorn's arbiter, started by `parent`."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"service.server" in words and pid in children(parent)


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill processes that a failed test has left."""
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while left := list(processes_in(folder)):
        assert time.monotonic() < until, left
        time.sleep(0.05)
