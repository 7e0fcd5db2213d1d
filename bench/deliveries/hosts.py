"""`python -m bench.deliveries.hosts`: workers on one, two and four hosts over one PostgreSQL, and the costs of a delivery.

Hosts are network namespaces with one worker process each, as in `bin/check-hosts`; it needs root and leaves nothing behind.
They share the cores of this machine with PostgreSQL, Redis and the receiver, so deliveries per second say little;
docs/scaling.md calculates with the processor time of each program per delivery. Then exports of another account become due
while one account has a backlog. `--pooled` adds PgBouncer. PostgreSQL writes to disk as in an installation.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import click

from bench import figures
from bench.deliveries.runs import (
    BenchInstallation,
    SeededTargets,
    approve,
    check_arrivals,
    count_delivered,
    count_listening,
    log_on_failure,
    prepare,
    processes,
    wait_until,
)
from bench.processes.cost import cpu_s
from bench.servers.durable_postgres import DurablePostgres
from bench.servers.receiver_process import LOOPBACK, BenchReceiver, rate, run_receiver
from bin.processes.workers import worker_command
from storage.db.engine import execute, rows, transaction
from tests.journeys.hosts.hosts_in_namespaces import HERE, SUBNET, Namespace, Network
from tests.support.factories import make_customer, make_target
from tests.support.servers.poolers import PgBouncer
from tests.support.servers.redis_and_postgres import processes_in

TARGETS: Final = 20
#: Exports of the account without a backlog.
FEW: Final = 200
_BACKLOG_FOR_S: Final = 1.0
_WITHIN_S: Final = 300.0
#: An absolute path, which `processes` needs.
_IP: Final = shutil.which("ip") or "ip"


class _DurableOnTheBridge(DurablePostgres):
    """Also listens on the bridge, where the hosts reach it."""

    def _initialise(self) -> None:
        super()._initialise()
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET} trust\n")

    def _command(self) -> list[str]:
        return [*super()._command(), "-c", f"listen_addresses={LOOPBACK},{HERE}"]


@click.command(epilog="Example: python -m bench.deliveries.hosts --exports 20000")
@click.option("--exports", "count", default=12_000, show_default=True, type=click.IntRange(min=1000), help="Of each run.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Times that the numbers alternate.")
@click.option("--hosts", "most", default=4, show_default=True, type=click.IntRange(1, 8), help="The largest number.")
@click.option("--pooled", is_flag=True, help="Also with PgBouncer between two hosts and PostgreSQL.")
def bench(count: int, rounds: int, most: int, pooled: bool) -> None:
    """Measure deliveries from several hosts."""
    if os.geteuid() != 0:
        raise click.ClickException("It needs root to create network namespaces.")
    results: dict[str, Any] = {**figures.machine(), "exports": count}
    numbers = [number for number in (1, 2, 4, 8) if number <= most]
    cases = [(f"{number} hosts", number, False) for number in numbers] + ([("2 hosts, pooled", 2, True)] if pooled else [])
    with _setup(count, most) as setup:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in cases}
        for _ in range(rounds):
            for name, number, is_pooled in cases:
                runs[name].append(setup.deliver(number, is_pooled=is_pooled))
        results |= {name: {key: round(median(run[key] for run in of), 3) for key in of[0]} for name, of in runs.items()}
        results["arrival in ms, of an account alone"] = setup.arrivals(min(2, most), beside_backlog=False)
        results["arrival in ms, beside a backlog"] = setup.arrivals(min(2, most), beside_backlog=True)
    click.echo(json.dumps(results, indent=1))
    figures.write("hosts", results)


class _HostRuns:
    """The servers, the hosts, and an installation with exports for one account and a few for another."""

    def __init__(
        self, count: int, network: Network, hosts: Sequence[Namespace], receiver: BenchReceiver, folder: Path
    ) -> None:
        self._count = count
        self._network = network
        self._hosts = hosts
        self._receiver = receiver
        self._installation = BenchInstallation(folder, network.redis, network.postgres)
        loopback = [url.replace(HERE, LOOPBACK) for url in receiver.urls]
        self._seeded = self._installation.seed(loopback * (TARGETS // len(loopback)), count)

    def deliver(self, number: int, *, is_pooled: bool) -> dict[str, float]:
        """Deliver all exports with `number` hosts; return the rate and the costs of a delivery."""
        postgres, redis = self._network.postgres.folder, self._network.redis.folder
        with self._working(number, is_pooled=is_pooled) as (pids, pooler):
            servers = {"postgresql": postgres, "redis": redis, **({"pgbouncer": pooler.folder} if pooler else {})}
            before = {name: cpu_s(processes_in(folder)) for name, folder in servers.items()}
            workers_before, receiver_before, wal_before = cpu_s(pids), self._receiver.arrivals()["cpu_s"], _wal()
            self._seeded.change_status("resume")
            wait_until(lambda: count_delivered() == self._count, "every export", _WITHIN_S, poll_s=0.1)
            spent = {name: cpu_s(processes_in(folder)) - before[name] for name, folder in servers.items()}
            spent["workers"] = cpu_s(pids) - workers_before
            arrived = check_arrivals(self._receiver, self._count)
            spent["receiver"] = arrived["cpu_s"] - receiver_before
            costs = {f"{name} cpu ms": spent[name] * 1000 / self._count for name in spent}
            wal = [after - other for after, other in zip(_wal(), wal_before, strict=True)]
            shares = [count for (count,) in rows("SELECT COUNT(*) FROM attempts GROUP BY worker")]
            return {
                "per s": rate(arrived),
                **costs,
                "WAL bytes": wal[0] / self._count,
                "transactions": wal[1] / self._count,
                "connections": rows("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()")[0][0] - 1,
                "smallest share": min(shares) * number / self._count,
                "load": os.getloadavg()[0],
            }

    def arrivals(self, number: int, *, beside_backlog: bool) -> dict[str, float]:
        """Return how long after the resume a few exports of another account arrive, with or without the backlog."""
        with self._working(number, is_pooled=False):
            with transaction():
                customer = make_customer()
                other = SeededTargets(customer, [make_target(customer, self._receiver.urls[0]).id])
                few = prepare(customer, FEW, 10**9)
                # Temporarily on loopback: approvals reject addresses of the hosts' subnet.
                execute("UPDATE targets SET base_url = replace(base_url, ?, ?)", (HERE, LOOPBACK))
                approve(few, customer, other.target_ids)
                other.change_status("pause")
                execute("UPDATE targets SET ramp = 16, base_url = replace(base_url, ?, ?)", (LOOPBACK, HERE))
            if beside_backlog:
                self._seeded.change_status("resume")
                time.sleep(_BACKLOG_FOR_S)
            resumed_ms = time.time() * 1000
            other.change_status("resume")
            left = "SELECT COUNT(*) FROM exports WHERE account_id = ? AND status <> 'exported'"
            wait_until(lambda: rows(left, (customer.account_id,)) == [(0,)], "the few", _WITHIN_S)
            times = self._receiver.times()
            elapsed_ms = [times[export_id] - resumed_ms for export_id in few]
            return {
                "median": round(median(elapsed_ms)),
                "95th": round(quantiles(elapsed_ms, n=20)[-1]),
                "delivered meanwhile": count_delivered(),
            }

    @contextmanager
    def _working(self, number: int, *, is_pooled: bool) -> Iterator[tuple[list[int], PgBouncer | None]]:
        """Start a worker on each of `number` hosts, on a copy of the installation; yield process ids and the pooler."""
        self._receiver.clear()
        with ExitStack() as stack:
            env = stack.enter_context(self._installation.copy())
            execute("UPDATE targets SET base_url = replace(base_url, ?, ?), ramp = 16", (LOOPBACK, HERE))
            pooler = stack.enter_context(PgBouncer(env["DATABASE_URL"], HERE)) if is_pooled else None
            env |= {name: env[name].replace(LOOPBACK, HERE) for name in ("DATABASE_URL", "REDIS_URL")}
            env |= {"TARGET_ALLOWED_NETWORKS": SUBNET, **({"DATABASE_URL": pooler.url} if pooler else {})}
            log = stack.enter_context((Path(env["DATA_DIR"]) / "worker.log").open("w+b"))
            commands = [[_IP, "netns", "exec", host.name, *worker_command(1)] for host in self._hosts[:number]]
            stack.enter_context(log_on_failure(log))
            pids = stack.enter_context(processes(commands, env, output=log))
            wait_until(lambda: count_listening(self._network.redis.url) == number, "the workers to listen", 20)
            yield pids, pooler


@contextmanager
def _setup(count: int, most: int) -> Iterator[_HostRuns]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-bench-")))
        network = Network(folder, _DurableOnTheBridge())
        stack.enter_context(network)
        hosts = [network.host() for _ in range(most)]
        receiver = stack.enter_context(run_receiver(0, TARGETS, address=HERE))
        yield _HostRuns(count, network, hosts, receiver, folder)


def _wal() -> tuple[float, float]:
    """Return the bytes of write-ahead log and the committed transactions so far."""
    execute("SELECT pg_stat_clear_snapshot()")
    [(written,)] = rows("SELECT pg_current_wal_lsn() - '0/0'")
    [(committed,)] = rows("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return float(written), float(committed)


if __name__ == "__main__":
    bench()
