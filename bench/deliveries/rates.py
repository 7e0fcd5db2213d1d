"""Deliveries per second: receivers that respond at once, after 50 ms or a second; plain and over TLS; both databases.

Two worker processes, bodies of 2 KiB, the receiver in a separate process. For the immediate receiver, plain request loops
without queue and database, and `wrk`, alternate with the workers. Also reports processor time, memory, and the time from an
approval to the arrival of its request, on an idle system and under full load.
"""

import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from bench.deliveries import approval
from bench.deliveries.runs import (
    BODY_BYTES,
    CONCURRENCY,
    PROCESSES,
    BenchInstallation,
    DeliveryResult,
    SeededTargets,
    approve,
    count_delivered,
    count_listening,
    deliver,
    prepare,
    run_request_loops,
    wait_until,
    workers,
)
from bench.figures import Extent, Figure, ratio
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.empty_installation import empty_installation
from bench.servers.receiver_process import BenchReceiver, rate, run_receiver
from runtime.wake_up_queue import WakeUpQueue, connect
from storage.db.engine import transaction
from tests.support.factories import make_target
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.worker.receivers import make_certificate

PROMISED_BESIDE_LOOPS: Final = ("delivery_vs_session_post", "delivery_vs_prepared", "postgres_vs_sqlite")
PROMISED_TO_SLOW: Final = ("delivery_50ms_per_s",)
PROMISED_APPROVALS: Final = tuple(
    f"{prefix}submit_to_arrival_{figure}_ms" for prefix in ("", "postgresql_") for figure in ("p50", "p99")
)
DATABASES: Final = ("sqlite", "postgresql")
#: Ports of the receiver: several, so that limits per receiver are not reached; few, since one process serves them all.
_ORIGINS: Final = 20
#: Seconds of the wrk load, and its connections: as many as both workers have threads.
_WRK_S: Final = 2
_WRK_CONNECTIONS: Final = PROCESSES * CONCURRENCY
_ADDRESS: Final = "127.0.0.1"
#: Interval between two approvals under load.
_APPROVE_EVERY_S: Final = 0.02
_APPROVED_AT_MOST: Final = 500
_PERCENTILES: Final = 100

#: With headers of the same size as a delivery's.
_SCRIPT: Final = f"""
wrk.method = "POST"
wrk.body = string.rep("x", {BODY_BYTES})
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Idempotency-Key"] = "exp_" .. string.rep("0", 26)
wrk.headers["X-Request-Id"] = "att_" .. string.rep("0", 26)
wrk.headers["X-Service-Nonce"] = string.rep("0", 32)
wrk.headers["X-Service-Signature"] = "sha256=" .. string.rep("0", 64)
"""


@dataclass(frozen=True, slots=True)
class ReceiverCase:
    """One kind of receiver, and its load: number of targets, WORKER_CONCURRENCY, exports of a run, rounds."""

    name: str
    delay_ms: int
    is_tls: bool
    targets: int
    concurrency: int
    exports: dict[Extent, int]
    rounds: dict[Extent, int]


def _case(delay_ms: int, is_tls: bool, exports: tuple[int, int], rounds: tuple[int, int]) -> ReceiverCase:
    """Return a case; `exports` and `rounds` are those of a quick and a full run, which omits a case with 0 rounds."""
    words = ["delivery", *([f"{delay_ms}ms"] if delay_ms else []), *(["tls"] if is_tls else [])]
    targets, concurrency = (100, 128) if delay_ms else (20, CONCURRENCY)
    counts = dict(zip(Extent, exports, strict=True)), dict(zip(Extent, rounds, strict=True))
    return ReceiverCase("_".join(words), delay_ms, is_tls, targets, concurrency, *counts)


FAST: Final = _case(0, False, (3000, 6000), (1, 5))
#: 256 threads send 256 a second to a receiver that takes a second, so few exports are enough.
OTHERS: Final = (
    _case(50, False, (5000, 20_000), (1, 3)),
    _case(0, True, (2000, 5000), (0, 2)),
    _case(50, True, (2000, 10_000), (0, 1)),
    _case(1000, False, (500, 2048), (0, 1)),
    _case(1000, True, (500, 2048), (0, 1)),
)
#: Aims of some figures.
_AIMS: Final = {"delivery_50ms_per_s": 3000.0}
#: Aims for the median and the 99th percentile.
_SUBMIT_TO_ARRIVAL_AIMS_MS: Final = {"sqlite": (5.0, 10.0), "postgresql": (7.0, 14.0)}


@dataclass(frozen=True, slots=True)
class _DeliverySetup:
    """One receiver, and an installation with exports for it on each database."""

    receiver: BenchReceiver
    installations: dict[str, tuple[BenchInstallation, SeededTargets]]


def beside_loops(extent: Extent) -> list[Figure]:
    """Measure deliveries, the plain loops and wrk alternately, then approvals during deliveries."""
    count = FAST.exports[extent]
    delivered: dict[str, list[DeliveryResult]] = {database: [] for database in DATABASES}
    session, prepared, wrk = [], [], []
    with _setup(FAST, count) as setup:
        for _ in range(FAST.rounds[extent]):
            delivered["sqlite"].append(_delivered(setup, "sqlite", count))
            session.append(run_request_loops("session", setup.receiver, count))
            prepared.append(run_request_loops("prepared", setup.receiver, count))
            delivered["postgresql"].append(_delivered(setup, "postgresql", count))
            wrk += _by_wrk(setup.receiver)
        under_load = _approved_under_load(setup, count)
    figures = [
        Figure("session_post_per_s", session, "/s"),
        Figure("prepared_per_s", prepared, "/s"),
        Figure("wrk_post_per_s", wrk, "/s"),
    ]
    sqlite = [run.per_s for run in delivered["sqlite"]]
    for database, runs in delivered.items():
        rates, prefix = [run.per_s for run in runs], _prefix(database)
        figures += _costs(f"{prefix}delivery", runs)
        figures.append(ratio(f"{prefix}delivery_vs_session_post", rates, session, 1.0 if database == "sqlite" else None))
        figures.append(ratio(f"{prefix}delivery_vs_prepared", rates, prepared, 0.7 if database == "sqlite" else None))
        figures.append(ratio(f"{prefix}delivery_vs_wrk", rates if wrk else [], wrk))
    figures.append(ratio("postgres_vs_sqlite", [run.per_s for run in delivered["postgresql"]], sqlite, 0.8))
    return figures + _percentiles("approval_to_arrival_under_load", under_load)


def to_slow_and_tls(extent: Extent) -> list[Figure]:
    """Measure deliveries to every other kind of receiver; in a quick run only from SQLite."""
    databases = DATABASES if extent is Extent.FULL else DATABASES[:1]
    return [figure for case in OTHERS if case.rounds[extent] for figure in _other(case, extent, databases)]


def approvals(extent: Extent) -> list[Figure]:
    """Measure the time from approval to arrival on an idle system."""
    if extent is Extent.QUICK:
        return _approved_when_idle("sqlite", 10)
    return [figure for database in DATABASES for figure in _approved_when_idle(database, 100)]


def _other(case: ReceiverCase, extent: Extent, databases: Sequence[str]) -> list[Figure]:
    count = case.exports[extent]
    delivered: dict[str, list[DeliveryResult]] = {database: [] for database in databases}
    with _setup(case, count, databases) as setup:
        for _ in range(case.rounds[extent]):
            for database, runs in delivered.items():
                runs.append(_delivered(setup, database, count))
    return [figure for database, runs in delivered.items() for figure in _costs(_prefix(database) + case.name, runs)]


@contextmanager
def _setup(case: ReceiverCase, count: int, databases: Sequence[str] = DATABASES) -> Iterator[_DeliverySetup]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        certificate, settings = None, {}
        if case.is_tls:
            make_certificate(folder, _ADDRESS)
            certificate = folder / "server.pem"
            settings = {"TARGET_CA_FILE": str(folder / "authority.pem")}
        receiver = stack.enter_context(run_receiver(case.delay_ms, min(_ORIGINS, case.targets), certificate))
        redis = stack.enter_context(RedisServer())
        urls = list(itertools.islice(itertools.cycle(receiver.urls), case.targets))
        installations = {}
        for database in databases:
            postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
            installation = BenchInstallation(folder, redis, postgres, case.concurrency, settings)
            installations[database] = (installation, installation.seed(urls, count))
        yield _DeliverySetup(receiver, installations)


def _delivered(setup: _DeliverySetup, database: str, count: int) -> DeliveryResult:
    return deliver(*setup.installations[database], setup.receiver, count)


def _by_wrk(receiver: BenchReceiver) -> list[float]:
    """Post with wrk to the same receiver, the upper limit on this machine; an empty list if wrk is not installed."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return []
    receiver.clear()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT)
        script.flush()
        words = [
            "--threads",
            "1",
            "--connections",
            str(_WRK_CONNECTIONS),
            "--duration",
            f"{_WRK_S}s",
            "--script",
            script.name,
        ]
        subprocess.run([wrk, *words, receiver.url], check=True, stdout=subprocess.DEVNULL, timeout=_WRK_S + 30)
    return [rate(receiver.arrivals())]


def _approved_under_load(setup: _DeliverySetup, count: int) -> list[float]:
    """Approve exports one by one under full load; return the times from approval to arrival, in ms."""
    installation, seeded = setup.installations["sqlite"]
    setup.receiver.clear()
    with installation.copy() as env, workers(env) as pids:
        wait_until(lambda: count_listening(env["REDIS_URL"]) == len(pids), "the workers to listen")
        ids = prepare(seeded.customer, _APPROVED_AT_MOST, 10**9)
        # A separate target: the exports of one target are delivered in order, so these would wait for all others.
        with transaction():
            target_id = make_target(seeded.customer, setup.receiver.url).id
        wake_ups = WakeUpQueue(connect(env["REDIS_URL"]))
        seeded.change_status("resume")
        approved_ms: dict[str, float] = {}
        for export_id in ids:
            approved_ms[export_id] = time.time() * 1000
            approve([export_id], seeded.customer, [target_id])
            wake_ups.notify()
            time.sleep(_APPROVE_EVERY_S)
            if count_delivered() >= count:
                break
        wait_until(lambda: count_delivered() == count + len(approved_ms), "every export to be delivered")
    arrived_ms = setup.receiver.times()
    return [arrived_ms[export_id] - at_ms for export_id, at_ms in approved_ms.items()]


def _approved_when_idle(database: str, count: int) -> list[Figure]:
    """Approve over HTTP, one after the other; return figures of the time from the first byte sent to the arrival."""
    with run_receiver(0) as receiver, empty_installation(database, RATE_LIMIT_PER_MINUTE="1000000") as installation:
        arrival_ms, _ = approval.approve_one_by_one(installation, receiver, count)
    p50, p99 = _percentiles(f"{_prefix(database)}submit_to_arrival", arrival_ms)
    p50_aim_ms, p99_aim_ms = _SUBMIT_TO_ARRIVAL_AIMS_MS[database]
    return [replace(p50, aim=p50_aim_ms), replace(p99, aim=p99_aim_ms)]


def _percentiles(name: str, arrival_ms: Sequence[float]) -> list[Figure]:
    p99 = quantiles(arrival_ms, n=_PERCENTILES)[-1] if len(arrival_ms) > 1 else arrival_ms[0]
    return [
        Figure(f"{name}_p50_ms", [median(arrival_ms)], "ms", is_cost=True),
        Figure(f"{name}_p99_ms", [p99], "ms", is_cost=True),
    ]


def _costs(name: str, runs: Sequence[DeliveryResult]) -> list[Figure]:
    return [
        Figure(f"{name}_per_s", [run.per_s for run in runs], "/s", _AIMS.get(f"{name}_per_s")),
        Figure(f"{name}_cpu_ms", [run.cpu_ms for run in runs], "ms", is_cost=True),
        Figure(f"{name}_worker_mb", [run.resident_mb for run in runs], "MB", is_cost=True),
        Figure(f"{name}_receiver_cpu_ms", [run.receiver_cpu_ms for run in runs], "ms", is_cost=True),
    ]


def _prefix(database: str) -> str:
    """Return the prefix of a database's figures: none for SQLite, which is the default."""
    return "" if database == "sqlite" else f"{database}_"
