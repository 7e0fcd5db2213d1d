"""`python -m bench.deliveries.approval`: time from an approval to the arrival of its request, on an idle system.

The real service under gunicorn, two real workers, one approval after the other over HTTP. The time runs from the first byte
of the approval until the receiver has read the whole request.
"""

import http.client
import json
import random
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.runs import PROCESSES, listening, prepare, wait_until, workers
from bench.servers.crowd import Crowd, crowd
from bench.servers.receiver_process import BenchReceiver, receiver
from bench.servers.serving import Served, serving
from storage.db.engine import transaction
from tests.support.factories import make_target

#: What the product is held to.
WANTED_MS: Final = 50.0
#: The system is idle in between, and for no regular while: whatever looks periodically is met at any moment of its period.
_IDLE_S: Final = (0.15, 0.35)


@click.command(epilog="Example: python -m bench.deliveries.approval --database sqlite --approvals 20")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--approvals", default=100, show_default=True, type=click.IntRange(min=20), help="One after the other.")
def bench(database: str, approvals: int) -> None:
    """Measure the time from an approval to the request at the receiver."""
    results: dict[str, Any] = {**figures.machine(), "approvals": approvals}
    lines: dict[str, Sequence[float | str | None]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        # No limit of requests a minute is to be met.
        with receiver(0) as there, crowd(name, RATE_LIMIT_PER_MINUTE="1000000") as installation:
            took_ms, answered_ms = approve_one_by_one(installation, there, approvals)
        found = {
            "median_ms": round(median(took_ms), 1),
            "p95_ms": round(quantiles(took_ms, n=20)[-1], 1),
            "worst_ms": round(max(took_ms), 1),
            "response_median_ms": round(median(answered_ms), 1),
        }
        results[name], lines[name] = found, [*found.values(), f"< {WANTED_MS:g}"]
    figures.table("submitted to arrived", ("median ms", "95th ms", "worst ms", "response ms", "wanted"), lines)
    figures.write("approval", results)


def approve_one_by_one(installation: Crowd, there: BenchReceiver, count: int) -> tuple[list[float], list[float]]:
    """Return, in ms, how long after each approval its request arrived, and its response."""
    with transaction():
        target_id = make_target(installation.customer, there.url).id
        ids = prepare(installation.customer, count + 1, 0)
    with serving("service.wsgi:app", installation.env) as served, workers(installation.env):
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: listening(redis_url) == PROCESSES, "the workers to listen")
        # The first one opens every connection.
        pairs = [_approved(installation, served, there, export_id, target_id) for export_id in ids][1:]
    return [took for took, _ in pairs], [answered for _, answered in pairs]


def _approved(
    installation: Crowd, served: Served, there: BenchReceiver, export_id: str, target_id: str
) -> tuple[float, float]:
    there.clear()
    time.sleep(random.uniform(*_IDLE_S))
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    headers = {**installation.customer.bearer, "Content-Type": "application/json"}
    client.connect()
    asked_at = time.monotonic()
    client.request("POST", f"/api/ticket-exports/{export_id}/approve", json.dumps({"target_id": target_id}), headers)
    answer = client.getresponse()
    answer.read()
    answered_at = time.monotonic()
    client.close()
    assert answer.status == 202, answer.status
    wait_until(lambda: bool(there.arrivals()["requests"]), "an approved export to arrive")
    return (there.arrivals()["first_at"] - asked_at) * 1000, (answered_at - asked_at) * 1000


if __name__ == "__main__":
    bench()
