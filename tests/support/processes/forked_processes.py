"""Processes that are forked from a parent with the modules already imported: a start takes 0.1 s instead of over 1 s.

Tests can kill, stop and wait for them like any other process. Tests of the start itself, or of code that runs while modules
are imported, start their processes in the usual way.

`python -m tests.support.processes.forked_processes FD MODULE` is the parent. It imports MODULE. Then, for each request
on the socket FD, it forks a process that runs a module as `python -m` does.
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

#: The first words of a command whose module can run in a forked process.
PYTHON: Final = (sys.executable, "-P", "-m")

#: Far more than the arguments and the environment of a test need.
MAX_REQUEST_BYTES: Final = 1 << 16


class ForkedProcess:
    """A process that runs `words`, a module and its arguments, as `python -m` does; its standard input is a pipe.

    It is forked from a process that has imported the module `imported`. It has those methods of `subprocess.Popen` that
    tests use.
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
        """Return the exit code, negative for a signal, or None while the process runs."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._read_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._read_end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read_end(self) -> None:
        self.returncode = int(self._report.readline())
        self._report.close()
        self.stdin.close()


Process: TypeAlias = ForkedProcess | subprocess.Popen[bytes]


def start(command: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes], imported: str | None) -> Process:
    """Start a command. With `imported`, it begins with PYTHON and is forked from a process with that module imported."""
    if imported:
        return ForkedProcess(imported, command[len(PYTHON) :], cwd, env, output)
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return the reading and the writing end of a pipe."""
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


@cache
def _parent(imported: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a parent process that imports `imported`; return the socket for requests to fork, and the process.

    It ends when this process ends, because that closes the socket.
    """
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote:
        command = [*PYTHON, "tests.support.processes.forked_processes", str(remote.fileno()), imported]
        process = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, pass_fds=[remote.fileno()])
    return control, process


def _fork_on_request(control: socket.socket) -> None:
    """Start a process for each request, until the other side closes the socket."""
    # This process does not wait for its children; with SIG_IGN the kernel removes them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 3)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _watch(json.loads(request), *files)
        for each in files:
            os.close(each)


def _watch(request: list[Any], stdin: int, output: int, report: int) -> NoReturn:
    """Start the requested process; report its id and, after its end, its exit code."""
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
    """Run a module in this process as `python -m` does; raises SystemExit at its end."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    module, *sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    _control = socket.socket(fileno=int(sys.argv[1]))
    # The product's processes do the same before their imports, unless they send traces.
    tls_key_log.disable()
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # None is allowed, but not annotated
    importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()
    _fork_on_request(_control)
