"""Performance with many rows, many targets or many connections.

Databases with 10^3 to 10^6 finished exports, each with its attempt and an audit entry, alternate: two real workers deliver
additional due exports, then the service handles status reads and postbacks. Rows added by a repetition are deleted, so that
the table keeps its size. Reports rates, memory, their ratios between the largest and the smallest table, and the worst
ratio. Rows are generated in SQL (`tests.support.database.many_rows`).
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from bench.deliveries.runs import BODY_BYTES, PROCESSES, count_listening, wait_until, workers
from bench.figures import Extent, Figure, ratio
from bench.load import request_templates
from bench.processes.cost import resident_mb
from bench.requests.rates import rates, service_environment
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT, BenchReceiver, rate, run_receiver
from bench.servers.serving import ServedApplication, serving
from runtime.clock import utc_now
from storage.db import schema_version
from storage.db.engine import close_database, connection, execute, is_sqlite, open_database, rows, transaction
from tests.support.database.many_rows import analyze, checkpoint, export_id, many_finished, many_targets, many_waiting
from tests.support.factories import Customer, make_customer
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

PROMISED: Final = ("rows_1e6_vs_1e3",)
SIZES: Final = {Extent.QUICK: (3, 5), Extent.FULL: (3, 4, 5, 6)}
#: On PostgreSQL only the smallest and the largest size.
_POSTGRES_SIZES: Final = (3, 6)
#: Rounds of the smallest and the largest table, which are compared; the others get one round.
_ROUNDS: Final = {Extent.QUICK: 1, Extent.FULL: 5}
_POSTGRES_ROUNDS: Final = 3
_AIM: Final = 0.9
#: Targets of the due exports; also the maximum number of the receiver's ports.
TARGETS: Final = 20
#: Due exports per repetition: about two seconds of work.
_DUE: Final = 4000
#: Seconds of load for each kind of request, after the warm-up of `bench.requests.rates.rates`.
_SECONDS: Final = {Extent.QUICK: 1, Extent.FULL: 2}
_CONNECTIONS: Final = 16
_MANY_TARGETS: Final = (1, 100, 10_000)
_MANY_CONNECTIONS: Final = (1, 16, 64)
#: Rows per transaction: few enough for the write-ahead log, and enough to be fast.
_CHUNK: Final = 100_000
_WITHIN_S: Final = 120.0
#: Interval between two counts of delivered exports, since each count reads all their rows.
_POLL_S: Final = 0.1
#: Figures for which smaller is better.
_COSTS: Final = ("worker_mb", "service_mb")

_ATTEMPTS: Final = """
INSERT INTO attempts (id, export_id, number, started_at, outcome, response_status, address, total_ms, worker)
SELECT 'att' || substr(id, 4), id, 1, finished_at, 'delivered', 200, '127.0.0.1', 5, 'worker:bench' FROM exports"""
_AUDIT_ENTRIES: Final = """
INSERT INTO audit_entries (at, actor, action, subject_id, status_before, status_after)
SELECT finished_at, 'worker:bench', 'deliver', id, 'delivering', 'exported' FROM exports"""
#: Deletes the rows that a repetition added: ids sort by time, and the generated rows have the smallest ids.
_DELETE_ADDED_ROWS: Final = (
    "DELETE FROM attempts WHERE export_id > ?",
    "DELETE FROM audit_entries WHERE subject_id > ?",
    "DELETE FROM exports WHERE id > ?",
)


@dataclass(frozen=True, slots=True)
class SizedDatabase:
    """A database with `size` finished exports."""

    url: str
    size: int
    customer: Customer

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open it in this process; at the end delete the rows that the block added."""
        open_database(self.url)
        try:
            with connection():
                yield
                with transaction():
                    for statement in _DELETE_ADDED_ROWS:
                        execute(statement, (export_id(self.size - 1),))
                checkpoint()
        finally:
            close_database()


@dataclass(frozen=True, slots=True)
class _GrowthSetup:
    """Folder and servers for the measurements of one kind of database."""

    folder: Path
    redis: RedisServer
    postgres: PostgresServer | None
    receiver: BenchReceiver

    def environment(self, url: str) -> dict[str, str]:
        """Return the environment of workers and service on the database at `url`."""
        settings = {"DATABASE_URL": url, "REDIS_URL": self.redis.url, "PYTHONPATH": str(ROOT), "LOG_LEVEL": "info"}
        # Upper limit for the time between the starts of both workers' deliveries.
        return service_environment(self.folder, **settings, SWEEP_SECONDS="0.05")

    def new_url(self, name: str) -> str:
        """Create a database on PostgreSQL, or choose a path for SQLite; return its URL."""
        return self.postgres.create_database() if self.postgres else f"sqlite:///{self.folder / name}.db"


def by_rows(extent: Extent) -> list[Figure]:
    """Measure with tables of every size."""
    figures = _by_rows("sqlite", SIZES[extent], _ROUNDS[extent], _SECONDS[extent])
    if extent is Extent.FULL:
        figures += _by_rows("postgresql", _POSTGRES_SIZES, _POSTGRES_ROUNDS, _SECONDS[extent])
    return figures


def by_targets(extent: Extent) -> list[Figure]:
    """Measure deliveries to few and to many targets, on SQLite; a quick run returns no figures."""
    return _by_targets() if extent is Extent.FULL else []


def by_connections(extent: Extent) -> list[Figure]:
    """Measure requests on few and on many connections, on SQLite; a quick run returns no figures."""
    return _by_connections() if extent is Extent.FULL else []


def _by_rows(database: str, sizes: Sequence[int], rounds: int, seconds: int) -> list[Figure]:
    prefix = "" if database == "sqlite" else f"{database}_"
    with _setup(database, TARGETS) as setup:
        tables = {size: _filled(setup, f"rows-{size}", 10**size) for size in sizes}
        found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for number in range(rounds):
            # The sizes take turns to begin, so that an increasing load of the machine does not favor one of them.
            order = sizes if number == 0 else (sizes[0], sizes[-1])
            for size in order if number % 2 == 0 else reversed(order):
                delivered = _delivered(setup, tables[size], TARGETS, _DUE)
                found[size].append(delivered | _request_rates(setup, tables[size], _CONNECTIONS, seconds))
    figures = [
        Figure(f"{prefix}rows_1e{size}_{name}", [run[name] for run in runs], *_unit(name))
        for size, runs in found.items()
        for name in runs[0]
    ]
    return figures + _worst(prefix, sizes[0], sizes[-1], found)


def _unit(name: str) -> tuple[str, None, bool]:
    return ("MB", None, True) if name in _COSTS else ("/s", None, False)


def _worst(prefix: str, small: int, large: int, found: dict[int, list[dict[str, float]]]) -> list[Figure]:
    """Return the ratio of each figure between the largest and the smallest table, inverse for costs, and the worst one."""
    name = f"{prefix}rows_1e{large}_vs_1e{small}"
    ratios = []
    for figure in found[small][0]:
        few, many = ([run[figure] for run in found[size]] for size in (small, large))
        ratios.append(ratio(f"{name}_{figure}", few, many) if figure in _COSTS else ratio(f"{name}_{figure}", many, few))
    worst = min(ratios, key=lambda each: each.median or 0)
    return [*ratios, Figure(name, worst.values, "x", None if prefix else _AIM)]


def _by_targets() -> list[Figure]:
    figures = []
    for count in _MANY_TARGETS:
        with _setup("sqlite", min(count, TARGETS)) as setup:
            table = _filled(setup, "targets", 1000, count)
            per_s = _delivered(setup, table, count, max(_DUE, count))["deliveries_per_s"]
        figures.append(Figure(f"targets_{count}_deliveries_per_s", [per_s], "/s"))
    return figures


def _by_connections() -> list[Figure]:
    figures = []
    with _setup("sqlite", 1) as setup:
        table = _filled(setup, "connections", 1000)
        for connections in _MANY_CONNECTIONS:
            found = _request_rates(setup, table, connections, _SECONDS[Extent.FULL])
            figures += [
                Figure(f"connections_{connections}_{name}", [per_s], "/s")
                for name, per_s in found.items()
                if name not in _COSTS
            ]
    return figures


@contextmanager
def _setup(database: str, origins: int) -> Iterator[_GrowthSetup]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        yield _GrowthSetup(folder, redis, postgres, stack.enter_context(run_receiver(0, origins)))


def _filled(setup: _GrowthSetup, name: str, size: int, targets: int = TARGETS) -> SizedDatabase:
    """Create a database with `targets` targets and `size` finished exports for them."""
    url, urls = setup.new_url(name), setup.receiver.urls
    open_database(url)
    schema_version.migrate()
    with connection():
        customer = make_customer()
        # Equally many at each address; the last one gets the rest.
        share = -(-targets // len(urls))
        for number, address in enumerate(urls):
            many_targets(customer, number * share, max(1, min(share, targets - number * share)), address)
        for first in range(0, size, _CHUNK):
            many_finished(customer, first, min(_CHUNK, size - first), (0, targets), utc_now() - timedelta(hours=1))
        with transaction():
            if not is_sqlite():
                # As in tests.support.database.many_rows: without foreign key checks, which run for each row; all keys exist.
                execute("SET LOCAL session_replication_role = replica")
            execute(_ATTEMPTS)
            execute(_AUDIT_ENTRIES)
        analyze()
        checkpoint()
    close_database()
    return SizedDatabase(url, size, customer)


def _delivered(setup: _GrowthSetup, table: SizedDatabase, targets: int, due: int) -> dict[str, float]:
    """Store due exports in addition to the finished ones, and deliver them with worker processes."""
    setup.receiver.clear()
    setup.redis.flush()
    env = setup.environment(table.url)
    with table.opened(), workers(env) as pids:
        wait_until(lambda: count_listening(env["REDIS_URL"]) == PROCESSES, "the workers to listen")
        many_waiting(table.customer, table.size, due, (0, targets), utc_now(), body_bytes=BODY_BYTES)
        wait_until(
            lambda: _count_additional_delivered(table.size) == due, "every export to be delivered", _WITHIN_S, _POLL_S
        )
        arrivals = setup.receiver.arrivals()
        memory = max(resident_mb(pid) for pid in pids)
    assert arrivals["requests"] == arrivals["distinct"] == due, arrivals
    return {"deliveries_per_s": rate(arrivals), "worker_mb": memory}


def _count_additional_delivered(size: int) -> int:
    """Return how many of the additional exports are delivered."""
    query = "SELECT count(*) FROM exports WHERE id > ? AND status = 'exported' AND attempts = 1"
    return int(rows(query, (export_id(size - 1),))[0][0])


def _request_rates(setup: _GrowthSetup, table: SizedDatabase, connections: int, seconds: int) -> dict[str, float]:
    """Return the rates of reads of an export in the middle of the table and of postbacks, and the service's memory."""
    requests = {
        "status_per_s": request_templates.status(export_id(table.size // 2), table.customer.bearer),
        "postback_per_s": request_templates.postback(1),
    }
    setup.redis.flush()
    with table.opened(), serving("service.wsgi:app", setup.environment(table.url)) as served:
        found = {name: result.per_s for name, result in rates(served, requests, connections, seconds).items()}
        return found | {"service_mb": _service_mb(served)}


def _service_mb(served: ServedApplication) -> float:
    children = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
    return max(resident_mb(int(pid)) for pid in children)
