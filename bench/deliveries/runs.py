"""Deliveries per second of real worker processes, and of the plain request loops they are compared with.

Exports are stored and approved before the workers start, for paused targets; the targets are resumed once every worker
listens, so that no start-up is measured. Guard, audit trail and log are on, as in an installation; the log goes to a file.
The rate is that of arrivals at the receiver; the tables must agree: every export exported, with one attempt.
"""

import itertools
import shutil
import subprocess
import sys
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
from bin.commands.installation.work import WORK_ALONE
from bin.processes import child_process
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

#: Fills a delivered body up to 2 KiB, the size of a ticket with a page of evidence.
BODY_BYTES: Final = 2048
_FRAME_BYTES: Final = 470
#: As many worker processes as a small installation has cores, and what WORKER_CONCURRENCY is by default.
PROCESSES: Final = 2
CONCURRENCY: Final = 32
#: What the slowest machine worth measuring needs for one run, start-up included.
_RUN_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.02
#: Between two counts of what is delivered, each of which reads an index from one end to the other.
_COUNT_S: Final = 0.1
#: Of the log of workers, where something went wrong: enough to see what it was.
_LAST_LINES: Final = 20
#: SQLite takes some 32,000 parameters a statement, and an export has 14.
_CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one run of the workers gave."""

    per_s: float
    cpu_ms: float
    resident_mb: float
    #: The receiver's own processor time a request; it shares the cores.
    receiver_cpu_ms: float


@dataclass(frozen=True, slots=True)
class SeededTargets:
    """Whose exports wait, and for which targets."""

    customer: Customer
    target_ids: list[str]

    def change_status(self, verb: str) -> None:
        """Pause or resume every target."""
        with transaction():
            for target_id in self.target_ids:
                targets.change_status(target_id, verb, utc_now(), "bench")


class BenchInstallation:
    """A throw-away installation with exports waiting for paused targets; every run starts from a copy of it."""

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
        """Open a copy of the seeded database in this process; yield the environment of processes that use it too."""
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
                    # Both workers begin within this of each other.
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


def deliver(installation: BenchInstallation, seeded: SeededTargets, receiver: BenchReceiver, count: int) -> Delivered:
    """Let workers deliver what is seeded; the tables must agree with what arrived."""
    receiver.clear()
    with installation.copy() as env, workers(env) as pids:
        redis_url = env["REDIS_URL"]
        wait_until(lambda: listening(redis_url) == PROCESSES, "the workers to listen")
        cpu_before_s, receiver_before_s = cpu_s(pids), receiver.arrivals()["cpu_s"]
        seeded.change_status("resume")
        wait_until(lambda: finished() == count, "every export to be delivered", look_s=_COUNT_S)
        cpu_ms = (cpu_s(pids) - cpu_before_s) * 1000 / count
        memory = max(resident_mb(pid) for pid in pids)
        arrivals = agreed(receiver, count)
        return Delivered(rate(arrivals), cpu_ms, memory, (arrivals["cpu_s"] - receiver_before_s) * 1000 / count)


def send_plainly(loop: str, receiver: BenchReceiver, count: int, threads: int = CONCURRENCY) -> float:
    """Send requests with the `session` or `prepared` loop on `threads` threads; return requests per second."""
    receiver.clear()
    share = str(count // PROCESSES)
    words = ("bench.load.request_loop", loop, receiver.url, share, str(threads), str(BODY_BYTES))
    with child(*words) as one, child(*words) as other:
        both = (one, other)
        for process in both:
            pipe(process.stdout).readline()
        for process in both:
            pipe(process.stdin).write("go\n")
            pipe(process.stdin).flush()
        for process in both:
            assert pipe(process.stdout).readline() == "done\n", f"The {loop} loop failed."
    arrivals = receiver.arrivals()
    assert arrivals["requests"] == int(share) * PROCESSES, arrivals
    return rate(arrivals)


@contextmanager
def workers(env: dict[str, str], count: int = PROCESSES, *, is_in_order: bool = True) -> Iterator[list[int]]:
    """Run worker processes that log to a file in DATA_DIR, and stop them in order, or as a crash does."""
    with (
        (Path(env["DATA_DIR"]) / "worker.log").open("w+b") as log,
        log_on_failure(log),
        processes([[sys.executable, *WORK_ALONE]] * count, env, is_in_order=is_in_order, output=log) as pids,
    ):
        yield pids


@contextmanager
def log_on_failure(log: IO[bytes]) -> Iterator[None]:
    """Print the end of the log on a failure."""
    try:
        yield
    except AssertionError:
        log.seek(0)
        last = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        click.echo("\n".join(last), err=True)
        raise


@contextmanager
def processes(
    commands: Sequence[list[str]], env: dict[str, str], *, is_in_order: bool = True, output: IO[bytes] | None = None
) -> Iterator[list[int]]:
    """Run commands, and stop them in order, or as a crash does; what they print goes to `output`, or where ours goes."""
    running = [child_process.start(command, env=env, output=output) for command in commands]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.terminate() if is_in_order else process.kill()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_RUN_WITHIN_S)
            process.kill()
            process.wait()


def agreed(receiver: BenchReceiver, count: int) -> dict[str, Any]:
    """Return what arrived, held against the tables: every export once, and nothing else."""
    arrivals = receiver.arrivals()
    delivered = rows("SELECT count(*), count(DISTINCT export_id) FROM attempts WHERE outcome = 'delivered'")[0]
    attempts = rows("SELECT count(*) FROM attempts")[0][0]
    seen = (arrivals["requests"], arrivals["distinct"], delivered, attempts)
    assert seen == (count, count, (count, count), count), seen
    return arrivals


def finished() -> int:
    """Return how many exports are delivered."""
    return int(rows("SELECT count(*) FROM exports WHERE status = 'exported'")[0][0])


def listening(redis_url: str) -> int:
    """Return the number of RQ workers registered in Redis."""
    with Redis.from_url(redis_url) as client:
        return int(client.scard("rq:workers"))


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = _RUN_WITHIN_S, look_s: float = _LOOK_S) -> None:
    """Wait for `what`; an assertion fails when it does not come."""
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, f"Waited {within_s:g} s for {what}."
        time.sleep(look_s)
