"""Performance with many rows, many targets or many connections.

Databases with 10^3 to 10^6 finished exports, each with its attempt and an audit entry, alternate: two real workers deliver
additional due exports, then the service answers status reads and postbacks. Rows added by a repetition are removed, so that
the table keeps its size. Reports rates, memory, and their ratio at the largest table; the worst ratio counts. Rows are
generated in SQL (`tests.support.database.many_rows`).
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from bench.deliveries.runs import BODY_BYTES, PROCESSES, listening, wait_until, workers
from bench.figures import Extent, Figure, ratio
from bench.load import questions
from bench.processes.cost import resident_mb
from bench.requests.rates import rates, service_environment
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import ROOT, BenchReceiver, rate, receiver
from bench.servers.serving import Served, serving
from runtime.clock import utc_now
from storage.db import schema_version
from storage.db.engine import close_database, connection, execute, is_sqlite, open_database, rows, transaction
from tests.support.database.many_rows import export_id, learn, many_finished, many_targets, many_waiting, settle
from tests.support.factories import Customer, make_customer
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

PROMISED: Final = ("rows_1e6_vs_1e3",)
SIZES: Final = {Extent.QUICK: (3, 5), Extent.FULL: (3, 4, 5, 6)}
#: On PostgreSQL only the smallest and the largest.
_POSTGRES_SIZES: Final = (3, 6)
#: Of the smallest and the largest table, which are compared; those between them get one.
_ROUNDS: Final = {Extent.QUICK: 1, Extent.FULL: 5}
_POSTGRES_ROUNDS: Final = 3
_AIM: Final = 0.9
#: That share what comes due, and the ports that share them.
TARGETS: Final = 20
#: Due exports per repetition: about two seconds of work.
_DUE: Final = 4000
#: How long each question is asked; `bench.requests.rates.rates` warms up before.
_SECONDS: Final = {Extent.QUICK: 1, Extent.FULL: 2}
_CONNECTIONS: Final = 16
_MANY_TARGETS: Final = (1, 100, 10_000)
_MANY_CONNECTIONS: Final = (1, 16, 64)
#: Rows of one transaction: few enough for the write-ahead log, enough to be quick.
_CHUNK: Final = 100_000
_WITHIN_S: Final = 120.0
#: Between two looks at what is done, which is counted row by row.
_LOOK_S: Final = 0.1
#: Figures of which less is better.
_COSTS: Final = ("worker_mb", "service_mb")

_ATTEMPTS: Final = """
INSERT INTO attempts (id, export_id, number, started_at, outcome, response_status, address, total_ms, worker)
SELECT 'att' || substr(id, 4), id, 1, finished_at, 'delivered', 200, '127.0.0.1', 5, 'worker:bench' FROM exports"""
_LEDGER: Final = """
INSERT INTO audit_entries (at, actor, action, subject_id, status_before, status_after)
SELECT finished_at, 'worker:bench', 'deliver', id, 'delivering', 'exported' FROM exports"""
#: What came behind the rows that stay; ids sort by time, and the ones that stay were made to come first.
_FORGET: Final = (
    "DELETE FROM attempts WHERE export_id > ?",
    "DELETE FROM audit_entries WHERE subject_id > ?",
    "DELETE FROM exports WHERE id > ?",
)


@dataclass(frozen=True, slots=True)
class Table:
    """A database with so many finished exports."""

    url: str
    size: int
    customer: Customer

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open it in this process; what came to it meanwhile is removed."""
        open_database(self.url)
        try:
            with connection():
                yield
                with transaction():
                    for statement in _FORGET:
                        execute(statement, (export_id(self.size - 1),))
                settle()
        finally:
            close_database()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where everything of one kind of database runs."""

    folder: Path
    redis: RedisServer
    postgres: PostgresServer | None
    receiver: BenchReceiver

    def environment(self, url: str) -> dict[str, str]:
        """Return the environment of workers and service on the database at `url`."""
        settings = {"DATABASE_URL": url, "REDIS_URL": self.redis.url, "PYTHONPATH": str(ROOT), "LOG_LEVEL": "info"}
        # Both workers begin within this of each other.
        return service_environment(self.folder, **settings, SWEEP_SECONDS="0.05")

    def new_url(self, name: str) -> str:
        """Return where a new database is."""
        return self.postgres.create_database() if self.postgres else f"sqlite:///{self.folder / name}.db"


def by_rows(extent: Extent) -> list[Figure]:
    """Measure with tables of every size."""
    figures = _by_rows("sqlite", SIZES[extent], _ROUNDS[extent], _SECONDS[extent])
    if extent is Extent.FULL:
        figures += _by_rows("postgresql", _POSTGRES_SIZES, _POSTGRES_ROUNDS, _SECONDS[extent])
    return figures


def by_targets(extent: Extent) -> list[Figure]:
    """Measure deliveries to few and to many targets, from SQLite; not where it has to be quick."""
    return _by_targets() if extent is Extent.FULL else []


def by_connections(extent: Extent) -> list[Figure]:
    """Measure requests on few and on many connections, on SQLite; not where it has to be quick."""
    return _by_connections() if extent is Extent.FULL else []


def _by_rows(database: str, sizes: Sequence[int], rounds: int, seconds: int) -> list[Figure]:
    prefix = "" if database == "sqlite" else f"{database}_"
    with _place(database, TARGETS) as place:
        tables = {size: _filled(place, f"rows-{size}", 10**size) for size in sizes}
        found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for number in range(rounds):
            # The size that begins changes, so that a machine that grows busier favours none.
            order = sizes if number == 0 else (sizes[0], sizes[-1])
            for size in order if number % 2 == 0 else reversed(order):
                delivered = _delivered(place, tables[size], TARGETS, _DUE)
                found[size].append(delivered | _asked(place, tables[size], _CONNECTIONS, seconds))
    figures = [
        Figure(f"{prefix}rows_1e{size}_{name}", [one[name] for one in runs], *_unit(name))
        for size, runs in found.items()
        for name in runs[0]
    ]
    return figures + _worst(prefix, sizes[0], sizes[-1], found)


def _unit(name: str) -> tuple[str, None, bool]:
    return ("MB", None, True) if name in _COSTS else ("/s", None, False)


def _worst(prefix: str, small: int, large: int, found: dict[int, list[dict[str, float]]]) -> list[Figure]:
    """Return what is left of each figure at the largest table, and the worst of that; of costs it is the other way round."""
    name = f"{prefix}rows_1e{large}_vs_1e{small}"
    ratios = []
    for what in found[small][0]:
        few, many = ([one[what] for one in found[size]] for size in (small, large))
        ratios.append(ratio(f"{name}_{what}", few, many) if what in _COSTS else ratio(f"{name}_{what}", many, few))
    worst = min(ratios, key=lambda figure: figure.median or 0)
    return [*ratios, Figure(name, worst.values, "x", None if prefix else _AIM)]


def _by_targets() -> list[Figure]:
    figures = []
    for count in _MANY_TARGETS:
        with _place("sqlite", min(count, TARGETS)) as place:
            table = _filled(place, "targets", 1000, count)
            per_s = _delivered(place, table, count, max(_DUE, count))["deliveries_per_s"]
        figures.append(Figure(f"targets_{count}_deliveries_per_s", [per_s], "/s"))
    return figures


def _by_connections() -> list[Figure]:
    figures = []
    with _place("sqlite", 1) as place:
        table = _filled(place, "connections", 1000)
        for connections in _MANY_CONNECTIONS:
            found = _asked(place, table, connections, _SECONDS[Extent.FULL])
            figures += [
                Figure(f"connections_{connections}_{name}", [per_s], "/s")
                for name, per_s in found.items()
                if name not in _COSTS
            ]
    return figures


@contextmanager
def _place(database: str, origins: int) -> Iterator[_Place]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(DurablePostgres()) if database == "postgresql" else None
        yield _Place(folder, redis, postgres, stack.enter_context(receiver(0, origins)))


def _filled(place: _Place, name: str, size: int, targets: int = TARGETS) -> Table:
    """Make a database with `size` finished exports of as many targets."""
    url, urls = place.new_url(name), place.receiver.urls
    open_database(url)
    schema_version.migrate()
    with connection():
        customer = make_customer()
        # As many at each address; the last one takes what is left.
        share = -(-targets // len(urls))
        for number, address in enumerate(urls):
            many_targets(customer, number * share, max(1, min(share, targets - number * share)), address)
        for first in range(0, size, _CHUNK):
            many_finished(customer, first, min(_CHUNK, size - first), (0, targets), utc_now() - timedelta(hours=1))
        with transaction():
            if not is_sqlite():
                # As in tests.support.database.many_rows: foreign keys would be looked up row by row, and these hold.
                execute("SET LOCAL session_replication_role = replica")
            execute(_ATTEMPTS)
            execute(_LEDGER)
        learn()
        settle()
    close_database()
    return Table(url, size, customer)


def _delivered(place: _Place, table: Table, targets: int, due: int) -> dict[str, float]:
    """Let exports come due beside those that are finished, and let workers deliver them."""
    place.receiver.clear()
    place.redis.flush()
    env = place.environment(table.url)
    with table.opened(), workers(env) as pids:
        wait_until(lambda: listening(env["REDIS_URL"]) == PROCESSES, "the workers to listen")
        many_waiting(table.customer, table.size, due, (0, targets), utc_now(), body_bytes=BODY_BYTES)
        wait_until(lambda: _done_behind(table.size) == due, "every export to be delivered", _WITHIN_S, _LOOK_S)
        arrivals = place.receiver.arrivals()
        memory = max(resident_mb(pid) for pid in pids)
    assert arrivals["requests"] == arrivals["distinct"] == due, arrivals
    return {"deliveries_per_s": rate(arrivals), "worker_mb": memory}


def _done_behind(size: int) -> int:
    """Return how many exports are delivered of those that came later."""
    asked = "SELECT count(*) FROM exports WHERE id > ? AND status = 'exported' AND attempts = 1"
    return int(rows(asked, (export_id(size - 1),))[0][0])


def _asked(place: _Place, table: Table, connections: int, seconds: int) -> dict[str, float]:
    """Ask a service for the status of an export in the middle, and give it postbacks."""
    asked = {
        "status_per_s": questions.status(export_id(table.size // 2), table.customer.bearer),
        "postback_per_s": questions.postback(1),
    }
    place.redis.flush()
    with table.opened(), serving("service.wsgi:app", place.environment(table.url)) as served:
        found = {name: one.per_s for name, one in rates(served, asked, connections, seconds).items()}
        return found | {"service_mb": _service_mb(served)}


def _service_mb(served: Served) -> float:
    children = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
    return max(resident_mb(int(pid)) for pid in children)
