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
from bench.deliveries.runs import PROCESSES, count_listening, prepare, wait_until, workers
from bench.servers.empty_installation import EmptyInstallation, empty_installation
from bench.servers.receiver_process import BenchReceiver, run_receiver
from bench.servers.serving import ServedApplication, serving
from storage.db.engine import transaction
from tests.support.factories import make_target

#: The product's bound for the median.
BOUND_MS: Final = 50.0
#: Random pause before each approval, so that approvals hit periodic tasks at any moment of their periods.
_IDLE_S: Final = (0.15, 0.35)


@click.command(epilog="Example: python -m bench.deliveries.approval --database sqlite --approvals 20")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--approvals", default=100, show_default=True, type=click.IntRange(min=20), help="One after the other.")
def bench(database: str, approvals: int) -> None:
    """Measure the time from an approval to the request at the receiver."""
    results: dict[str, Any] = {**figures.machine(), "approvals": approvals}
    lines: dict[str, Sequence[float | str | None]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        # A rate limit that the approvals do not reach.
        with run_receiver(0) as receiver, empty_installation(name, RATE_LIMIT_PER_MINUTE="1000000") as installation:
            arrival_ms, response_ms = approve_one_by_one(installation, receiver, approvals)
        found = {
            "median_ms": round(median(arrival_ms), 1),
            "p95_ms": round(quantiles(arrival_ms, n=20)[-1], 1),
            "worst_ms": round(max(arrival_ms), 1),
            "response_median_ms": round(median(response_ms), 1),
        }
        results[name], lines[name] = found, [*found.values(), f"< {BOUND_MS:g}"]
    figures.print_table("submitted to arrived", ("median ms", "95th ms", "worst ms", "response ms", "bound"), lines)
    figures.write("approval", results)


def approve_one_by_one(
    installation: EmptyInstallation, receiver: BenchReceiver, count: int
) -> tuple[list[float], list[float]]:
    """Approve `count` exports; return, in ms, the times until the delivery arrived and until the approval's response."""
    with transaction():
        target_id = make_target(installation.customer, receiver.url).id
        ids = prepare(installation.customer, count + 1, 0)
    with serving("service.wsgi:app", installation.env) as served, workers(installation.env):
        redis_url = installation.env["REDIS_URL"]
        wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
        # Without the first approval, which opens the connections.
        pairs = [_approved(installation, served, receiver, export_id, target_id) for export_id in ids][1:]
    return [arrival for arrival, _ in pairs], [response for _, response in pairs]


def _approved(
    installation: EmptyInstallation, served: ServedApplication, receiver: BenchReceiver, export_id: str, target_id: str
) -> tuple[float, float]:
    receiver.clear()
    time.sleep(random.uniform(*_IDLE_S))
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    headers = {**installation.customer.bearer, "Content-Type": "application/json"}
    client.connect()
    sent_at = time.monotonic()
    client.request("POST", f"/api/ticket-exports/{export_id}/approve", json.dumps({"target_id": target_id}), headers)
    response = client.getresponse()
    response.read()
    responded_at = time.monotonic()
    client.close()
    assert response.status == 202, response.status
    wait_until(lambda: bool(receiver.arrivals()["requests"]), "an approved export to arrive")
    return (receiver.arrivals()["first_at"] - sent_at) * 1000, (responded_at - sent_at) * 1000


if __name__ == "__main__":
    bench()
