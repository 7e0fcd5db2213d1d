"""`python -m bench.deliveries.submissions`: processor time of an approval and its delivery, with all processes involved.

Sixteen connections approve exports of 1 KB as fast as the service responds, two workers deliver them to a receiver that
responds at once. The figures include the service, the workers, Redis and PostgreSQL, but not load generator and receiver.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from bench.deliveries.runs import PROCESSES, count_listening, wait_until, workers
from bench.figures import Extent, Figure, print_figures
from bench.load.repeated_requests import CONNECTIONS, Numbers, available_tool, load
from bench.load.request_templates import APPROVABLE, APPROVABLE_DIGITS, approve, prepare_many, seed
from bench.processes.cost import cpu_s
from bench.requests.rates import DATABASES, service_environment
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT, BenchReceiver, run_receiver
from bench.servers.serving import serving
from storage.db.engine import close_database, connection, open_database, rows, transaction
from tests.support.factories import make_target
from tests.support.servers.redis_and_postgres import RedisServer

PROMISED: Final = ("submission_cpu_ms", "postgresql_submission_cpu_ms")
_AIMS_MS: Final = {"sqlite": 1.6, "postgresql": 2.5}
#: More approvals than a service handles per second.
_MAX_PER_S: Final = 3000
_SECONDS: Final = {Extent.QUICK: 2, Extent.FULL: 5}
_POLL_S: Final = 0.2


@click.command(epilog="Example: python -m bench.deliveries.submissions")
def bench() -> None:
    """Measure the processor time of approvals with their deliveries."""
    print_figures("submissions", measure(Extent.FULL))


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
        receiver = stack.enter_context(run_receiver(0))
        open_database(seeded.url)
        stack.callback(close_database)
        stack.enter_context(connection())
        with transaction():
            target_id = make_target(seeded.customer, receiver.url).id
        template = approve(seeded.customer.bearer, target_id)
        env = service_environment(folder, REDIS_URL=redis.url, DATABASE_URL=seeded.url, PYTHONPATH=str(ROOT))
        served = stack.enter_context(serving("service.wsgi:app", env))
        stack.enter_context(workers(env))
        wait_until(lambda: count_listening(redis.url) == PROCESSES, "the workers to listen")
        began_s = _cpu_s(receiver)
        numbers = Numbers(APPROVABLE, APPROVABLE_DIGITS, 1)
        loaded = load(available_tool(), served.port, template, seconds, CONNECTIONS, numbers)
        wait_until(lambda: _count(target_id, waiting=True) == 0, "every export to be delivered", poll_s=_POLL_S)
        return (_cpu_s(receiver) - began_s) * 1000 / _count(target_id, waiting=False), loaded.per_s


def _count(target_id: str, *, waiting: bool) -> int:
    [[count]] = rows("SELECT count(*) FROM exports WHERE target_id = ? AND (due_at IS NOT NULL) = ?", (target_id, waiting))
    return int(count)


def _cpu_s(receiver: BenchReceiver) -> float:
    """Return the processor time of all descendants of this process, without that of the receiver."""
    return cpu_s(_descendants(os.getpid())) - float(receiver.arrivals()["cpu_s"])


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


if __name__ == "__main__":
    bench()
