"""Real worker daemons as processes, what they deliver to, and a stopwatch for what they are to bring about."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from tests.factories import LOOPBACK, environment
from tests.fakes import LoopbackServer, Peer, Request

RISKRELAY: Final = str(Path(__file__).resolve().parent.parent / "bin" / "riskrelay")

#: A start takes about a second; a machine that runs everything at once gets its time.
START_WITHIN_S: Final = 30.0


def wait_until(is_so: Callable[[], object], timeout_s: float = 15.0) -> float:
    """Wait until `is_so()`, at most `timeout_s` seconds; return how long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < timeout_s, "It did not come to pass."
        time.sleep(0.01)
    return time.monotonic() - began


class WorkerProcess:
    """A `bin/riskrelay work` of its own; it is killed at the end, if it has not ended before."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, **changes: str) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        settings = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "LOG_FORMAT": "json", **LOOPBACK, **changes}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [RISKRELAY, "work"], cwd=folder, env=environment(folder, **settings), stdout=log, stderr=log
            )

    @property
    def told(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def has_told(self, message: str) -> bool:
        """Say whether its log holds a line with exactly this message."""
        return any(line["message"] == message for line in self.told)

    def __enter__(self) -> Self:
        try:
            wait_until(lambda: self.has_told("worker started") or self.process.poll() is not None, START_WITHIN_S)
            assert self.process.poll() is None, self.log.read_text()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as a crash does; harmless when it has ended."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 15.0) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(timeout_s)

    def cpu_s(self) -> float:
        """The processor time it has taken so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks_per_s = 100  # USER_HZ, the same on every Linux
        return (int(fields[11]) + int(fields[12])) / ticks_per_s


class CountingReceiver(LoopbackServer):
    """Keeps every request and answers 202 to each, or to none before `gate` is open."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(self._behave_well)

    @property
    def keys(self) -> list[str]:
        """The Idempotency-Key of each request, in order."""
        return [request.headers["idempotency-key"] for request in self.requests]

    def _behave_well(self, peer: Peer) -> None:
        while request := peer.read():
            self.requests.append(request)
            while not self.gate.wait(0.05):
                if peer.has_hung_up():
                    return
            peer.answer(202, b'{"id": "T-1"}')

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        super().__exit__(*error)
