"""`python -m bench.scale.bulk_and_lists`: a bulk approval of ten thousand exports, and lists and searches among a million.

The bulk approval runs from the first byte of the request until the job has ended, with the real service and two workers; its
target is on hold, so that nothing is delivered meanwhile. Lists and searches read pages of 50 as the API does, without HTTP;
a figure is the median of all of them.
"""

import http.client
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Final

import click

from bench.deliveries.runs import PROCESSES, count_listening, wait_until, workers
from bench.figures import Extent, Figure, print_figures
from bench.load.request_templates import prepare_many, seed
from bench.requests.rates import DATABASES, service_environment
from bench.scale.export_list import fill, requests
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.empty_installation import empty_installation
from bench.servers.receiver_process import ROOT
from bench.servers.serving import ServedApplication, serving
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from tests.support.servers.redis_and_postgres import RedisServer

PROMISED: Final = tuple(
    f"{prefix}{name}" for prefix in ("", "postgresql_") for name in ("bulk_approval_per_s", "list_1e6_ms", "search_1e6_ms")
)
#: Exports of one job: the maximum.
_BULK: Final = 10_000
_EXPORTS: Final = 1_000_000
_ROUNDS: Final = 3
_TIMES: Final = 5
_WITHIN_S: Final = 60.0
_HELD_MS: Final = 3_600_000
_POLL_S: Final = 0.005


@click.command(epilog="Example: python -m bench.scale.bulk_and_lists")
def bench() -> None:
    """Measure bulk approvals, and lists and searches among a million exports."""
    print_figures("at scale", measure(Extent.FULL))


def measure(extent: Extent) -> list[Figure]:
    """Measure both databases; in a quick run only the bulk approval, once."""
    figures: list[Figure] = []
    for database in DATABASES:
        prefix = "" if database == "sqlite" else f"{database}_"
        rounds = 1 if extent is Extent.QUICK else _ROUNDS
        figures.append(Figure(f"{prefix}bulk_approval_per_s", [_bulk_per_s(database) for _ in range(rounds)], "1/s", 5000.0))
        if extent is Extent.FULL:
            lists_ms, searches_ms = _pages_ms(database)
            figures.append(Figure(f"{prefix}list_1e6_ms", [median(lists_ms)], "ms", 25.0, is_cost=True))
            figures.append(Figure(f"{prefix}search_1e6_ms", [median(searches_ms)], "ms", 25.0, is_cost=True))
    return figures


def _bulk_per_s(database: str) -> float:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        seeded = seed(postgres.create_database() if postgres else f"sqlite:///{folder / 'riskrelay.db'}")
        # One less than _BULK, since the original of the copies is prepared, too.
        prepare_many(seeded, 1, _BULK - 1)
        open_database(seeded.url)
        stack.callback(close_database)
        stack.enter_context(connection())
        with transaction():
            execute("UPDATE targets SET held_until = ?", (to_ms(utc_now()) + _HELD_MS,))
        env = service_environment(folder, REDIS_URL=redis.url, DATABASE_URL=seeded.url, PYTHONPATH=str(ROOT))
        served = stack.enter_context(serving("service.wsgi:app", env))
        stack.enter_context(workers(env))
        wait_until(lambda: count_listening(redis.url) == PROCESSES, "the workers to listen")
        return _BULK / _approve_all_s(served, seeded.customer.bearer, seeded.target_id)


def _approve_all_s(served: ServedApplication, bearer: Mapping[str, str], target_id: str) -> float:
    """Approve all prepared exports with one job, and return its duration in seconds."""
    body = {"action": "approve", "target_id": target_id, "filter": {"status": "prepared"}, "expected_count": _BULK}
    headers = {**bearer, "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=_WITHIN_S)) as client:
        client.connect()
        began_at = time.monotonic()
        client.request("POST", "/api/ticket-exports/bulk", json.dumps(body), headers)
        response = client.getresponse()
        job = json.loads(response.read())
    assert response.status == 202, job
    ended = "SELECT changed FROM bulk_jobs WHERE id = ? AND status = 'done'"
    wait_until(lambda: bool(rows(ended, (job["id"],))), "the job to end", _WITHIN_S, _POLL_S)
    elapsed_s = time.monotonic() - began_at
    assert rows(ended, (job["id"],)) == [(_BULK,)], rows(ended, (job["id"],))
    return elapsed_s


def _pages_ms(database: str) -> tuple[list[float], list[float]]:
    """Return the times of the first pages for each filter and order, of lists and of searches."""
    lists_ms: list[float] = []
    searches_ms: list[float] = []
    with empty_installation(database) as installation, connection():
        query = fill(installation.customer, _EXPORTS)
        for name, work in requests(query).items():
            if not name.startswith(("total", "facets")):
                (searches_ms if " q " in name else lists_ms).append(_median_ms(work))
    return lists_ms, searches_ms


def _median_ms(work: Callable[[], object]) -> float:
    elapsed_ms: list[float] = []
    for _ in range(_TIMES + 1):
        began_at = time.perf_counter()
        work()
        elapsed_ms.append((time.perf_counter() - began_at) * 1000)
    return median(elapsed_ms[1:])


if __name__ == "__main__":
    bench()
