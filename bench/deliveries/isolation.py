"""`python -m bench.deliveries.isolation`: does one hanging target delay a hundred others?

Two real workers with default settings. A hundred targets get exports that become due one after the other, and then the same
number all at once; reports the median and the 95th percentile of the time from due to arrival. Alternately with and without
another target, which has a thousand due exports, accepts requests and never responds: it has as many open requests as
allowed, each until the deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median, quantiles
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.runs import PROCESSES, listening, wait_until, workers
from bench.servers.crowd import Crowd, crowd
from bench.servers.receiver_process import BenchReceiver, receiver
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from tests.support.database.many_rows import export_id, many_targets, many_waiting

TARGETS: Final = 100
#: What waits for the target that hangs.
HANGING: Final = 1000
#: What the product is held to.
WANTED: Final = 1.2
#: Between the moment at which every worker listens and the first due time: for storing what is to come due.
LEAD: Final = timedelta(seconds=1.5)
_SIDES: Final = ("without", "with")


@dataclass(frozen=True, slots=True)
class Pattern:
    """How exports come due: so many, each so long after the one before."""

    name: str
    exports: int
    every_ms: int


@dataclass(frozen=True, slots=True)
class Waited:
    """How long exports took from their due time to the receiver, in milliseconds."""

    median_ms: float
    p95_ms: float


@click.command(epilog="Example: python -m bench.deliveries.isolation --database both --rounds 1")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="sqlite", show_default=True)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20), help="Of which medians are results.")
@click.option(
    "--exports", default=1500, show_default=True, type=click.IntRange(min=200), help="Exports per pattern and repetition."
)
@click.option(
    "--every-ms", default=4, show_default=True, type=click.IntRange(min=1), help="Between two, one after the other."
)
@click.option("--timeout-s", default=15.0, show_default=True, type=click.FloatRange(min=1), help="DELIVERY_TIMEOUT_S.")
def bench(database: str, rounds: int, exports: int, every_ms: int, timeout_s: float) -> None:
    """Measure how long exports wait with and without a target that hangs."""
    patterns = [Pattern("one after the other", exports, every_ms), Pattern("all at once", exports, 0)]
    results: dict[str, Any] = {**figures.machine(), "rounds": rounds, "exports": exports, "every_ms": every_ms}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with receiver(0, TARGETS) as there, crowd(name, DELIVERY_TIMEOUT_S=str(timeout_s)) as installation:
            for number, url in enumerate(there.urls):
                many_targets(installation.customer, number, 1, url)
            many_targets(installation.customer, TARGETS, 1, f"{there.url}hang")
            results[name] = {pattern.name: _alternating(installation, there, pattern, rounds) for pattern in patterns}
        _print(name, results[name])
    figures.write("isolation", results)


def _alternating(installation: Crowd, there: BenchReceiver, pattern: Pattern, rounds: int) -> dict[str, float]:
    measured: dict[str, list[Waited]] = {side: [] for side in _SIDES}
    for number in range(rounds):
        # The side that begins changes, so that a machine that grows busier favours neither.
        for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
            measured[side].append(_waited(installation, there, pattern, hangs=side == "with"))
    pairs = zip(measured["with"], measured["without"], strict=True)
    results = {"with_vs_without": round(median(hung.median_ms / free.median_ms for hung, free in pairs), 2)}
    for side, runs in measured.items():
        results[f"{side}_median_ms"] = round(median(one.median_ms for one in runs), 1)
        results[f"{side}_p95_ms"] = round(median(one.p95_ms for one in runs), 1)
    return results


def _waited(installation: Crowd, there: BenchReceiver, pattern: Pattern, *, hangs: bool) -> Waited:
    installation.begin_anew()
    there.clear()
    if hangs:
        many_waiting(installation.customer, 0, HANGING, (TARGETS, 1), utc_now() - timedelta(seconds=1))
    # What hangs would be waited for: they are ended as by a crash.
    with workers(installation.env, is_in_order=False):
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: listening(redis_url) == PROCESSES, "the workers to listen")
        if hangs:
            wait_until(lambda: bool(there.arrivals()["hung"]), "requests to hang")
        begins_at = utc_now() + LEAD
        many_waiting(installation.customer, HANGING, pattern.exports, (0, TARGETS), begins_at, every_ms=pattern.every_ms)
        wait_until(lambda: bool(there.arrivals()["requests"] >= pattern.exports), "every export to arrive")
        return waited(there, pattern, begins_at, HANGING)


def waited(there: BenchReceiver, pattern: Pattern, begins_at: datetime, first: int) -> Waited:
    """Return how long the exports of a pattern took, which are numbered from `first`."""
    times, begins_ms = there.times(), to_ms(begins_at)
    took_ms = [times[export_id(first + n)] - (begins_ms + n * pattern.every_ms) for n in range(pattern.exports)]
    return Waited(median(took_ms), quantiles(took_ms, n=20)[-1])


def _print(name: str, results: dict[str, dict[str, float]]) -> None:
    columns = ("without, ms", "95th", "with, ms", "95th", "with/without", "wanted")
    wanted = f"< {WANTED:g}"
    lines: dict[str, Sequence[float | str | None]] = {
        pattern: (
            one["without_median_ms"],
            one["without_p95_ms"],
            one["with_median_ms"],
            one["with_p95_ms"],
            one["with_vs_without"],
            wanted,
        )
        for pattern, one in results.items()
    }
    figures.table(name, columns, lines)


if __name__ == "__main__":
    bench()
