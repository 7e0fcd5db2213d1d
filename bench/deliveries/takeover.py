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
from bench.deliveries.runs import PROCESSES, finished, listening, wait_until, workers
from bench.servers.crowd import Crowd, crowd
from bench.servers.receiver_process import BenchReceiver, receiver
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import rows
from tests.support.database.many_rows import many_targets, many_waiting

TARGETS: Final = 20
#: What the product is held to.
WANTED_S: Final = 10.0
#: Long enough that most of what is held at any moment is on its way.
DELAY_MS: Final = 300
#: Time limit; a hanging second worker is reported as a failure.
_WITHIN_S: Final = 60.0

# The latest claim of each export tells who holds it; what follows the process id in a name is drawn by lot.
_HELD: Final = """
SELECT e.id FROM exports e JOIN audit_entries a ON a.subject_id = e.id
WHERE e.status = 'delivering' AND a.actor LIKE ? AND a.id = (
    SELECT MAX(id) FROM audit_entries WHERE subject_id = e.id AND action = 'claim'
)"""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """One round: how many exports the killed worker held, when the last was delivered, and requests that came twice."""

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
    """Measure how soon a worker delivers what a killed one held."""
    results: dict[str, Any] = {**figures.machine(), "rounds": rounds, "exports": exports, "delay_ms": DELAY_MS}
    lines: dict[str, Sequence[float | str | None]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        with receiver(DELAY_MS, TARGETS) as there, crowd(name) as installation:
            for number, url in enumerate(there.urls):
                many_targets(installation.customer, number, 1, url)
            done = [_taken_over(installation, there, exports) for _ in range(rounds)]
        found = {
            "held": median(one.held for one in done),
            "repeated": median(one.repeated for one in done),
            "median_s": round(median(one.seconds for one in done), 2),
            "worst_s": round(max(one.seconds for one in done), 2),
        }
        results[name], lines[name] = found, [*found.values(), f"< {WANTED_S:g}"]
    figures.table("after kill -9", ("held", "repeated", "median s", "worst s", "wanted"), lines)
    figures.write("takeover", results)


def _taken_over(installation: Crowd, there: BenchReceiver, exports: int) -> TakenOver:
    installation.begin_anew()
    there.clear()
    with workers(installation.env) as pids:
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: listening(redis_url) == PROCESSES, "the workers to listen")
        many_waiting(installation.customer, 0, exports, (0, TARGETS), utc_now())
        wait_until(lambda: bool(_held_by(pids[0]) and there.arrivals()["requests"] > exports // 10), "work to be under way")
        os.kill(pids[0], signal.SIGKILL)
        killed_at = utc_now()
        held = _held_by(pids[0])
        wait_until(lambda: finished() == exports, "every export to be delivered", _WITHIN_S)
        arrivals = there.arrivals()
    assert held, "The killed worker held nothing at that moment."
    assert arrivals["distinct"] == exports, arrivals
    repeated = arrivals["requests"] - exports
    assert repeated <= len(held), f"{repeated} requests came twice, and only {len(held)} exports were held."
    return TakenOver(len(held), _last_delivered_s(held, killed_at), repeated)


def _held_by(pid: int) -> list[str]:
    return [row[0] for row in rows(_HELD, (f"worker:{socket.gethostname()}:{pid}:%",))]


def _last_delivered_s(ids: Sequence[str], since: datetime) -> float:
    finished_ms: dict[str, int] = dict(rows("SELECT id, finished_at FROM exports"))
    return (max(finished_ms[export_id] for export_id in ids) - to_ms(since)) / 1000


if __name__ == "__main__":
    bench()
