"""Supervised child processes: the order in which they are stopped, and children that do not stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bin.processes import child_process
from bin.processes.supervisor import Supervisor

ROOT: Final = Path(__file__).resolve().parents[3]

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
#: Some time after SIGTERM, sends SIGTERM to its parent, and exits with 0. It ignores further signals.
IMPATIENT: Final = """
import os, pathlib, signal, time
signaled = []
signal.signal(signal.SIGTERM, lambda *_: signaled.append(1))
(pathlib.Path(os.environ["FOLDER"]) / ("ready-" + os.environ["NAME"])).touch()
while not signaled:
    time.sleep(0.01)
time.sleep(float(os.environ["WANTED"]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGTERM)
"""
#: Like a worker, exits with 5 at a second SIGTERM more than one second after the first; otherwise, with 0 after 3 s.
BUSY: Final = """
import os, pathlib, signal, time
at = []
signal.signal(signal.SIGTERM, lambda *_: at.append(time.monotonic()))
(pathlib.Path(os.environ["FOLDER"]) / ("ready-" + os.environ["NAME"])).touch()
while not at:
    time.sleep(0.01)
while time.monotonic() < at[0] + 3:
    if at[-1] - at[0] > 1:
        raise SystemExit(5)
    time.sleep(0.01)
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


def test_workers_are_stopped_at_the_same_time_after_the_service(tmp_path: Path) -> None:
    workers = [("one", TOGETHER, "one two"), ("two", TOGETHER, "one two")]
    supervisor, children = started(tmp_path, 30, *workers, ("service", FIRST, ""))
    supervisor.stop()
    assert exit_codes(children) == {"one": 0, "two": 0, "service": 0}


@pytest.mark.parametrize(
    ("after_s", "code"), [("1.2", 5), ("0", 0)], ids=["a second signal is passed on", "an echo of the first one is not"]
)
def test_a_second_signal_while_the_service_stops_is_passed_on_to_the_workers(
    tmp_path: Path, after_s: str, code: int
) -> None:
    supervisor, children = started(tmp_path, 30, ("one", BUSY, ""), ("two", BUSY, ""), ("service", IMPATIENT, after_s))
    os.kill(os.getpid(), signal.SIGTERM)
    assert supervisor.run() == 0
    assert exit_codes(children) == {"one": code, "two": code, "service": 0}


def test_a_second_signal_while_the_workers_stop_is_passed_on(tmp_path: Path) -> None:
    supervisor, children = started(tmp_path, 30, ("one", BUSY, ""), ("two", IMPATIENT, "1.2"))
    # The same arguments, as workers have them, so that both are stopped together.
    children["one"].args = children["two"].args
    os.kill(os.getpid(), signal.SIGTERM)
    assert supervisor.run() == 0
    assert exit_codes(children) == {"one": 5, "two": 0}


def test_no_child_is_started_after_a_signal() -> None:
    supervisor = Supervisor(30)
    os.kill(os.getpid(), signal.SIGTERM)
    supervisor.start("one", ["/bin/true"], os.environ)
    # If it reacted to the signal, it would exit within milliseconds.
    time.sleep(1)
    assert supervisor.exited() is None
    assert supervisor.run() == 0


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor, children = started(tmp_path, 0.5, ("one", IGNORES_SIGTERM, ""), ("two", IGNORES_SIGTERM, ""))
    supervisor.stop()
    assert exit_codes(children) == {"one": -signal.SIGKILL, "two": -signal.SIGKILL}


def test_the_exit_of_one_child_stops_the_other_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor, children = started(tmp_path, 30, ("one", TOGETHER, "one"), ("two", TOGETHER, "two"))
    children["two"].kill()
    assert supervisor.run() == 1
    assert exit_codes(children) == {"one": 0, "two": -signal.SIGKILL}
    assert "two exited with -9; stopping the other processes" in caplog.text


#: Starts a supervisor with one child, which the program that replaces it takes over.
ALONE: Final = """
import pathlib, sys
from bin.processes import child_process
from bin.processes.supervisor import Supervisor
folder, seconds = pathlib.Path(sys.argv[1]), sys.argv[2]
supervisor = Supervisor(30)
supervisor.adopt("one", child_process.start([sys.executable, "-c", f"import time; time.sleep({seconds})"]))
(folder / "child").write_text(str(supervisor._children["one"].pid))
(folder / "temporary").touch()
raise SystemExit(supervisor.run_alone("info", "json", [folder / "temporary"]))
"""


def start_alone(folder: Path, seconds: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ALONE, str(folder), seconds]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_a_supervisor_process_stops_its_children_after_a_signal(tmp_path: Path) -> None:
    process = start_alone(tmp_path, "60")
    until = time.monotonic() + 30
    while not (tmp_path / "temporary").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.terminate()
    _, logged = process.communicate(timeout=30)
    assert (process.returncode, logged) == (0, "")
    assert not (tmp_path / "temporary").exists()
    assert not Path("/proc", (tmp_path / "child").read_text()).exists()


def test_a_supervisor_process_logs_the_exit_of_a_child(tmp_path: Path) -> None:
    process = start_alone(tmp_path, "0.5")
    _, logged = process.communicate(timeout=30)
    line = json.loads(logged)
    assert (process.returncode, line["level"]) == (1, "error")
    assert line["message"] == "one exited with 0; stopping the other processes"
    assert not (tmp_path / "temporary").exists()
