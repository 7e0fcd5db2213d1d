"""Real worker daemons as processes, the receivers that they deliver to, and waits for their effects."""

import json
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from bin.processes.workers import worker_command
from runtime import wake_up_queue
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from storage.db.engine import execute, rows
from storage.exports import queries
from tests.support.factories import LOOPBACK, environment, make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.forked_processes import PYTHON, start
from tests.support.servers.redis_and_postgres import RedisServer

ROOT: Final = Path(__file__).resolve().parents[3]
RISKRELAY: Final = str(ROOT / "bin" / "riskrelay")

#: A start takes about a second; a machine that runs all tests at once can be much slower.
START_WITHIN_S: Final = 30.0
#: Each second a sweep finds due exports without a wake-up; the other seconds are for a busy machine.
SWEEP_WITHIN_S: Final = 5.0


def wait_until(is_so: Callable[[], object], timeout_s: float = 30.0, every_s: float = 0.01) -> float:
    """Wait until `is_so()` is true, at most `timeout_s` seconds; return the elapsed seconds."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < timeout_s, f"The condition did not become true within {timeout_s:g} s."
        time.sleep(every_s)
    return time.monotonic() - began


def approved(url: str, count: int = 1, at: datetime | None = None) -> list[str]:
    """Store exports that are approved for a new target at `url` and due, now or since `at`; return their ids."""
    customer = make_customer()
    target = make_target(customer, url)
    return [make_approved(customer, target.id, at or utc_now()) for _ in range(count)]


def approved_each(url: str, count: int, at: datetime | None = None) -> list[str]:
    """Store approved exports as `approved`, each for its own target: a new target gets few requests at once at first."""
    return [export_id for _ in range(count) for export_id in approved(url, at=at)]


def delete_workers() -> None:
    """Delete the heartbeats of all workers, so that the next worker shares the targets with no dead worker."""
    execute("DELETE FROM workers")


def is_exported(export_id: str) -> Callable[[], bool]:
    """Return a function that returns whether an export is exported."""
    return lambda: queries.get(export_id).status == "exported"


def all_are(status: str) -> Callable[[], bool]:
    """Return a function that returns whether every export has this status."""
    return lambda: rows("SELECT DISTINCT status FROM exports") == [(status,)]


def notify_workers(redis: RedisServer) -> bool:
    """Notify the workers as the service does; return whether Redis was available."""
    return WakeUpQueue(wake_up_queue.connect(redis.url)).notify()


class WorkerProcess:
    """A worker process as `bin/riskrelay work` starts it, killed at the end of the block unless it has ended.

    It is forked from a process that has imported the same modules.
    """

    #: The module whose imports the forked worker shares; None for a worker that is not forked.
    imported: str | None = "tests.support.processes.imported_worker"
    # The words with which `run` starts a worker. `bin/riskrelay work` would double the time with its own checks.
    command: tuple[str, ...] = tuple(worker_command(1))
    #: The message in its log after which a test continues.
    first_words = "worker started"

    def __init__(self, folder: Path, database_url: str, redis_url: str, **changes: str) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        settings = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "LOG_FORMAT": "json", **LOOPBACK, **changes}
        env = environment(folder, PYTHONPATH=str(ROOT), **settings)
        with self.log.open("wb") as log:
            self.process = start(self.command, folder, env, log, self.imported)

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def has_logged(self, message: str) -> bool:
        """Return whether its log has a line with exactly this message."""
        return any(line["message"] == message for line in self.log_lines)

    def __enter__(self) -> Self:
        try:
            wait_until(lambda: self.has_logged(self.first_words) or self.process.poll() is not None, START_WITHIN_S)
            assert self.process.poll() is None, self.log.read_text()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the worker with SIGKILL; do nothing if it has ended."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the worker."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 15.0) -> int:
        """Wait for the end of the worker and return its exit code."""
        return self.process.wait(timeout_s)

    def cpu_s(self) -> float:
        """Return the CPU seconds that the worker has used."""
        fields = self._stat()
        ticks_per_s = 100  # USER_HZ, the same on every Linux
        return (int(fields[11]) + int(fields[12])) / ticks_per_s

    def is_stopped(self) -> bool:
        """Return whether the process is stopped by SIGSTOP."""
        return self._stat()[0] == "T"

    def _stat(self) -> list[str]:
        """Return the fields of /proc/PID/stat from the state on."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()


class StartedWorker(WorkerProcess):
    """A worker that is started as `run` starts it, not forked."""

    imported = None


class WorkCommand(StartedWorker):
    """The command `bin/riskrelay work`, for tests of several processes or of WORKER_METRICS_BIND."""

    command = (RISKRELAY, "work")


class FailingWorker(WorkerProcess):
    """A worker that starts its work at `go()`, and fails as the options of `journeys/failures/crashing_worker.py` say."""

    first_words = "waiting for its cue"

    def __init__(self, folder: Path, database_url: str, redis_url: str, *options: str, **changes: str) -> None:
        self.command = (*PYTHON, "tests.journeys.failures.crashing_worker", *options)
        super().__init__(folder, database_url, redis_url, **changes)

    def go(self) -> None:
        """Let the worker start its work."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


class SteppingClock:
    """A clock that differs from the real one by `offset_s`. Workers read this difference from the file `path`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "clock"
        self.offset_s = 0.0
        self.step_to(0.0)

    def step_to(self, offset_s: float) -> None:
        """Set the difference from the real clock."""
        self.offset_s = offset_s
        beside = self.path.with_suffix(".new")
        beside.write_text(str(offset_s))
        beside.replace(self.path)

    def now(self) -> datetime:
        """Return the time of this clock."""
        return utc_now() + timedelta(seconds=self.offset_s)


class CountingReceiver(LoopbackServer):
    """Records every request. Once `gate` is open, it responds 202 after `pause_s` seconds."""

    def __init__(self, port: int = 0, pause_s: float = 0.0, host: str = "127.0.0.1") -> None:
        self.requests: list[ReceivedRequest] = []
        self._pause_s = pause_s
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(self._behave_well, host=host, port=port)

    @property
    def keys(self) -> list[str]:
        """The idempotency key of each request, in order."""
        return [request.headers["idempotency-key"] for request in self.requests]

    def of(self, export_id: str) -> list[ReceivedRequest]:
        """Return the requests that delivered one export, in order."""
        return [request for request in list(self.requests) if request.headers.get("idempotency-key") == export_id]

    def _behave_well(self, peer: Peer) -> None:
        while request := peer.read():
            self.requests.append(request)
            while not self.gate.wait(0.05):
                if peer.client_has_closed():
                    return
            time.sleep(self._pause_s)
            peer.answer(202, b'{"id": "T-1"}')

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        super().__exit__(*error)
