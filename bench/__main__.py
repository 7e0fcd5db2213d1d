"""`python -m bench`: measures this machine, prints a table and writes bench/latest.json.

Short runs in turns and their medians, since a machine is never quite quiet. Loopback only; what it starts it stops.
"""

import itertools
import json
import platform
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import click

from bench.counterpart import Receiver, receiver
from bench.deliveries import CONCURRENCY, PROCESSES, Delivered, Installation, deliver, send_prepared
from tests.servers import PostgresServer, RedisServer

LATEST: Final = Path(__file__).parent / "latest.json"

Figures = dict[str, float | int | str]


@click.command(epilog="Example: python -m bench --exports 2000 --runs 1 --database both")
@click.option("--exports", "count", default=5000, show_default=True, type=click.IntRange(min=100), help="Exports a run.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(min=1), help="Runs, of which the median is told.")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="sqlite", show_default=True)
@click.option("--delay-ms", default=0, show_default=True, type=click.IntRange(min=0), help="How long the receiver thinks.")
@click.option("--targets", default=20, show_default=True, type=click.IntRange(1, 1000), help="That share the exports.")
@click.option("--origins", default=20, show_default=True, type=click.IntRange(1, 1000), help="Ports that share the targets.")
@click.option(
    "--concurrency", default=CONCURRENCY, show_default=True, type=click.IntRange(1, 1000), help="WORKER_CONCURRENCY of each."
)
def bench(count: int, runs: int, database: str, delay_ms: int, targets: int, origins: int, concurrency: int) -> None:
    """Measure deliveries a second with two worker processes against a plain loop of prepared requests."""
    count -= count % PROCESSES
    databases = ["sqlite", "postgresql"] if database == "both" else [database]
    figures: Figures = {"python": platform.python_version(), "processes": PROCESSES, "concurrency": concurrency}
    figures |= {"exports": count, "runs": runs, "delay_ms": delay_ms, "targets": targets, "origins": min(origins, targets)}
    with ExitStack() as stack:
        there = stack.enter_context(receiver(delay_ms, min(origins, targets)))
        urls = list(itertools.islice(itertools.cycle(there.urls), targets))
        for name in databases:
            figures |= _measured(name, there, urls, count, runs, concurrency)
    _print(figures)
    LATEST.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _measured(database: str, there: Receiver, urls: list[str], count: int, runs: int, concurrency: int) -> Figures:
    """Measure in turns, so that a busy moment of the machine meets both sides."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(PostgresServer()) if database == "postgresql" else None
        installation = Installation(folder, redis, postgres, concurrency)
        seeded = installation.seed(urls, count)
        prepared, delivered = [], []
        for _ in range(runs):
            prepared.append(send_prepared(there, count, concurrency))
            delivered.append(deliver(installation, seeded, there, count))
    return _named(database, prepared, delivered)


def _named(database: str, prepared: list[float], delivered: list[Delivered]) -> Figures:
    """Name the medians; SQLite's have no prefix, as SQLite is the default."""
    ratios = [done.per_s / plain for done, plain in zip(delivered, prepared, strict=True)]
    figures: Figures = {
        "deliveries_per_s": round(median(done.per_s for done in delivered)),
        "prepared_per_s": round(median(prepared)),
        "delivery_vs_prepared": round(median(ratios), 2),
        "cpu_ms_per_delivery": round(median(done.cpu_ms for done in delivered), 3),
        "worker_resident_mb": round(max(done.resident_mb for done in delivered)),
        "approval_to_arrival_ms": round(median(done.approval_to_arrival_ms or 0 for done in delivered), 1),
    }
    return figures if database == "sqlite" else {f"{database}_{name}": figure for name, figure in figures.items()}


def _print(figures: Figures) -> None:
    width = max(len(name) for name in figures)
    for name, figure in figures.items():
        click.echo(f"{name:{width}}  {figure:>10}")


if __name__ == "__main__":
    bench()
