"""`python -m bench.requests.worker_types`: compares gunicorn's worker types, with and without slow clients.

Real sockets on loopback, two worker processes of each type. While some connections send headers or bodies slowly, as a slow
line or an attacker does, a regular client reads an export, each time on a new connection. `bench.requests.slow_clients`
measures the chosen type with far more slow clients. Without wrk the rates are left out.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.figures import table
from bench.load.questions import SeededDatabase
from bench.load.repeated_requests import tool_here
from bench.load.slow_connections import ServiceAddress, dripping
from bench.requests.rates import rates
from bench.requests.slow_clients import Met, ask, read_of, service
from bench.servers.serving import Served

#: Options of gunicorn beside our configuration, which selects gevent.
OPTIONS: Final = {
    "sync": ("--worker-class", "sync"),
    "gthread": ("--worker-class", "gthread", "--threads", "16"),
    "gevent": (),
}
#: Half of them drip headers, half a body: far more than any of the types has threads or processes.
SLOW: Final = 60
#: How long the ordinary client asks, and how long it waits for one answer before it calls that an error.
ASK_S: Final = 2.5
PATIENCE_S: Final = 2.0
PAUSE_S: Final = 0.01
LOAD_S: Final = 2
CONNECTIONS: Final = 16
#: The types alternate and medians are reported, since a machine is never quite idle.
ROUNDS: Final = 3
_SETTLE_S: Final = 1.0

COLUMNS: Final = ("reads/s", "postbacks/s", "quiet ms", "slow: ms", "slow: worst", "slow: errors")


@dataclass(frozen=True, slots=True)
class WorkerTypeResult:
    """One round with one type."""

    reads_per_s: float | None
    postbacks_per_s: float | None
    quiet: Met
    with_slow_clients: Met


def _measured(worker_type: str) -> WorkerTypeResult:
    with service(*OPTIONS[worker_type]) as (served, seeded):
        place, sent = ServiceAddress(served.port), read_of(seeded)
        quiet = ask(place, sent, 1, ASK_S, PATIENCE_S, PAUSE_S)
        reads_per_s, postbacks_per_s = _rates(served, seeded)
        with dripping(place, SLOW, ["127.0.0.1"]):
            # Until each has got hold of whatever it can get hold of.
            time.sleep(_SETTLE_S)
            met = ask(place, sent, 1, ASK_S, PATIENCE_S, PAUSE_S)
        return WorkerTypeResult(reads_per_s, postbacks_per_s, quiet, met)


def _rates(served: Served, seeded: SeededDatabase) -> tuple[float | None, float | None]:
    if tool_here() != "wrk":
        # The type `sync` closes connections, which the other load generator takes for an error.
        return None, None
    questions = seeded.questions()
    found = rates(served, {kind: questions[kind] for kind in ("status", "postback")}, CONNECTIONS, LOAD_S)
    return found["status"].per_s, found["postback"].per_s


def _row(measured: list[WorkerTypeResult]) -> list[float | str | None]:
    met = [one.with_slow_clients for one in measured]
    errors = sum(each.errors for each in met)
    return [
        _median([one.reads_per_s for one in measured if one.reads_per_s is not None]),
        _median([one.postbacks_per_s for one in measured if one.postbacks_per_s is not None]),
        _median([median(one.quiet.took_ms) for one in measured if one.quiet.took_ms]),
        _median([median(each.took_ms) for each in met if each.took_ms]),
        _median([max(each.took_ms) for each in met if each.took_ms]),
        f"{errors}/{errors + sum(len(each.took_ms) for each in met)}",
    ]


def _median(figures: list[float]) -> float | None:
    return median(figures) if figures else None


def main() -> None:
    """Measure every type alternately and print a row for each."""
    measured: dict[str, list[WorkerTypeResult]] = {worker_type: [] for worker_type in OPTIONS}
    for _ in range(ROUNDS):
        for worker_type in OPTIONS:
            measured[worker_type].append(_measured(worker_type))
    table("type", COLUMNS, {name: _row(rounds) for name, rounds in measured.items()})


if __name__ == "__main__":
    main()
