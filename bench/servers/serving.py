"""Runs an application under gunicorn with the product's configuration, on loopback, in separate processes."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from bench.processes.cost import cpu_s
from bench.servers.receiver_process import ROOT
from bin.commands.installation.serve import GUNICORN
from bin.processes import child_process
from tests.support.servers.redis_and_postgres import free_port

#: Time limit for loading an application in two processes on a slow machine.
_START_WITHIN_S: Final = 30.0
#: Before a process has loaded the application, a connection waits in the listen queue for its response.
_RESPONSE_WITHIN_S: Final = 5.0
#: Longer than gunicorn's graceful_timeout, after which it kills its workers.
_STOP_WITHIN_S: Final = 20


@dataclass(frozen=True, slots=True)
class ServedApplication:
    """An application that listens on `port`; `pid` is gunicorn's main process."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time that its worker processes have used so far, in seconds."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return cpu_s(int(pid) for pid in children.split())


@contextmanager
def serving(app: str, env: Mapping[str, str], *options: str) -> Iterator[ServedApplication]:
    """Serve `app` (a gunicorn module path) with the settings in `env` and gunicorn's `options`; the log goes to a file."""
    port = free_port()
    settings = {**env, "BIND": f"127.0.0.1:{port}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *GUNICORN[:-1], *options, app]
    with TemporaryFile() as log:
        process = child_process.start(command, env=settings, output=log)
        try:
            _wait_for(port, process)
            yield ServedApplication(port, process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_WITHIN_S)
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for a response: gunicorn listens long before its processes have loaded the application."""
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_RESPONSE_WITHIN_S) as client:
            client.sendall(b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if client.recv(1):
                return
        time.sleep(0.05)
    raise AssertionError(f"The service exited, or does not respond after {_START_WITHIN_S:g} s.")
