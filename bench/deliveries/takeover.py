"""`python -m bench.deliveries.takeover`: time until another worker has delivered the exports of a killed one.

Two real workers send to a slow receiver, so that each holds many exports; one is killed (SIGKILL) during deliveries. The
tables show what it held. Reports the time from the kill to the last delivery of these. After every repetition all exports
must be delivered, and repeated requests must be due to the kill.
"""

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.runs import PROCESSES, count_delivered, count_listening, wait_until, workers
from bench.servers.empty_installation import EmptyInstallation, empty_installation
from bench.servers.receiver_process import BenchReceiver, run_receiver
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import rows
from tests.support.database.many_rows import many_targets, many_waiting

TARGETS: Final = 20
#: The product's bound.
BOUND_S: Final = 10.0
#: Long enough that at any moment, most claimed exports are in requests in progress.
DELAY_MS: Final = 300
#: Time limit; a hanging second worker is reported as a failure.
_WITHIN_S: Final = 60.0

# The latest claim of an export names its worker: host, process id and a random suffix.
_HELD: Final = """
SELECT e.id FROM exports e JOIN audit_entries a ON a.subject_id = e.id
WHERE e.status = 'delivering' AND a.actor LIKE ? AND a.id = (
    SELECT MAX(id) FROM audit_entries WHERE subject_id = e.id AND action = 'claim'
)"""


@dataclass(frozen=True, slots=True)
class TakeoverResult:
    """One round: exports of the killed worker, seconds until the last of them was delivered, and repeated requests."""

    held: int
    seconds: float
    repeated: int


@click.command(epilog="Example: python -m bench.deliveries.takeover --database sqlite --rounds 1")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(1, 20), help="Repetitions; reports the worst too."
)
@click.option("--exports", default=600, show_default=True, type=click.IntRange(min=200), help="A round.")
def bench(database: str, rounds: int, exports: int) -> None:
    """Measure how soon a worker delivers the exports of a killed one."""
    results: dict[str, Any] = {**figures.machine(), "rounds": rounds, "exports": exports, "delay_ms": DELAY_MS}
    lines: dict[str, Sequence[float | str | None]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with run_receiver(DELAY_MS, TARGETS) as receiver, empty_installation(name) as installation:
            for number, url in enumerate(receiver.urls):
                many_targets(installation.customer, number, 1, url)
            done = [_taken_over(installation, receiver, exports) for _ in range(rounds)]
        found = {
            "held": median(result.held for result in done),
            "repeated": median(result.repeated for result in done),
            "median_s": round(median(result.seconds for result in done), 2),
            "worst_s": round(max(result.seconds for result in done), 2),
        }
        results[name], lines[name] = found, [*found.values(), f"< {BOUND_S:g}"]
    figures.print_table("after kill -9", ("held", "repeated", "median s", "worst s", "bound"), lines)
    figures.write("takeover", results)


def _taken_over(installation: EmptyInstallation, receiver: BenchReceiver, exports: int) -> TakeoverResult:
    installation.reset()
    receiver.clear()
    with workers(installation.env) as pids:
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
        many_waiting(installation.customer, 0, exports, (0, TARGETS), utc_now())
        wait_until(
            lambda: bool(_held_by(pids[0]) and receiver.arrivals()["requests"] > exports // 10), "work to be under way"
        )
        os.kill(pids[0], signal.SIGKILL)
        killed_at = utc_now()
        held = _held_by(pids[0])
        wait_until(lambda: count_delivered() == exports, "every export to be delivered", _WITHIN_S)
        arrivals = receiver.arrivals()
    assert held, "The killed worker held no exports."
    assert arrivals["distinct"] == exports, arrivals
    repeated = arrivals["requests"] - exports
    assert repeated <= len(held), f"{repeated} requests were repeated, but the killed worker held only {len(held)} exports."
    return TakeoverResult(len(held), _last_delivered_s(held, killed_at), repeated)


def _held_by(pid: int) -> list[str]:
    return [row[0] for row in rows(_HELD, (f"worker:{socket.gethostname()}:{pid}:%",))]


def _last_delivered_s(ids: Sequence[str], since: datetime) -> float:
    finished_ms: dict[str, int] = dict(rows("SELECT id, finished_at FROM exports"))
    return (max(finished_ms[export_id] for export_id in ids) - to_ms(since)) / 1000


if __name__ == "__main__":
    bench()
