"""Processes forked from one that has imported what they run: a start takes a tenth of a second instead of more than one.

From outside they are like any other: they can be killed, stopped and waited for. Tests of the start itself, and of what is
decided while modules are imported, start their processes in the usual way.

`python -m tests.support.processes.forked_processes FD MODULE` is the process that forks. It imports MODULE, then answers
each request on the socket FD by a process that runs a module as `python -m` does.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeAlias

from runtime import tls_key_log

ROOT: Final = Path(__file__).resolve().parents[3]

#: How a command begins whose module can be run in a fork.
PYTHON: Final = (sys.executable, "-P", "-m")

#: Bytes of a request, far above the arguments and the environment of a test.
LONGEST_REQUEST: Final = 1 << 16


class ForkedProcess:
    """A process that runs `words`, a module and its arguments, as `python -m` does; its standard input is a pipe.

    It is forked from one that has imported the module `imported`, and offers what tests use of `subprocess.Popen`.
    """

    def __init__(self, imported: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> None:
        self.returncode: int | None = None
        stdin, self.stdin = _pipe()
        self._report, report = _pipe()
        request = json.dumps([words, str(cwd), dict(env)]).encode()
        control, _ = _parent(imported)
        with stdin, report:
            socket.send_fds(control, [request], [stdin.fileno(), output.fileno(), report.fileno()])
        self.pid = int(self._report.readline())

    def poll(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it runs."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._read_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how it ended; raise subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._read_end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal; harmless when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash does; harmless when it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read_end(self) -> None:
        self.returncode = int(self._report.readline())
        self._report.close()
        self.stdin.close()


Process: TypeAlias = ForkedProcess | subprocess.Popen[bytes]


def start(command: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes], imported: str | None) -> Process:
    """Start a command; one that begins with PYTHON by a fork if a module is named that imports what it does."""
    if imported:
        return ForkedProcess(imported, command[len(PYTHON) :], cwd, env, output)
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe, for reading and for writing."""
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


@cache
def _parent(imported: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a process that imports `imported` and forks from then on; return the socket for requests, and the process.

    It ends when this process does, which closes the socket.
    """
    control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [*PYTHON, "tests.support.processes.forked_processes", str(there.fileno()), imported]
        process = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, pass_fds=[there.fileno()])
    return control, process


def _fork_on_request(control: socket.socket) -> None:
    """Start a process for each request, until the other side has closed the socket."""
    # Nobody waits for the watching processes; the kernel removes them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 3)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _watch(json.loads(request), *files)
        for each in files:
            os.close(each)


def _watch(request: list[Any], stdin: int, output: int, report: int) -> NoReturn:
    """Start the requested process, report its id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(report)
        for number, file in enumerate((stdin, output, output)):
            os.dup2(file, number)
        for file in (stdin, output):
            os.close(file)
        _become(*request)
    for file in (stdin, output):
        os.close(file)
    os.write(report, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run a module as `python -m` does, in this process; it raises SystemExit as there."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    module, *sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    _control = socket.socket(fileno=int(sys.argv[1]))
    # As the processes of the product do before their imports, unless traces are sent.
    tls_key_log.disable()
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the annotation knows modules alone
    importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()
    _fork_on_request(_control)
