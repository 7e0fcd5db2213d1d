"""Time to deliver a backlog: 100,000 approved exports wait for paused targets, which are then resumed.

Two real workers with default features and a receiver that responds at once. The time runs from resuming the targets until
the last export arrives; each must have arrived once and be recorded as delivered.
"""

import time
from datetime import timedelta
from typing import Final

from bench.deliveries.runs import (
    BODY_BYTES,
    PROCESSES,
    SeededTargets,
    check_arrivals,
    count_delivered,
    count_listening,
    wait_until,
    workers,
)
from bench.figures import Extent, Figure
from bench.processes.cost import resident_mb
from bench.servers.empty_installation import empty_installation
from bench.servers.receiver_process import run_receiver
from runtime.clock import utc_now
from tests.support.database.many_rows import analyze, checkpoint, many_targets, many_waiting

PROMISED: Final = ("backlog_100k_s",)
_AIM_S: Final = 40.0
TARGETS: Final = 100
_ORIGINS: Final = 20
#: Rows per transaction.
_CHUNK: Final = 20_000
_WITHIN_S: Final = 240.0
#: Interval between two counts: counting 100,000 rows takes some milliseconds.
_POLL_S: Final = 0.5


def measure(extent: Extent) -> list[Figure]:
    """Deliver 100,000 exports from each database; in a quick run, 10,000 from SQLite only."""
    if extent is Extent.QUICK:
        return _delivered("sqlite", 10_000)
    return _delivered("sqlite", 100_000) + _delivered("postgresql", 100_000)


def _delivered(database: str, count: int) -> list[Figure]:
    with run_receiver(0, _ORIGINS) as receiver, empty_installation(database, SWEEP_SECONDS="0.05") as installation:
        share = TARGETS // _ORIGINS
        ids = [
            target_id
            for number, url in enumerate(receiver.urls)
            for target_id in many_targets(installation.customer, number * share, share, url)
        ]
        seeded = SeededTargets(installation.customer, ids)
        seeded.change_status("pause")
        due_at = utc_now() - timedelta(minutes=1)
        for first in range(0, count, _CHUNK):
            many_waiting(
                installation.customer, first, min(_CHUNK, count - first), (0, TARGETS), due_at, body_bytes=BODY_BYTES
            )
        analyze()
        checkpoint()
        with workers(installation.env) as pids:
            redis_url = installation.env["REDIS_URL"]
            wait_until(lambda: count_listening(redis_url) == PROCESSES, "the workers to listen")
            resumed_at = time.monotonic()
            seeded.change_status("resume")
            wait_until(lambda: count_delivered() == count, "the delivery of the backlog", _WITHIN_S, _POLL_S)
            memory = max(resident_mb(pid) for pid in pids)
        elapsed_s = check_arrivals(receiver, count)["last_at"] - resumed_at
    prefix, name = "" if database == "sqlite" else f"{database}_", f"backlog_{count // 1000}k"
    aim = _AIM_S if f"{prefix}{name}_s" in PROMISED else None
    return [
        Figure(f"{prefix}{name}_s", [elapsed_s], "s", aim, is_cost=True),
        Figure(f"{prefix}{name}_worker_mb", [memory], "MB", is_cost=True),
    ]
