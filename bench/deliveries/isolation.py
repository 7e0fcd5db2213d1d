"""`python -m bench.deliveries.isolation`: whether one target that never responds delays a hundred other targets.

Two real workers with default settings. A hundred targets get exports that become due one after the other, and then the same
number all at once; reports the median and the 95th percentile of the time from due to arrival. Rounds alternate with and
without another target, which has a thousand due exports, accepts requests and never responds: it has as many open requests
as allowed, each until the deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median, quantiles
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.runs import PROCESSES, count_listening, wait_until, workers
from bench.servers.empty_installation import EmptyInstallation, empty_installation
from bench.servers.receiver_process import BenchReceiver, run_receiver
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from tests.support.database.many_rows import export_id, many_targets, many_waiting

TARGETS: Final = 100
#: Due exports of the target that never responds.
HANGING: Final = 1000
#: The product's bound for the ratio of the medians with and without that target.
BOUND: Final = 1.2
#: Time from the moment when every worker listens to the first due time; meanwhile the exports are stored.
LEAD: Final = timedelta(seconds=1.5)
_SIDES: Final = ("without", "with")


@dataclass(frozen=True, slots=True)
class Pattern:
    """When exports become due: `exports` of them, each `every_ms` after the previous one."""

    name: str
    exports: int
    every_ms: int


@dataclass(frozen=True, slots=True)
class WaitResult:
    """Times between an export's due time and its arrival at the receiver, in milliseconds."""

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
        with (
            run_receiver(0, TARGETS) as receiver,
            empty_installation(name, DELIVERY_TIMEOUT_S=str(timeout_s)) as installation,
        ):
            for number, url in enumerate(receiver.urls):
                many_targets(installation.customer, number, 1, url)
            many_targets(installation.customer, TARGETS, 1, f"{receiver.url}hang")
            results[name] = {pattern.name: _alternating(installation, receiver, pattern, rounds) for pattern in patterns}
        _print(name, results[name])
    figures.write("isolation", results)


def _alternating(
    installation: EmptyInstallation, receiver: BenchReceiver, pattern: Pattern, rounds: int
) -> dict[str, float]:
    measured: dict[str, list[WaitResult]] = {side: [] for side in _SIDES}
    for number in range(rounds):
        # The sides take turns to begin, so that an increasing load of the machine does not favor one of them.
        for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
            measured[side].append(_waited(installation, receiver, pattern, hangs=side == "with"))
    pairs = zip(measured["with"], measured["without"], strict=True)
    results = {"with_vs_without": round(median(hung.median_ms / free.median_ms for hung, free in pairs), 2)}
    for side, runs in measured.items():
        results[f"{side}_median_ms"] = round(median(result.median_ms for result in runs), 1)
        results[f"{side}_p95_ms"] = round(median(result.p95_ms for result in runs), 1)
    return results


def _waited(installation: EmptyInstallation, receiver: BenchReceiver, pattern: Pattern, *, hangs: bool) -> WaitResult:
    installation.reset()
    receiver.clear()
    if hangs:
        many_waiting(installation.customer, 0, HANGING, (TARGETS, 1), utc_now() - timedelta(seconds=1))
    # Killed, since a graceful stop would wait for the hanging requests.
    with workers(installation.env, is_graceful=False):
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
        if hangs:
            wait_until(lambda: bool(receiver.arrivals()["hung"]), "requests to hang")
        begins_at = utc_now() + LEAD
        many_waiting(installation.customer, HANGING, pattern.exports, (0, TARGETS), begins_at, every_ms=pattern.every_ms)
        wait_until(lambda: bool(receiver.arrivals()["requests"] >= pattern.exports), "every export to arrive")
        return waited(receiver, pattern, begins_at, HANGING)


def waited(receiver: BenchReceiver, pattern: Pattern, begins_at: datetime, first: int) -> WaitResult:
    """Return the wait times of a pattern's exports, which are numbered from `first`."""
    times, begins_ms = receiver.times(), to_ms(begins_at)
    elapsed_ms = [times[export_id(first + n)] - (begins_ms + n * pattern.every_ms) for n in range(pattern.exports)]
    return WaitResult(median(elapsed_ms), quantiles(elapsed_ms, n=20)[-1])


def _print(name: str, results: dict[str, dict[str, float]]) -> None:
    columns = ("without, ms", "95th", "with, ms", "95th", "with/without", "bound")
    bound = f"< {BOUND:g}"
    lines: dict[str, Sequence[float | str | None]] = {
        pattern: (
            result["without_median_ms"],
            result["without_p95_ms"],
            result["with_median_ms"],
            result["with_p95_ms"],
            result["with_vs_without"],
            bound,
        )
        for pattern, result in results.items()
    }
    figures.print_table(name, columns, lines)


if __name__ == "__main__":
    bench()
