"""Supervised child processes: the order in which they are stopped, and the ones that do not stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bin.processes import child_process
from bin.processes.supervisor import Supervisor

#: Waits for SIGTERM, records it, and exits with 0 only if every name in WANTED gets SIGTERM, too.
TOGETHER: Final = """
import os, pathlib, signal, time
folder, signaled = pathlib.Path(os.environ["FOLDER"]), []
signal.signal(signal.SIGTERM, lambda *_: signaled.append(1))
(folder / ("ready-" + os.environ["NAME"])).touch()
while not signaled:
    time.sleep(0.01)
(folder / ("signaled-" + os.environ["NAME"])).touch()
until = time.monotonic() + 8
while not all((folder / ("signaled-" + each)).exists() for each in os.environ["WANTED"].split()):
    if time.monotonic() > until:
        raise SystemExit(3)
    time.sleep(0.01)
"""
#: Waits for SIGTERM, and exits with 0 only if no other process got SIGTERM before.
FIRST: Final = """
import os, pathlib, signal, time
folder, signaled = pathlib.Path(os.environ["FOLDER"]), []
signal.signal(signal.SIGTERM, lambda *_: signaled.append(1))
(folder / ("ready-" + os.environ["NAME"])).touch()
while not signaled:
    time.sleep(0.01)
time.sleep(0.3)
raise SystemExit(4 if list(folder.glob("signaled-*")) else 0)
"""
IGNORES_SIGTERM: Final = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(os.environ["FOLDER"]) / ("ready-" + os.environ["NAME"])).touch()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Restore the signal handlers that a supervisor replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


Children = dict[str, "subprocess.Popen[bytes]"]


def started(folder: Path, stop_within_s: float, *named: tuple[str, str, str]) -> tuple[Supervisor, Children]:
    """Start children, each with a name, a program and the names it waits for; return when all are ready."""
    supervisor, children = Supervisor(stop_within_s), Children()
    for name, program, wanted in named:
        env = {**os.environ, "FOLDER": str(folder), "NAME": name, "WANTED": wanted}
        children[name] = child_process.start([sys.executable, "-c", program], env=env)
        supervisor.adopt(name, children[name])
    assert supervisor.wait_until(lambda: all((folder / f"ready-{name}").exists() for name in children), 30)
    return supervisor, children


def exit_codes(children: Children) -> dict[str, int | None]:
    return {name: child.poll() for name, child in children.items()}


def test_workers_are_stopped_together_after_the_service(tmp_path: Path) -> None:
    workers = [("one", TOGETHER, "one two"), ("two", TOGETHER, "one two")]
    supervisor, children = started(tmp_path, 30, *workers, ("service", FIRST, ""))
    supervisor.stop()
    assert exit_codes(children) == {"one": 0, "two": 0, "service": 0}


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor, children = started(tmp_path, 0.5, ("one", IGNORES_SIGTERM, ""), ("two", IGNORES_SIGTERM, ""))
    supervisor.stop()
    assert exit_codes(children) == {"one": -signal.SIGKILL, "two": -signal.SIGKILL}


def test_the_exit_of_one_child_stops_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor, children = started(tmp_path, 30, ("one", TOGETHER, "one"), ("two", TOGETHER, "two"))
    children["two"].kill()
    assert supervisor.run() == 1
    assert exit_codes(children) == {"one": 0, "two": -signal.SIGKILL}
    assert "two exited with -9; stopping the other processes" in caplog.text
