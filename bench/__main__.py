"""`python -m bench`: measures this machine, prints tables and writes bench/latest.json.

Sections run one after the other; within each, the compared programs alternate, since the machine is never quite idle. If
a part fails or times out, the benchmark reports it, sets its figures to null, runs the other parts, and exits with 1. A
missed aim is reported, but is not a failure. Loopback only; started processes are stopped, also on Ctrl-C and SIGTERM.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import click

from bench.deliveries import backlog, submissions
from bench.deliveries import rates as delivery_rates
from bench.figures import LATEST, Extent, Figure, flat, machine, print_figures, write_latest
from bench.peers import task_queues
from bench.processes import memory, starting
from bench.requests import hostile_bodies, postbacks, slow_clients
from bench.requests import rates as request_rates
from bench.scale import bulk_and_lists, growth

Measure = Callable[[Extent], list[Figure]]


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement, the figure names that it always writes to bench/latest.json, and its timeout in seconds."""

    measure: Measure
    promised: Sequence[str]
    #: Two to three times the duration on a quiet machine with two cores, so that only a part that hangs exceeds it.
    timeout_s: dict[Extent, float]


class PartTimedOut(Exception):
    """A part exceeded its timeout."""


def _part(measure: Measure, promised: Sequence[str], quick_s: float, full_s: float) -> Part:
    return Part(measure, promised, {Extent.QUICK: quick_s, Extent.FULL: full_s})


#: Parts by the section names that `--only` accepts, in the order in which they run. If time runs out, the last ones fail.
SECTIONS: Final[dict[str, tuple[Part, ...]]] = {
    "deliveries": (
        _part(delivery_rates.beside_loops, delivery_rates.PROMISED_BESIDE_LOOPS, 90, 500),
        _part(delivery_rates.to_slow_and_tls, delivery_rates.PROMISED_TO_SLOW, 60, 600),
        _part(delivery_rates.approvals, delivery_rates.PROMISED_APPROVALS, 60, 240),
        _part(submissions.measure, submissions.PROMISED, 60, 120),
    ),
    "peers": (_part(task_queues.measure, task_queues.PROMISED, 90, 600),),
    "requests": (_part(request_rates.measure, request_rates.PROMISED, 120, 900),),
    "postbacks": (_part(postbacks.measure, (), 30, 60),),
    "starting": (_part(starting.measure, starting.PROMISED, 60, 180),),
    "memory": (_part(memory.measure, memory.PROMISED, 90, 240),),
    "growth": (
        _part(growth.by_rows, growth.PROMISED, 90, 900),
        _part(backlog.measure, backlog.PROMISED, 60, 400),
        _part(growth.by_targets, (), 60, 180),
        _part(growth.by_connections, (), 60, 120),
    ),
    "slow-clients": (_part(slow_clients.measure, slow_clients.PROMISED, 60, 300),),
    "hostile-bodies": (_part(hostile_bodies.measure, hostile_bodies.PROMISED, 60, 360),),
    "scale": (_part(bulk_and_lists.measure, bulk_and_lists.PROMISED, 90, 1200),),
}
#: Without `scale`: storing a million exports on each database takes minutes.
_BY_DEFAULT: Final = ",".join(name for name in SECTIONS if name != "scale")
#: Time limits of `make bench` and `make bench-quick`, minus 15 seconds for starting and stopping.
TOTAL_S: Final = {Extent.QUICK: 165.0, Extent.FULL: 1785.0}


def _named(_context: click.Context, _option: click.Parameter, names_given: str) -> list[str]:
    names = [name for name in SECTIONS if name in names_given.split(",")]
    if unknown := set(names_given.split(",")) - set(SECTIONS):
        raise click.BadParameter(f"Unknown section: {', '.join(sorted(unknown))}. Sections: {', '.join(SECTIONS)}.")
    return names


@click.command(epilog="Example: python -m bench --quick --only deliveries,peers\n\nExit codes: 0 measured, 1 a part failed.")
@click.option("--quick", "is_quick", is_flag=True, help="Under three minutes: fewer rounds, and not everything.")
@click.option(
    "--only", "names", default=_BY_DEFAULT, callback=_named, help="Sections, with commas between; scale only by name."
)
@click.option("--into", default=LATEST, type=click.Path(path_type=Path), help="Instead of bench/latest.json.")
def bench(is_quick: bool, names: list[str], into: Path) -> None:
    """Measure this machine: deliveries, requests, postbacks, growth, start and stop, memory, slow and hostile clients."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    extent = Extent.QUICK if is_quick else Extent.FULL
    raise SystemExit(run(SECTIONS, names, extent, into, TOTAL_S[extent]))


def run(sections: Mapping[str, Sequence[Part]], names: Sequence[str], extent: Extent, into: Path, total_s: float) -> int:
    """Measure the named sections and write their figures, null for promised ones without a value; return the exit code."""
    began_at, conditions = time.monotonic(), machine()
    parts = [(name, part) for name in names for part in sections[name]]
    results = [_attempt(name, part, extent, began_at + total_s - time.monotonic()) for name, part in parts]
    measured = [figure for figures in results for figure in figures or []]
    promised = [name for parts in sections.values() for part in parts for name in part.promised]
    conditions |= {"seconds": round(time.monotonic() - began_at), "is_quick": extent is Extent.QUICK}
    write_latest(conditions | flat(measured, promised), into)
    click.echo(f"{conditions['seconds']} s in all. Written to {into}.")
    return 1 if None in results else 0


def _attempt(name: str, part: Part, extent: Extent, left_s: float) -> list[Figure] | None:
    """Measure a part and print its figures; if it fails, print the reason and return None."""
    began_at = time.monotonic()
    try:
        with _limit(min(part.timeout_s[extent], left_s)):
            figures = part.measure(extent)
    except Exception:  # noqa: BLE001 - after any error, the other parts are still measured
        click.echo(f"{name} failed: {part.measure.__qualname__}\n{traceback.format_exc()}", err=True)
        return None
    print_figures(f"{name} ({time.monotonic() - began_at:.0f} s)", figures)
    found = {figure.name for figure in figures if figure.values}
    if missing := [promise for promise in part.promised if promise not in found]:
        click.echo(f"Not measured here: {', '.join(missing)}\n", err=True)
    return figures


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise PartTimedOut in the block after `seconds`; the block's context managers stop the processes that it started."""
    if seconds <= 0:
        raise PartTimedOut("The parts before it took all the time.")

    def time_out(_number: int, _frame: FrameType | None) -> None:
        raise PartTimedOut(f"It took longer than {seconds:g} s.")

    before = signal.signal(signal.SIGALRM, time_out)
    outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        # Restore a timer of the caller, such as that of pytest-timeout.
        signal.setitimer(signal.ITIMER_REAL, outer_s)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    bench()
