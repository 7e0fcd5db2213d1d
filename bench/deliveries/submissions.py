"""`python -m bench.deliveries.submissions`: processor time of an approval and its delivery, with all processes involved.

Sixteen connections approve exports of 1 KB as fast as the service answers, two workers deliver them to a receiver that
responds at once. Counted are the service, the workers, Redis and PostgreSQL, without load generator and receiver.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from bench.deliveries.runs import PROCESSES, listening, wait_until, workers
from bench.figures import Extent, Figure, tell
from bench.load.questions import APPROVABLE, APPROVABLE_DIGITS, approve, prepare_many, seed
from bench.load.repeated_requests import CONNECTIONS, Numbers, load, tool_here
from bench.processes.cost import cpu_s
from bench.requests.rates import DATABASES, service_environment
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT, BenchReceiver, receiver
from bench.servers.serving import serving
from storage.db.engine import close_database, connection, open_database, rows, transaction
from tests.support.factories import make_target
from tests.support.servers.redis_and_postgres import RedisServer

PROMISED: Final = ("submission_cpu_ms", "postgresql_submission_cpu_ms")
_AIMS_MS: Final = {"sqlite": 1.6, "postgresql": 2.5}
#: More than a service answers.
_MAX_PER_S: Final = 3000
_SECONDS: Final = {Extent.QUICK: 2, Extent.FULL: 5}
_LOOK_S: Final = 0.2


@click.command(epilog="Example: python -m bench.deliveries.submissions")
def bench() -> None:
    """Measure the processor time of approvals with their deliveries."""
    tell("submissions", measure(Extent.FULL))


def measure(extent: Extent) -> list[Figure]:
    """Measure both databases: processor time, and approvals per second with deliveries beside them."""
    figures: list[Figure] = []
    for database in DATABASES:
        prefix = "" if database == "sqlite" else f"{database}_"
        cpu_ms, per_s = _submitted(database, _SECONDS[extent])
        figures.append(Figure(f"{prefix}submission_cpu_ms", [cpu_ms], "ms", _AIMS_MS[database], is_cost=True))
        figures.append(Figure(f"{prefix}submission_per_s", [per_s], "1/s"))
    return figures


def _submitted(database: str, seconds: int) -> tuple[float, float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        seeded = seed(postgres.create_database() if postgres else f"sqlite:///{folder / 'riskrelay.db'}")
        prepare_many(seeded, 1, _MAX_PER_S * seconds)
        there = stack.enter_context(receiver(0))
        open_database(seeded.url)
        stack.callback(close_database)
        stack.enter_context(connection())
        with transaction():
            target_id = make_target(seeded.customer, there.url).id
        question = approve(seeded.customer.bearer, target_id)
        env = service_environment(folder, REDIS_URL=redis.url, DATABASE_URL=seeded.url, PYTHONPATH=str(ROOT))
        served = stack.enter_context(serving("service.wsgi:app", env))
        stack.enter_context(workers(env))
        wait_until(lambda: listening(redis.url) == PROCESSES, "the workers to listen")
        began_s = _cpu_s(there)
        numbers = Numbers(APPROVABLE, APPROVABLE_DIGITS, 1)
        loaded = load(tool_here(), served.port, question, seconds, CONNECTIONS, numbers)
        wait_until(lambda: _count(target_id, waiting=True) == 0, "every export to be delivered", look_s=_LOOK_S)
        return (_cpu_s(there) - began_s) * 1000 / _count(target_id, waiting=False), loaded.per_s


def _count(target_id: str, *, waiting: bool) -> int:
    [[count]] = rows("SELECT count(*) FROM exports WHERE target_id = ? AND (due_at IS NOT NULL) = ?", (target_id, waiting))
    return int(count)


def _cpu_s(there: BenchReceiver) -> float:
    """Return the processor time of all processes that this one has started, without the receiver's."""
    return cpu_s(_descendants(os.getpid())) - float(there.arrivals()["cpu_s"])


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


if __name__ == "__main__":
    bench()
