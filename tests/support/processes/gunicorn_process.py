"""Runs the service as a process: gunicorn with the service's configuration, over real sockets."""

import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bin.commands.installation.serve import GUNICORN
from tests.support.processes.forked_processes import Process, start

ROOT: Final = Path(__file__).resolve().parents[3]

#: Two processes with all imports start within a second on a development machine; a busy one can take several times that.
START_TIMEOUT_S: Final = 30
#: The service itself waits at most 15 s for requests that are in progress.
STOP_TIMEOUT_S: Final = 25


@dataclass(frozen=True, slots=True)
class RawResponse:
    """One HTTP response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.content)


class Service:
    """A running service, whose processes are killed at the end of the block. `options` are gunicorn's.

    By default it is forked from a process that has imported the service's modules.
    """

    def __init__(self, environment: Mapping[str, str], *options: str, forked: bool = True) -> None:
        self._command = (sys.executable, *GUNICORN, *options)
        self._imported = "tests.support.processes.imported_service" if forked else None
        self.port = free_port()
        self.log = Path(environment["DATA_DIR"]) / "service.log"
        self._environment = {"PYTHONPATH": str(ROOT), **environment, "BIND": f"127.0.0.1:{self.port}", "LOG_FORMAT": "json"}
        self._process: Process | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = start(self._command, ROOT, self._environment, log, self._imported)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"The service did not start:\n{self.log.read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of gunicorn's arbiter."""
        assert self._process is not None
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The process ids of gunicorn's workers."""
        return [int(text) for text in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def terminate(self) -> None:
        """Send SIGTERM, and return at once."""
        os.kill(self.pid, signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for the end of the service and return its exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the arbiter and its workers; do nothing if the service has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        workers = self.workers
        self._process.kill()
        self._process.wait()
        for pid in workers:
            _kill(pid)

    def connect(self) -> socket.socket:
        """Open a connection to the service."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=STOP_TIMEOUT_S)

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None, timeout_s: float = 30
    ) -> RawResponse:
        """Send one request over a new connection. A body that is not bytes is sent as JSON."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        is_json = body is not None and not isinstance(body, bytes)
        content = json.dumps(body).encode() if is_json else body
        typed = {"Content-Type": "application/json"} if is_json else {}
        try:
            client.request(method, path, content, {**typed, **(headers or {})})
            return _answer(client.getresponse())
        finally:
            client.close()

    def exchange(self, *pieces: bytes) -> RawResponse:
        """Send bytes without changes and read one response."""
        with self.connect() as connection:
            for piece in pieces:
                connection.sendall(piece)
            return read_response(connection)

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/healthz").status == 200
        except OSError:
            return False


def read_response(connection: socket.socket) -> RawResponse:
    """Read one response from a connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return _answer(response)


def _answer(response: http.client.HTTPResponse) -> RawResponse:
    return RawResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
