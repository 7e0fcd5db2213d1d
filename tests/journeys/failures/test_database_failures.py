"""The database is cut off, restarted, locked or full: a worker recovers by itself, and loses or repeats no delivery."""

import resource
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import psycopg
import pytest

from storage.db.engine import release, rows
from storage.exports import queries
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.processes.workers import (
    CountingReceiver,
    WorkerProcess,
    all_are,
    approved,
    approved_each,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

#: Longer than the 5 s for which a statement waits for SQLite's lock.
LOCKED_FOR_S: Final = 6.5
#: No transaction that changes an export fits into a file of this size, but the worker's log does.
TOO_SMALL_BYTES: Final = 8 * 1024
#: The number of cuts. Each interrupts the sessions of two workers at an arbitrary point.
CUTS: Final = 40
#: Workers under load send few requests at once, so that the load lasts longer than the failures.
FEW: Final = {"WORKER_CONCURRENCY": "4"}


@pytest.fixture
def postgres_url(postgres_url: str) -> Iterator[str]:
    """The PostgreSQL database with durable commits, as in an installation, so that they survive a crash of the server."""
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
        operator.execute("CHECKPOINT")
    yield postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {name} RESET synchronous_commit")


@pytest.fixture
def slow() -> Iterator[CountingReceiver]:
    """A slow receiver, so that some deliveries are always in progress."""
    with CountingReceiver(pause_s=0.03) as made:
        yield made


def cut_off(url: str, operator: psycopg.Connection[tuple[bool]], ours: int) -> int:
    """End every other connection to the database; return their number."""
    name = url.rpartition("/")[2]
    asked = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
    return len(operator.execute(asked, (name, ours)).fetchall())


@on_postgresql
def test_terminated_database_connections_cause_no_lost_or_repeated_delivery(
    start: Callable[..., WorkerProcess],
    database: str,
    postgres_server: PostgresServer,
    redis: RedisServer,
    slow: CountingReceiver,
) -> None:
    ids = approved(slow.url(), 300)
    [(ours,)] = rows("SELECT pg_backend_pid()")
    cut = 0
    with start(**FEW), start(**FEW), psycopg.connect(postgres_server.url, autocommit=True) as operator:
        notify_workers(redis)
        for _ in range(CUTS):
            cut += cut_off(database, operator, ours)
            time.sleep(0.05)
        wait_until(all_are("exported"), 30)
    assert cut > CUTS / 2
    assert Counter(slow.keys) == dict.fromkeys(ids, 1)


@on_postgresql
def test_restarts_and_crashes_of_postgresql_cause_no_lost_or_repeated_delivery(
    start: Callable[..., WorkerProcess], postgres_server: PostgresServer, redis: RedisServer, slow: CountingReceiver
) -> None:
    ids = approved(slow.url(), 300)
    with start(**FEW), start(**FEW):
        notify_workers(redis)
        for sent, end in ((20, postgres_server.stop), (100, postgres_server.stop_at_once)):
            wait_until(lambda sent=sent: len(slow.requests) > sent)  # type: ignore[misc]  # mypy takes no default
            [(left,)] = rows("SELECT COUNT(*) FROM exports WHERE status <> 'exported'")
            assert left > 0
            release()
            end()
            postgres_server.start()
        wait_until(all_are("exported"), 30)
    assert Counter(slow.keys) == dict.fromkeys(ids, 1)


@on_postgresql
def test_responses_received_during_a_database_outage_are_recorded_after_it(
    start: Callable[..., WorkerProcess], postgres_server: PostgresServer, receiver: CountingReceiver
) -> None:
    receiver.gate.clear()
    ids = approved_each(receiver.url(), 4)
    with start():
        wait_until(lambda: len(receiver.requests) == len(ids))
        release()
        postgres_server.stop()
        receiver.gate.set()
        time.sleep(0.7)
        postgres_server.start()
        wait_until(all_are("exported"))
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)
    assert rows("SELECT number, outcome FROM attempts") == [(1, "delivered")] * len(ids)


@on_sqlite
def test_a_sqlite_locked_for_longer_than_the_timeout_only_delays_results_and_deliveries(
    start: Callable[..., WorkerProcess], database: str, receiver: CountingReceiver
) -> None:
    receiver.gate.clear()
    with start(WORKER_CONCURRENCY="1"):
        [sent] = approved(receiver.url())
        wait_until(lambda: receiver.requests)
        [due] = approved(receiver.url())
        locker = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        receiver.gate.set()
        time.sleep(LOCKED_FOR_S)
        assert queries.get(sent).status == "delivering"
        assert receiver.of(due) == []
        locker.execute("ROLLBACK")
        locker.close()
        wait_until(lambda: is_exported(sent)() and is_exported(due)())
    assert receiver.keys == [sent, due]
    assert queries.get(sent).attempts == 1


@on_sqlite
def test_a_sqlite_on_a_full_disk_only_delays_results_and_deliveries(
    start: Callable[..., WorkerProcess], receiver: CountingReceiver
) -> None:
    """The disk is full for the worker only: a limit on file sizes, as with `ulimit -f`, simulates it."""
    receiver.gate.clear()
    with start() as worker:
        [sent] = approved(receiver.url())
        wait_until(lambda: receiver.requests)
        _, hard = resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (TOO_SMALL_BYTES, hard))
        receiver.gate.set()
        [due] = approved(receiver.url())
        time.sleep(2.0)
        assert queries.get(sent).status == "delivering"
        assert receiver.of(due) == []
        assert worker.process.poll() is None
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_until(lambda: is_exported(sent)() and is_exported(due)())
    assert receiver.keys == [sent, due]
    assert [queries.get(each).attempts for each in (sent, due)] == [1, 1]
