"""`python -m bench.peers`: deliveries a second beside the same work as jobs of two task queues.

Two worker processes each, the same exports with bodies of 2 KiB, the same database, the same receiver, which answers at
once: the product's own worker daemons with everything on, Celery with a pool of threads, and the stock `rq worker`, which
forks for every job. A job of the peers is `bench.peer_delivery`: as little as leaves the same attempt and the same status
behind. They take turns, and after every run the tables must agree with what arrived. Queues are filled before anybody
counts, and opened when every worker listens.

Celery is no part of the product: the first run puts it into .venv-peers, from bench/requirements-peers.lock. Loopback only,
but for that; what it starts it stops.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from bench import figures
from bench.counterpart import ROOT, Receiver, rate, receiver
from bench.deliveries import (
    CONCURRENCY,
    PROCESSES,
    Installation,
    Seeded,
    agreed,
    deliver,
    finished,
    listening,
    processes,
    wait_until,
)
from bench.peer_environment import python_of_peers
from bench.process_cost import cpu_s
from storage.database import rows
from tests.servers import PostgresServer, RedisServer

#: The product's deliveries are shared out among as many targets.
TARGETS: Final = 20
#: As many as a small installation would give it; 4, 16 and 32 made no difference that stood out of the noise here.
CELERY_THREADS: Final = 8
CELERY_QUEUE: Final = "celery"
RQ_QUEUE: Final = "bench"
#: Where a filled queue waits for the workers.
_PARKED: Final = "bench:parked"
#: As `bench.peer_celery.READY`, which cannot be imported without Celery.
_CELERY_READY: Final = "bench:celery"
WANTED: Final = {"rq": 25.0, "celery": 5.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: deliveries a second, and the processor time of one in the workers."""

    per_s: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Stage:
    """What every side works on."""

    installation: Installation
    seeded: Seeded
    receiver: Receiver


@click.command(epilog="Example: python -m bench.peers --database both --rounds 1")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20), help="Of which medians are told.")
@click.option("--exports", default=4000, show_default=True, type=click.IntRange(min=100), help="The product's, a run.")
@click.option("--celery", default=1500, show_default=True, type=click.IntRange(min=50), help="Celery's, a run.")
@click.option("--rq", default=300, show_default=True, type=click.IntRange(min=20), help="RQ's, a run.")
@click.option(
    "--celery-threads", default=CELERY_THREADS, show_default=True, type=click.IntRange(1, 64), help="Of each process."
)
def bench(database: str, rounds: int, exports: int, celery: int, rq: int, celery_threads: int) -> None:
    """Measure deliveries a second beside Celery and beside a stock RQ worker that do the same work."""
    python = python_of_peers()
    sides = {
        "rq": partial(_with_rq, rq),
        "celery": partial(_with_celery, celery, python, celery_threads),
        "product": partial(_with_product, exports),
    }
    asked = {"rounds": rounds, "product": exports, "celery": celery, "rq": rq}
    told: dict[str, Any] = {**figures.machine(), "processes": PROCESSES, "concurrency": CONCURRENCY, "targets": TARGETS}
    told |= {"celery_threads": celery_threads, "exports": asked}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        measured: dict[str, list[Measured]] = {side: [] for side in sides}
        with ExitStack() as stack:
            stage = _stage(stack, name, max(exports, celery, rq))
            for _ in range(rounds):
                for side, run in sides.items():
                    measured[side].append(run(stage))
        told[name] = _tell(name, measured)
    figures.write("peers", told)


def _stage(stack: ExitStack, database: str, count: int) -> Stage:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
    there = stack.enter_context(receiver(0, TARGETS))
    redis = stack.enter_context(RedisServer())
    postgres = stack.enter_context(PostgresServer()) if database == "postgresql" else None
    installation = Installation(folder, redis, postgres)
    return Stage(installation, installation.seed(there.urls, count), there)


def _with_product(count: int, stage: Stage) -> Measured:
    done = deliver(stage.installation, stage.seeded, stage.receiver, count, approvals=0)
    return Measured(done.per_s, done.cpu_ms)


def _with_rq(count: int, stage: Stage) -> Measured:
    stage.receiver.clear()
    with stage.installation.copy() as env:
        stage.seeded.turn("resume")
        with Redis.from_url(env["REDIS_URL"]) as client:
            _queue_for_rq(client, _due(count))
            _park(client, f"rq:queue:{RQ_QUEUE}")
            command = [str(Path(sys.executable).with_name("rq")), "worker", "--config", "bench.peer_rq"]
            command += ["--serializer", "json", "--quiet", "--disable-job-desc-logging", RQ_QUEUE]
            with _quietly([command] * PROCESSES, env) as pids:
                wait_until(lambda: listening(env["REDIS_URL"]) == PROCESSES, "RQ's workers to listen")
                return _opened(client, f"rq:queue:{RQ_QUEUE}", pids, stage.receiver, count)


def _with_celery(count: int, python: str, threads: int, stage: Stage) -> Measured:
    stage.receiver.clear()
    with stage.installation.copy() as env:
        stage.seeded.turn("resume")
        with Redis.from_url(env["REDIS_URL"]) as client:
            told = "\n".join(_due(count))
            subprocess.run([python, "-m", "bench.peer_celery"], cwd=ROOT, env=env, input=told, text=True, check=True)
            _park(client, CELERY_QUEUE)
            command = [python, "-m", "celery", "--quiet", "--app", "bench.peer_celery", "worker", "--pool", "threads"]
            command += ["--concurrency", str(threads), "--loglevel", "ERROR"]
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
            names = [["--hostname", f"{number}@bench"] for number in range(PROCESSES)]
            with _quietly([command + name for name in names], env) as pids:
                wait_until(lambda: int(client.scard(_CELERY_READY)) == PROCESSES, "Celery's workers to listen")
                return _opened(client, CELERY_QUEUE, pids, stage.receiver, count)


@contextmanager
def _quietly(commands: list[list[str]], env: dict[str, str]) -> Iterator[list[int]]:
    """Run a peer's workers, and tell what they said only where something went wrong."""
    with tempfile.TemporaryFile() as log:
        try:
            with processes(commands, env, output=log) as pids:
                yield pids
        except AssertionError:
            log.seek(0)
            click.echo(log.read().decode(errors="replace"), err=True)
            raise


def _due(count: int) -> list[str]:
    """Return the exports of a run, of every target as many."""
    return [row[0] for row in rows("SELECT id FROM exports WHERE status = 'approved' ORDER BY id LIMIT ?", (count,))]


def _queue_for_rq(client: Redis, ids: list[str]) -> None:
    queue = Queue(RQ_QUEUE, connection=client, serializer=JSONSerializer)
    queue.enqueue_many([Queue.prepare_data("bench.peer_rq.deliver", (export_id,)) for export_id in ids])


def _park(client: Redis, key: str) -> None:
    client.rename(key, _PARKED)


def _opened(client: Redis, key: str, pids: list[int], there: Receiver, count: int) -> Measured:
    """Let the workers have their queue, and measure until every export is delivered."""
    cpu_before_s = cpu_s(pids)
    client.rename(_PARKED, key)
    wait_until(lambda: finished() == count, "every export to be delivered")
    cpu_ms = (cpu_s(pids) - cpu_before_s) * 1000 / count
    return Measured(rate(agreed(there, count)), cpu_ms)


def _tell(database: str, measured: Mapping[str, list[Measured]]) -> dict[str, Any]:
    """Print the medians, and return them; the ratios are those of each round."""
    ratios = {
        side: median(ours.per_s / theirs.per_s for ours, theirs in zip(measured["product"], runs, strict=True))
        for side, runs in measured.items()
    }
    told = {side: (median(run.per_s for run in runs), median(run.cpu_ms for run in runs)) for side, runs in measured.items()}
    columns = ("a second", "CPU ms", "product is", "wanted")
    lines = {
        side: (per_s, cpu_ms, f"{ratios[side]:.1f} x", f"{WANTED[side]:g} x" if side in WANTED else None)
        for side, (per_s, cpu_ms) in told.items()
    }
    figures.table(database, columns, lines)
    return {
        side: {"per_s": round(per_s), "cpu_ms": round(cpu_ms, 3), "product_is_times": round(ratios[side], 1)}
        for side, (per_s, cpu_ms) in told.items()
    }


if __name__ == "__main__":
    bench()
