"""`python -m bench.at_scale`: a bulk approval of ten thousand exports, and lists and searches among a million.

The bulk approval runs in the task of one worker that does nothing else, from the request to the end of the job,
without HTTP. Lists and searches are pages of 50 as the API reads them; each figure is the median of many pages.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Final

import click

from bench.crowd import crowd
from bench.deliveries import prepare
from bench.export_list import fill, requests
from bench.figures import Extent, Figure, tell
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.base.timestamps import to_ms
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.export_filter import ExportQuery
from storage.accounts.account_limits import AccountLimits
from storage.db.engine import connection, execute, rows, transaction
from storage.triage import bulk_jobs
from tests.support.factories import LOOPBACK_POLICY, make_target
from worker.background.bulk_jobs import BulkJobTask

DATABASES: Final = ("sqlite", "postgresql")
PROMISED: Final = tuple(
    f"{prefix}{name}" for prefix in ("", "postgresql_") for name in ("bulk_approval_per_s", "list_1e6_ms", "search_1e6_ms")
)
_BULK: Final = 10_000
_ROUNDS: Final = 3
_EXPORTS: Final = 1_000_000
_TIMES: Final = 5


@click.command(epilog="Example: python -m bench.at_scale")
def bench() -> None:
    """Measure bulk approvals, and lists and searches among a million exports."""
    tell("at scale", measure(Extent.FULL))


def measure(extent: Extent) -> list[Figure]:
    """Measure both databases; in a quick run only the bulk approval, once."""
    figures: list[Figure] = []
    for database in DATABASES:
        prefix = "" if database == "sqlite" else f"{database}_"
        rounds = 1 if extent is Extent.QUICK else _ROUNDS
        figures.append(Figure(f"{prefix}bulk_approval_per_s", [_bulk_per_s(database) for _ in range(rounds)], "1/s", 5000.0))
        if extent is Extent.FULL:
            lists_ms, searches_ms = _pages_ms(database)
            figures.append(Figure(f"{prefix}list_1e6_ms", lists_ms, "ms", 25.0, is_cost=True))
            figures.append(Figure(f"{prefix}search_1e6_ms", searches_ms, "ms", 25.0, is_cost=True))
    return figures


def _bulk_per_s(database: str) -> float:
    with crowd(database) as installation:
        customer = installation.customer
        with transaction():
            target_id = make_target(customer, "http://127.0.0.1:1/").id
            prepare(customer, _BULK, 0)
            # Nothing is sent meanwhile.
            held_until = to_ms(utc_now() + timedelta(hours=1))
            execute("UPDATE targets SET held_until = ? WHERE id = ?", (held_until, target_id))
        wake_ups = WakeUpQueue(connect(installation.env["REDIS_URL"]))
        task = BulkJobTask(wake_ups, LOOPBACK_POLICY, AccountLimits({}), utc_now)
        decision = BulkDecision(BulkAction.APPROVE, target_id, None, None)
        query = ExportQuery(customer.account_id, statuses=("prepared",))
        began_at = time.perf_counter()
        bulk_jobs.request(
            bulk_jobs.NewBulkJob(decision, query, _BULK, customer.account_id, customer.user_id, "user:bench"),
            utc_now(),
            LOOPBACK_POLICY,
        )
        while task.run_once():
            pass
        took_s = time.perf_counter() - began_at
        assert rows("SELECT COUNT(*) FROM exports WHERE status = 'approved'") == [(_BULK,)]
    return _BULK / took_s


def _pages_ms(database: str) -> tuple[list[float], list[float]]:
    """Return the time of each page by filter and order, as medians: lists and searches."""
    lists_ms: list[float] = []
    searches_ms: list[float] = []
    with crowd(database) as installation, connection():
        query = fill(installation.customer, _EXPORTS)
        for name, work in requests(query).items():
            if not name.startswith(("total", "facets")):
                (searches_ms if " q " in name else lists_ms).append(_median_ms(work))
    return [median(lists_ms)], [median(searches_ms)]


def _median_ms(work: Callable[[], object]) -> float:
    took: list[float] = []
    for _ in range(_TIMES + 1):
        began_at = time.perf_counter()
        work()
        took.append((time.perf_counter() - began_at) * 1000)
    return median(took[1:])


if __name__ == "__main__":
    bench()
