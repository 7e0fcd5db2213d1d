"""Deliveries per second compared with the same work as jobs of two task queues.

Two worker processes each, the same exports with bodies of 2 KiB, the same database, the same immediate receiver: the
product's worker daemons with default features, Celery with a pool of threads, and the stock `rq worker`, which forks for
every job. A job of the peers is `bench.peers.delivery`, the minimum that records the same attempt and status. They
alternate, and after every run the tables must agree with the arrivals. Each queue is filled beforehand under another key,
and renamed once every worker listens.

Celery is not part of the product: the first run installs it in .venv-peers, from bench/requirements-peers.lock. If that
fails, its figures are missing. Apart from that, loopback only; started processes are stopped.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from bench.deliveries.runs import (
    PROCESSES,
    BenchInstallation,
    SeededTargets,
    check_arrivals,
    count_delivered,
    count_listening,
    deliver,
    log_on_failure,
    processes,
    wait_until,
)
from bench.figures import Extent, Figure, ratio
from bench.peers.environment import python_of_peers
from bench.processes.cost import cpu_s
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT, BenchReceiver, rate, run_receiver
from storage.db.engine import rows
from tests.support.servers.redis_and_postgres import RedisServer

#: The product's exports are spread over this many targets.
TARGETS: Final = 20
#: As a small installation would set it; 4, 16 and 32 made no difference beyond the noise here.
CELERY_THREADS: Final = 8
CELERY_QUEUE: Final = "celery"
RQ_QUEUE: Final = "bench"
#: The key of a filled queue until the workers listen.
_PARKED: Final = "bench:parked"
#: Equals `bench.peers.celery_app.READY`, which cannot be imported without Celery.
_CELERY_READY: Final = "bench:celery"
#: Exports of a run: as many as each side delivers within a few seconds.
EXPORTS: Final = {"product": 5000, "celery": 1500, "rq": 300}
QUICK_EXPORTS: Final = {"product": 2000, "celery": 500, "rq": 100}
#: For each peer the name of the ratio, and how many times as fast the product must be at least.
AIMS: Final = {"rq": ("delivery_vs_stock_rq", 40.0), "celery": ("delivery_vs_celery", 9.0)}
PROMISED: Final = tuple(name for name, _ in AIMS.values())


@dataclass(frozen=True, slots=True)
class PeerResult:
    """One run: deliveries per second, and the workers' processor time per delivery."""

    per_s: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """The installation, exports and receiver that all sides use."""

    installation: BenchInstallation
    seeded: SeededTargets
    receiver: BenchReceiver


def measure(extent: Extent) -> list[Figure]:
    """Measure the programs alternately: on both databases, or in a quick run on SQLite only."""
    python = _python_for_celery()
    if extent is Extent.QUICK:
        return _measured("sqlite", QUICK_EXPORTS, 1, python)
    return [figure for database in ("sqlite", "postgresql") for figure in _measured(database, EXPORTS, 3, python)]


def _python_for_celery() -> str | None:
    try:
        return python_of_peers()
    except (OSError, subprocess.SubprocessError) as failed:
        click.echo(f"Celery cannot be measured: {failed}", err=True)
        return None


def _measured(database: str, exports: dict[str, int], rounds: int, python: str | None) -> list[Figure]:
    sides: dict[str, Callable[[PeerSetup, int], PeerResult]] = {"rq": _with_rq, "product": _with_product}
    if python is not None:
        sides["celery"] = lambda setup, count: _with_celery(setup, count, python)
    measured: dict[str, list[PeerResult]] = {side: [] for side in sides}
    with ExitStack() as stack:
        setup = _setup(stack, database, max(exports.values()))
        for _ in range(rounds):
            for side, run in sides.items():
                measured[side].append(run(setup, exports[side]))
    prefix = "" if database == "sqlite" else f"{database}_"
    return [figure for side in AIMS for figure in _figures(side, prefix, measured)]


def _figures(side: str, prefix: str, measured: dict[str, list[PeerResult]]) -> list[Figure]:
    """Return the figures of a peer and the ratio of the product to it; only SQLite has aims."""
    runs = measured.get(side, [])
    name, aim = AIMS[side]
    ours = [run.per_s for run in measured["product"]] if runs else []
    return [
        Figure(f"{prefix}{side}_per_s", [run.per_s for run in runs], "/s"),
        Figure(f"{prefix}{side}_cpu_ms", [run.cpu_ms for run in runs], "ms", is_cost=True),
        ratio(prefix + name, ours, [run.per_s for run in runs], None if prefix else aim),
    ]


def _setup(stack: ExitStack, database: str, count: int) -> PeerSetup:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
    receiver = stack.enter_context(run_receiver(0, TARGETS))
    redis = stack.enter_context(RedisServer())
    postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
    installation = BenchInstallation(folder, redis, postgres)
    return PeerSetup(installation, installation.seed(receiver.urls, count), receiver)


def _with_product(setup: PeerSetup, count: int) -> PeerResult:
    done = deliver(setup.installation, setup.seeded, setup.receiver, count)
    return PeerResult(done.per_s, done.cpu_ms)


def _with_rq(setup: PeerSetup, count: int) -> PeerResult:
    setup.receiver.clear()
    with setup.installation.copy() as env:
        setup.seeded.change_status("resume")
        with Redis.from_url(env["REDIS_URL"]) as client:
            _queue_for_rq(client, _due_ids(count))
            _park(client, f"rq:queue:{RQ_QUEUE}")
            command = [str(Path(sys.executable).with_name("rq")), "worker", "--config", "bench.peers.rq_settings"]
            command += ["--serializer", "json", "--quiet", "--disable-job-desc-logging", RQ_QUEUE]
            with _worker_processes([command] * PROCESSES, env) as pids:
                wait_until(lambda: count_listening(env["REDIS_URL"]) == PROCESSES, "RQ's workers to listen")
                return _run_queue(client, f"rq:queue:{RQ_QUEUE}", pids, setup.receiver, count)


def _with_celery(setup: PeerSetup, count: int, python: str) -> PeerResult:
    setup.receiver.clear()
    with setup.installation.copy() as env:
        setup.seeded.change_status("resume")
        with Redis.from_url(env["REDIS_URL"]) as client:
            due_lines = "\n".join(_due_ids(count))
            subprocess.run(
                [python, "-m", "bench.peers.celery_app"], cwd=ROOT, env=env, input=due_lines, text=True, check=True
            )
            _park(client, CELERY_QUEUE)
            command = [python, "-m", "celery", "--quiet", "--app", "bench.peers.celery_app", "worker", "--pool", "threads"]
            command += ["--concurrency", str(CELERY_THREADS), "--loglevel", "ERROR"]
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
            names = [["--hostname", f"{number}@bench"] for number in range(PROCESSES)]
            with _worker_processes([command + name for name in names], env) as pids:
                wait_until(lambda: int(client.scard(_CELERY_READY)) == PROCESSES, "Celery's workers to listen")
                return _run_queue(client, CELERY_QUEUE, pids, setup.receiver, count)


@contextmanager
def _worker_processes(commands: list[list[str]], env: dict[str, str]) -> Iterator[list[int]]:
    """Run a peer's workers; print the end of their output only if an assertion fails."""
    with tempfile.TemporaryFile() as log, log_on_failure(log), processes(commands, env, output=log) as pids:
        yield pids


def _due_ids(count: int) -> list[str]:
    """Return the ids of a run's exports, which are spread evenly over the targets."""
    return [row[0] for row in rows("SELECT id FROM exports WHERE status = 'approved' ORDER BY id LIMIT ?", (count,))]


def _queue_for_rq(client: Redis, ids: list[str]) -> None:
    queue = Queue(RQ_QUEUE, connection=client, serializer=JSONSerializer)
    queue.enqueue_many([Queue.prepare_data("bench.peers.rq_settings.deliver", (export_id,)) for export_id in ids])


def _park(client: Redis, key: str) -> None:
    client.rename(key, _PARKED)


def _run_queue(client: Redis, key: str, pids: list[int], receiver: BenchReceiver, count: int) -> PeerResult:
    """Rename the filled queue to `key`, so that the workers see it, and measure until every export is delivered."""
    cpu_before_s = cpu_s(pids)
    client.rename(_PARKED, key)
    wait_until(lambda: count_delivered() == count, "every export to be delivered")
    cpu_ms = (cpu_s(pids) - cpu_before_s) * 1000 / count
    return PeerResult(rate(check_arrivals(receiver, count)), cpu_ms)
