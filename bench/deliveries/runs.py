"""Deliveries per second of real worker processes, and of plain request loops for comparison.

Exports are stored and approved for paused targets before the workers start. The targets are resumed once every worker
listens, so that the start is not measured. Address guard, audit log and log are on, as in an installation; the log goes to
a file. The rate is that of arrivals at the receiver; the tables must agree: every export exported, with one attempt.
"""

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import click
from redis import Redis

from bench.processes.cost import cpu_s, resident_mb
from bench.servers.receiver_process import ROOT, BenchReceiver, child, pipe, rate
from bin.processes import child_process
from bin.processes.workers import worker_command
from runtime.clock import utc_now
from schemas.exports.record import Approval
from schemas.exports.tickets.ticket import Source, Ticket
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database, rows, transaction
from storage.exports import transitions
from storage.exports.rows import Draft
from storage.targets import targets
from tests.support.factories import LOOPBACK, LOOPBACK_POLICY, Customer, environment, make_customer, make_target
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

#: Size of a delivered body: that of a ticket with a page of evidence. Everything but the description takes _FRAME_BYTES.
BODY_BYTES: Final = 2048
_FRAME_BYTES: Final = 470
#: One worker process for each core of a small installation, and the default of WORKER_CONCURRENCY.
PROCESSES: Final = 2
CONCURRENCY: Final = 32
#: Time limit for one run on a slow machine, including the start.
_RUN_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
#: Interval between two counts of delivered exports, since each count reads a whole index.
_COUNT_S: Final = 0.1
#: Lines of the workers' log that are printed after a failure: enough to show its cause.
_LAST_LINES: Final = 20
#: Exports per statement: SQLite allows about 32,000 parameters in a statement, and an export has 14.
_CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Figures of one run of the workers: deliveries per second, processor time per delivery, highest memory of a worker."""

    per_s: float
    cpu_ms: float
    resident_mb: float
    #: The receiver's processor time per request, since it shares the cores.
    receiver_cpu_ms: float


@dataclass(frozen=True, slots=True)
class SeededTargets:
    """A customer with seeded exports, and the targets of these exports."""

    customer: Customer
    target_ids: list[str]

    def change_status(self, verb: str) -> None:
        """Pause or resume every target."""
        with transaction():
            for target_id in self.target_ids:
                targets.change_status(target_id, verb, utc_now(), "bench")


class BenchInstallation:
    """A temporary installation with approved exports for paused targets; every run uses a new copy of its database."""

    def __init__(
        self,
        folder: Path,
        redis: RedisServer,
        postgres: PostgresServer | None,
        concurrency: int = CONCURRENCY,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._redis = redis
        self._postgres = postgres
        self._concurrency = concurrency
        self._settings = settings
        self._seeded = self._new_database()

    def seed(self, urls: Sequence[str], count: int) -> SeededTargets:
        """Store `count` approved exports, spread over paused targets at `urls`, through the storage functions."""
        open_database(self._seeded)
        schema_version.migrate()
        with connection(), transaction():
            customer = make_customer()
            seeded = SeededTargets(customer, [make_target(customer, url).id for url in urls])
            for start in range(0, count, _CHUNK):
                approve(prepare(customer, min(_CHUNK, count - start), start), customer, seeded.target_ids)
            seeded.change_status("pause")
        close_database()
        return seeded

    @contextmanager
    def copy(self) -> Iterator[dict[str, str]]:
        """Open a copy of the seeded database in this process; yield the environment for processes that use it."""
        url = self._copied_database()
        self._redis.flush()
        open_database(url)
        try:
            with connection():
                yield environment(
                    self._folder,
                    DATABASE_URL=url,
                    REDIS_URL=self._redis.url,
                    PYTHONPATH=str(ROOT),
                    LOG_LEVEL="info",
                    # Upper limit for the time between the starts of both workers' deliveries.
                    SWEEP_SECONDS="0.05",
                    WORKER_CONCURRENCY=str(self._concurrency),
                    **LOOPBACK,
                    **self._settings,
                )
        finally:
            close_database()

    def _new_database(self) -> str:
        return self._postgres.create_database() if self._postgres else f"sqlite:///{self._folder / 'seeded.db'}"

    def _copied_database(self) -> str:
        if self._postgres:
            return self._postgres.create_database(template=self._seeded.rpartition("/")[2])
        path = self._folder / "run.db"
        for leftover in self._folder.glob("run.db*"):
            leftover.unlink()
        shutil.copyfile(self._folder / "seeded.db", path)
        return f"sqlite:///{path}"


def prepare(customer: Customer, count: int, start: int) -> list[str]:
    """Store `count` prepared exports, numbered from `start`."""
    ticket = Ticket("Image without alternative text", "x" * (BODY_BYTES - _FRAME_BYTES), "high", None, ("bench",), {})
    drafts = [
        Draft(customer.account_id, customer.project_id, Source("finding", f"fnd_{number:026d}", 42), ticket)
        for number in range(start, start + count)
    ]
    return transitions.prepare(drafts, utc_now(), "bench")


def approve(ids: list[str], customer: Customer, target_ids: Sequence[str]) -> None:
    """Approve exports, spread over the targets."""
    for export_id, target_id in zip(ids, itertools.cycle(target_ids), strict=False):
        transitions.approve(export_id, customer.account_id, Approval(target_id, None), utc_now(), "bench", LOOPBACK_POLICY)


def deliver(installation: BenchInstallation, seeded: SeededTargets, receiver: BenchReceiver, count: int) -> DeliveryResult:
    """Deliver all seeded exports with worker processes; the tables must agree with the arrivals."""
    receiver.clear()
    with installation.copy() as env, workers(env) as pids:
        redis_url = env["REDIS_URL"]
        wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
        cpu_before_s, receiver_before_s = cpu_s(pids), receiver.arrivals()["cpu_s"]
        seeded.change_status("resume")
        wait_until(lambda: count_delivered() == count, "every export to be delivered", poll_s=_COUNT_S)
        cpu_ms = (cpu_s(pids) - cpu_before_s) * 1000 / count
        memory = max(resident_mb(pid) for pid in pids)
        arrivals = check_arrivals(receiver, count)
        return DeliveryResult(rate(arrivals), cpu_ms, memory, (arrivals["cpu_s"] - receiver_before_s) * 1000 / count)


def run_request_loops(loop: str, receiver: BenchReceiver, count: int, threads: int = CONCURRENCY) -> float:
    """Send requests with the `session` or `prepared` loop on `threads` threads; return requests per second."""
    receiver.clear()
    share = str(count // PROCESSES)
    command = ("bench.load.request_loop", loop, receiver.url, share, str(threads), str(BODY_BYTES))
    with child(*command) as first, child(*command) as second:
        loops = (first, second)
        for process in loops:
            pipe(process.stdout).readline()
        for process in loops:
            pipe(process.stdin).write("go\n")
            pipe(process.stdin).flush()
        for process in loops:
            assert pipe(process.stdout).readline() == "done\n", f"The {loop} loop failed."
    arrivals = receiver.arrivals()
    assert arrivals["requests"] == int(share) * PROCESSES, arrivals
    return rate(arrivals)


@contextmanager
def workers(env: dict[str, str], count: int = PROCESSES, *, is_graceful: bool = True) -> Iterator[list[int]]:
    """Run worker processes that log to a file in DATA_DIR; stop them with SIGTERM if `is_graceful`, else with SIGKILL."""
    with (
        (Path(env["DATA_DIR"]) / "worker.log").open("w+b") as log,
        log_on_failure(log),
        processes([worker_command(1)] * count, env, is_graceful=is_graceful, output=log) as pids,
    ):
        yield pids


@contextmanager
def log_on_failure(log: IO[bytes]) -> Iterator[None]:
    """Print the end of the log if an assertion fails."""
    try:
        yield
    except AssertionError:
        log.seek(0)
        last = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        click.echo("\n".join(last), err=True)
        raise


@contextmanager
def processes(
    commands: Sequence[list[str]], env: dict[str, str], *, is_graceful: bool = True, output: IO[bytes] | None = None
) -> Iterator[list[int]]:
    """Run commands and stop them with SIGTERM or, unless `is_graceful`, with SIGKILL; `output` gets what they print."""
    running = [child_process.start(command, env=env, output=output) for command in commands]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.terminate() if is_graceful else process.kill()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_RUN_WITHIN_S)
            process.kill()
            process.wait()


def check_arrivals(receiver: BenchReceiver, count: int) -> dict[str, Any]:
    """Return the receiver's counts; AssertionError if they or the tables have anything but each export once."""
    arrivals = receiver.arrivals()
    delivered = rows("SELECT count(*), count(DISTINCT export_id) FROM attempts WHERE outcome = 'delivered'")[0]
    attempts = rows("SELECT count(*) FROM attempts")[0][0]
    seen = (arrivals["requests"], arrivals["distinct"], delivered, attempts)
    assert seen == (count, count, (count, count), count), seen
    return arrivals


def count_delivered() -> int:
    """Return the number of delivered exports."""
    return int(rows("SELECT count(*) FROM exports WHERE status = 'exported'")[0][0])


def count_listening(redis_url: str) -> int:
    """Return the number of RQ workers registered in Redis."""
    with Redis.from_url(redis_url) as client:
        return int(client.scard("rq:workers"))


def wait_until(is_done: Callable[[], bool], what: str, within_s: float = _RUN_WITHIN_S, poll_s: float = _POLL_S) -> None:
    """Wait until `is_done()`; raises AssertionError that names `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not is_done():
        assert time.monotonic() < deadline, f"Waited {within_s:g} s for {what}."
        time.sleep(poll_s)
