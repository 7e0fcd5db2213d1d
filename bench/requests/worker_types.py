"""`python -m bench.requests.worker_types`: compares gunicorn's worker types, with and without slow clients.

Real sockets on loopback, two worker processes of each type. While some connections send headers or bodies slowly, as a slow
line or an attacker does, a regular client reads an export, each time on a new connection. `bench.requests.slow_clients`
measures the chosen type with far more slow clients. Without wrk the rates are left out.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.figures import print_table
from bench.load.repeated_requests import available_tool
from bench.load.request_templates import SeededDatabase
from bench.load.slow_connections import ServiceAddress, dripping
from bench.requests.rates import rates
from bench.requests.slow_clients import ClientResult, read_request, run_clients, service
from bench.servers.serving import ServedApplication

#: Options of gunicorn in addition to the product's configuration, which selects gevent.
OPTIONS: Final = {
    "sync": ("--worker-class", "sync"),
    "gthread": ("--worker-class", "gthread", "--threads", "16"),
    "gevent": (),
}
#: Half of them send headers slowly, half a body: far more clients than any worker type has threads or processes.
SLOW: Final = 60
#: Seconds of the regular client's load, and the response time from which a response counts as an error.
REQUESTS_S: Final = 2.5
PATIENCE_S: Final = 2.0
PAUSE_S: Final = 0.01
LOAD_S: Final = 2
CONNECTIONS: Final = 16
#: The types alternate and medians are reported, since a machine is never quite idle.
ROUNDS: Final = 3
#: After this time, every slow client has occupied the resources that the server gives it.
_OCCUPY_S: Final = 1.0

COLUMNS: Final = ("reads/s", "postbacks/s", "quiet ms", "slow: ms", "slow: worst", "slow: errors")


@dataclass(frozen=True, slots=True)
class WorkerTypeResult:
    """One round with one type."""

    reads_per_s: float | None
    postbacks_per_s: float | None
    quiet: ClientResult
    with_slow_clients: ClientResult


def _measured(worker_type: str) -> WorkerTypeResult:
    with service(*OPTIONS[worker_type]) as (served, seeded):
        address, request_bytes = ServiceAddress(served.port), read_request(seeded)
        quiet = run_clients(address, request_bytes, 1, REQUESTS_S, PATIENCE_S, PAUSE_S)
        reads_per_s, postbacks_per_s = _rates(served, seeded)
        with dripping(address, SLOW, ["127.0.0.1"]):
            time.sleep(_OCCUPY_S)
            result = run_clients(address, request_bytes, 1, REQUESTS_S, PATIENCE_S, PAUSE_S)
        return WorkerTypeResult(reads_per_s, postbacks_per_s, quiet, result)


def _rates(served: ServedApplication, seeded: SeededDatabase) -> tuple[float | None, float | None]:
    if available_tool() != "wrk":
        # The type `sync` closes connections, which the other load generator counts as an error.
        return None, None
    templates = seeded.templates()
    found = rates(served, {kind: templates[kind] for kind in ("status", "postback")}, CONNECTIONS, LOAD_S)
    return found["status"].per_s, found["postback"].per_s


def _row(measured: list[WorkerTypeResult]) -> list[float | str | None]:
    slow = [run.with_slow_clients for run in measured]
    errors = sum(each.errors for each in slow)
    return [
        _median([run.reads_per_s for run in measured if run.reads_per_s is not None]),
        _median([run.postbacks_per_s for run in measured if run.postbacks_per_s is not None]),
        _median([median(run.quiet.elapsed_ms) for run in measured if run.quiet.elapsed_ms]),
        _median([median(each.elapsed_ms) for each in slow if each.elapsed_ms]),
        _median([max(each.elapsed_ms) for each in slow if each.elapsed_ms]),
        f"{errors}/{errors + sum(len(each.elapsed_ms) for each in slow)}",
    ]


def _median(figures: list[float]) -> float | None:
    return median(figures) if figures else None


def main() -> None:
    """Measure every type alternately and print a row for each."""
    measured: dict[str, list[WorkerTypeResult]] = {worker_type: [] for worker_type in OPTIONS}
    for _ in range(ROUNDS):
        for worker_type in OPTIONS:
            measured[worker_type].append(_measured(worker_type))
    print_table("type", COLUMNS, {name: _row(rounds) for name, rounds in measured.items()})


if __name__ == "__main__":
    main()
