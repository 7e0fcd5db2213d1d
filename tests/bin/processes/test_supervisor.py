"""Children that are held together: in which order they are told to stop, and what becomes of those that do not."""

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

#: Waits for SIGTERM, notes it, and ends well only when every name in WANTED was told to stop too.
ALIKE: Final = """
import os, pathlib, signal, time
folder, told = pathlib.Path(os.environ["FOLDER"]), []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
(folder / ("ready-" + os.environ["NAME"])).touch()
while not told:
    time.sleep(0.01)
(folder / ("told-" + os.environ["NAME"])).touch()
until = time.monotonic() + 8
while not all((folder / ("told-" + each)).exists() for each in os.environ["WANTED"].split()):
    if time.monotonic() > until:
        raise SystemExit(3)
    time.sleep(0.01)
"""
#: Waits for SIGTERM, and ends well only where nobody else has been told to stop by then.
FIRST: Final = """
import os, pathlib, signal, time
folder, told = pathlib.Path(os.environ["FOLDER"]), []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
(folder / ("ready-" + os.environ["NAME"])).touch()
while not told:
    time.sleep(0.01)
time.sleep(0.3)
raise SystemExit(4 if list(folder.glob("told-*")) else 0)
"""
DEAF: Final = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(os.environ["FOLDER"]) / ("ready-" + os.environ["NAME"])).touch()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give back the handlers that a supervisor takes."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


Children = dict[str, "subprocess.Popen[bytes]"]


def started(folder: Path, stop_within_s: float, *named: tuple[str, str, str]) -> tuple[Supervisor, Children]:
    """Start children, each of a name, a program and the names it waits for, and return once all of them listen."""
    supervisor, children = Supervisor(stop_within_s), Children()
    for name, program, wanted in named:
        env = {**os.environ, "FOLDER": str(folder), "NAME": name, "WANTED": wanted}
        children[name] = child_process.start([sys.executable, "-c", program], env=env)
        supervisor.adopt(name, children[name])
    assert supervisor.wait_until(lambda: all((folder / f"ready-{name}").exists() for name in children), 30)
    return supervisor, children


def ends(children: Children) -> dict[str, int | None]:
    return {name: child.poll() for name, child in children.items()}


def test_workers_are_told_to_stop_together_and_the_service_before_them(tmp_path: Path) -> None:
    workers = [("one", ALIKE, "one two"), ("two", ALIKE, "one two")]
    supervisor, children = started(tmp_path, 30, *workers, ("service", FIRST, ""))
    supervisor.stop()
    assert ends(children) == {"one": 0, "two": 0, "service": 0}


def test_what_does_not_stop_is_killed(tmp_path: Path) -> None:
    supervisor, children = started(tmp_path, 0.5, ("one", DEAF, ""), ("two", DEAF, ""))
    supervisor.stop()
    assert ends(children) == {"one": -signal.SIGKILL, "two": -signal.SIGKILL}


def test_the_death_of_one_ends_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor, children = started(tmp_path, 30, ("one", ALIKE, "one"), ("two", ALIKE, "two"))
    children["two"].kill()
    assert supervisor.run() == 1
    assert ends(children) == {"one": 0, "two": -signal.SIGKILL}
    assert "two ended (-9); stopping the rest" in caplog.text
