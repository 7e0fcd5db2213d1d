"""`python -m bench.deliveries.million`: memory of workers while a million exports are due, and their rate of deliveries.

Two real workers start on a database in which all exports are due, for a hundred targets at a receiver that responds at once.
Reports the highest memory of any process. Memory that grows with the number of due exports would show within seconds. Rows
are generated in SQL.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import click

from bench import figures
from bench.deliveries.runs import BODY_BYTES, PROCESSES, count_listening, wait_until, workers
from bench.processes.cost import proportional_mb, resident_mb
from bench.servers.empty_installation import EmptyInstallation, empty_installation
from bench.servers.receiver_process import BenchReceiver, rate, run_receiver
from runtime.clock import utc_now
from tests.support.database.many_rows import analyze, checkpoint, many_targets, many_waiting

TARGETS: Final = 100
#: The product's bound for the memory of a worker.
BOUND_MB: Final = 150.0
#: Rows per transaction.
_CHUNK: Final = 50_000
#: Interval between two samples: to compute PSS, the kernel reads all page tables, which takes a millisecond or two.
_SAMPLE_EVERY_S: Final = 0.25


@click.command(epilog="Example: python -m bench.deliveries.million --exports 100000 --seconds 5 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--exports", default=1_000_000, show_default=True, type=click.IntRange(min=1000), help="How many are due.")
@click.option("--seconds", default=15, show_default=True, type=click.IntRange(1, 600), help="How long workers deliver.")
@click.option("--body-bytes", default=BODY_BYTES, show_default=True, type=click.IntRange(min=1), help="Of each export.")
def bench(database: str, exports: int, seconds: int, body_bytes: int) -> None:
    """Measure the memory of two worker processes while many exports are due."""
    measured: dict[str, dict[str, float]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with run_receiver(0, TARGETS) as receiver, empty_installation(name) as installation:
            _fill(installation, receiver, exports, body_bytes)
            measured[name] = _measured(installation, receiver, exports, seconds)
    columns = ("RSS MB", "PSS MB", "bound", "a second")
    bound = f"< {BOUND_MB:g}"
    lines: dict[str, Sequence[float | str | None]] = {
        name: (result["resident_mb"], result["proportional_mb"], bound, result["per_s"]) for name, result in measured.items()
    }
    figures.print_table("a worker, at most", columns, lines)
    parameters = {"exports": exports, "seconds": seconds, "body_bytes": body_bytes}
    figures.write("million", {**figures.machine(), **parameters, **measured})


def _fill(installation: EmptyInstallation, receiver: BenchReceiver, exports: int, body_bytes: int) -> None:
    for number, url in enumerate(receiver.urls):
        many_targets(installation.customer, number, 1, url)
    due_at = utc_now() - timedelta(minutes=1)
    for first in range(0, exports, _CHUNK):
        many_waiting(installation.customer, first, min(_CHUNK, exports - first), (0, TARGETS), due_at, body_bytes=body_bytes)
    analyze()
    checkpoint()


def _measured(installation: EmptyInstallation, receiver: BenchReceiver, exports: int, seconds: int) -> dict[str, float]:
    resident, proportional = 0.0, 0.0
    with workers(installation.env) as pids:
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            resident = max(resident, *(resident_mb(pid) for pid in pids))
            proportional = max(proportional, *(proportional_mb(pid) for pid in pids))
            time.sleep(_SAMPLE_EVERY_S)
        arrivals = receiver.arrivals()
    assert arrivals["requests"], "Nothing was delivered."
    assert arrivals["requests"] < exports, "Everything was delivered; use more exports."
    return {"resident_mb": round(resident), "proportional_mb": round(proportional), "per_s": round(rate(arrivals))}


if __name__ == "__main__":
    bench()
