"""`python -m bench.scale.plans`: cost of a worker's queries with a million finished and many waiting exports.

Measures the query of each tick and each sweep (`worker.delivery.claim_planner`), a following claim of 32, and the count of
`bin/riskrelay sweep`. Each runs many times and is rolled back; the figures are medians. Waiting exports belong to one
target, to a hundred or to thousands; in the last layout almost all targets are paused. `--plans` prints the plan of each
statement. Rows are generated in SQL; started processes are stopped.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from bench import figures
from runtime.clock import utc_now
from storage.db import schema_version
from storage.db.engine import close_database, connection, database, execute, is_sqlite, open_database, transaction
from storage.exports import claims_sql, queries
from tests.support.database.many_rows import analyze, checkpoint, many_finished, many_targets, many_waiting
from tests.support.database.query_plans import plan_of, rolled_back, statements
from tests.support.factories import Customer, make_customer
from tests.support.servers.redis_and_postgres import PostgresServer
from worker.delivery.claim_planner import ClaimPlanner

#: The default of WORKER_CONCURRENCY.
THREADS: Final = 32
LEASE_S: Final = 6.0
WORKER: Final = "worker:bench"
#: Nothing listens there, and nothing is sent to it.
_UNUSED_URL: Final = "http://127.0.0.1:9/"
#: The product's bound.
BOUND_MS: Final = 5.0
#: `bin/riskrelay sweep` counts up to this number.
_SWEEP_LIMIT: Final = 10_000
#: Rows per transaction: few enough for the write-ahead log, and enough to be fast.
_CHUNK: Final = 100_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of targets with waiting exports, and how many of them are paused."""

    name: str
    targets: int
    paused: int = 0


@click.command(epilog="Example: python -m bench.scale.plans --database postgresql --plans")
@click.option("--database", "kind", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option(
    "--finished", default=1_000_000, show_default=True, type=click.IntRange(min=1000), help="Exports that are done."
)
@click.option("--waiting", default=100_000, show_default=True, type=click.IntRange(min=1000), help="Exports due.")
@click.option("--targets", default=5000, show_default=True, type=click.IntRange(min=100), help="Of the largest layouts.")
@click.option("--times", default=30, show_default=True, type=click.IntRange(3, 10_000), help="Runs of each query.")
@click.option("--plans", "shows_plans", is_flag=True, help="Print the plan of every statement.")
def bench(kind: str, finished: int, waiting: int, targets: int, times: int, shows_plans: bool) -> None:
    """Measure claim planning, a claim and the count of due exports, for few and for many targets."""
    layouts = [
        Layout("1 target", 1),
        Layout("100 targets", 100),
        Layout(f"{targets:,} targets", targets),
        Layout(f"{targets:,}, 99 % paused", targets, targets * 99 // 100),
    ]
    results: dict[str, Any] = {**figures.machine(), "finished": finished, "waiting": waiting, "times": times}
    for name in ["sqlite", "postgresql"] if kind == "both" else [kind]:
        with filled(name, finished, targets) as customer:
            results[name] = {layout.name: _measured(layout, customer, finished, waiting, times) for layout in layouts}
            if shows_plans:
                _show_plans()
        _print(name, results[name])
    figures.write("plans", results)


@contextmanager
def filled(kind: str, finished: int, targets: int) -> Iterator[Customer]:
    """Open a new database with targets and finished exports of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        postgres = stack.enter_context(PostgresServer()) if kind == "postgresql" else None
        open_database(postgres.create_database() if postgres else f"sqlite:///{folder / 'riskrelay.db'}")
        stack.callback(close_database)
        schema_version.migrate()
        stack.enter_context(connection())
        customer = make_customer()
        many_targets(customer, 0, targets, _UNUSED_URL)
        for first in range(0, finished, _CHUNK):
            many_finished(customer, first, min(_CHUNK, finished - first), (0, targets), utc_now() - timedelta(days=1))
        yield customer


def plan_claims(planner: ClaimPlanner) -> dict[str, int]:
    """Return how many exports may be claimed now for each target."""
    return planner.plan(Counter(), Counter(), utc_now()).quotas


def _measured(layout: Layout, customer: Customer, first: int, waiting: int, times: int) -> dict[str, float]:
    _lay_out(layout, customer, first, waiting)
    planner = ClaimPlanner(THREADS)
    chosen = plan_claims(planner)
    claim = partial(claims_sql.claim_due, chosen, utc_now(), LEASE_S, WORKER)
    with rolled_back():
        claimed = len(claim())
    assert claimed, "Nothing was claimed."
    return {
        "look_ms": _median_ms(partial(plan_claims, planner), times),
        "claim_ms": _median_ms(claim, times),
        "claimed": claimed,
        "count_ms": _median_ms(lambda: queries.count_due(utc_now(), _SWEEP_LIMIT), times),
    }


def _lay_out(layout: Layout, customer: Customer, first: int, waiting: int) -> None:
    """Replace the waiting exports of the previous layout by those of this one."""
    with transaction():
        execute("DELETE FROM exports WHERE due_at IS NOT NULL")
        execute("UPDATE targets SET status = 'active'")
        execute(
            "UPDATE targets SET status = 'paused' WHERE id IN (SELECT id FROM targets ORDER BY id LIMIT ?)", (layout.paused,)
        )
    due_at = utc_now() - timedelta(minutes=1)
    for start in range(0, waiting, _CHUNK):
        many_waiting(customer, first + start, min(_CHUNK, waiting - start), (0, layout.targets), due_at)
    if not is_sqlite():
        # PostgreSQL does so automatically; SQLite only on request, which the product never makes.
        database.execute_sql("VACUUM exports")
        analyze()
    checkpoint()


def _median_ms(work: Callable[[], object], times: int) -> float:
    elapsed_ms = []
    for _ in range(times):
        with rolled_back():
            began_at = time.perf_counter()
            work()
            elapsed_ms.append((time.perf_counter() - began_at) * 1000)
    return round(median(elapsed_ms), 2)


def _show_plans() -> None:
    planner = ClaimPlanner(THREADS)
    chosen = dict(list(plan_claims(planner).items())[:3])
    claim = partial(claims_sql.claim_due, chosen, utc_now(), LEASE_S, WORKER)
    count = partial(queries.count_due, utc_now(), _SWEEP_LIMIT)
    calls: dict[str, Callable[[], object]] = {"look": partial(plan_claims, planner), "claim": claim, "count": count}
    for name, work in calls.items():
        with statements() as found, rolled_back():
            work()
        for statement in {each.sql: each for each in found}.values():
            click.echo(f"{name}: {' '.join(statement.sql.split())[:100]} …")
            for step in plan_of(statement):
                click.echo(f"    {step}")
    click.echo()


def _print(name: str, measured: dict[str, dict[str, float]]) -> None:
    columns = ("look ms", "claim ms", "claimed", "count ms")
    figures.print_table(name, columns, {layout: list(results.values()) for layout, results in measured.items()})


if __name__ == "__main__":
    bench()
