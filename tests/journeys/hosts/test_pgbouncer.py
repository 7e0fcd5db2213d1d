"""PgBouncer between hosts and PostgreSQL, where sessions change with each transaction: deliveries and locks still work."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psycopg
import pytest

from bin.checks import stores
from bin.checks.results import Level
from storage.accounts import audit_chain
from storage.accounts.audit_chain import has_unchained
from storage.db import locks, schema_version
from storage.db.engine import close_database, connection, is_pooled, open_database, rows, transaction
from storage.db.locks import Lock
from tests.support.database import kept_sessions
from tests.support.database.databases import PostgresEmptier, on_postgresql
from tests.support.factories import LOOPBACK, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.backups import CommandRunner
from tests.support.processes.hosts import Host, approved_for_each, claimed_by, count_alive, delivered_by, name_of
from tests.support.processes.workers import CountingReceiver, all_are, wait_until
from tests.support.servers.poolers import SESSIONS, PgBouncer
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer

pytestmark = on_postgresql

#: As in test_several_hosts: few requests at once, and a receiver that responds with a delay.
AT_ONCE: Final = {"WORKER_CONCURRENCY": "8"}
PAUSE_S: Final = 0.05
TAKEN_OVER_WITHIN_S: Final = 30.0


@pytest.fixture
def pooled(postgres_url: str, postgres_emptier: PostgresEmptier) -> Iterator[str]:
    """The URL of the pooler. Its database is open in this process."""
    # Afterwards, only the pooler has sessions in the database.
    postgres_emptier.close()
    kept_sessions.end_all()
    with PgBouncer(postgres_url) as pooler:
        open_database(pooler.url)
        with connection():
            yield pooler.url
        close_database()


def test_a_worker_killed_behind_pgbouncer_loses_no_delivery(pooled: str, redis: RedisServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(CountingReceiver(pause_s=PAUSE_S))
        hosts = [stack.enter_context(Host(tmp_path / f"host-{number}", pooled, redis)) for number in range(2)]
        service = hosts[0].serve(**LOOPBACK)
        dying, other = [host.work(**AT_ONCE) for host in hosts]
        wait_until(lambda: count_alive() == 2)
        customer = make_customer()
        target, decided = make_target(customer, receiver.url()), make_exports(customer, 20)
        ids = [*decided, *approved_for_each(receiver.url(), targets=20, each=8)]
        with ThreadPoolExecutor(8) as clients:
            body = {"target_id": target.id}
            paths = [f"{EXPORTS}/{export_id}/approve" for export_id in decided]
            answered = clients.map(lambda path: service.request("POST", path, customer.bearer, body).status, paths)
            assert {*answered} == {202}
        wait_until(lambda: delivered_by()[name_of(dying)] > 20)
        dying.kill()
        held = claimed_by()[name_of(dying)] - delivered_by()[name_of(dying)]
        wait_until(all_are("exported"), TAKEN_OVER_WITHIN_S)
        sent = Counter(receiver.keys)
        assert {*sent} == {*ids}
        assert sent.total() - len(ids) <= held
        found = rows("SELECT export_id, COUNT(*) FROM attempts WHERE outcome = 'delivered' GROUP BY export_id")
        assert Counter(dict(found)) == dict.fromkeys(ids, 1)
        # The background tasks of workers also take locks.
        wait_until(lambda: not has_unchained())
        assert delivered_by()[name_of(other)]
        sessions = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert rows(sessions)[0][0] <= SESSIONS


def test_repeated_statements_work_across_sessions_of_the_pooler(pooled: str) -> None:
    assert is_pooled()

    def ask(number: int) -> int:
        with connection(), transaction():
            return int(rows("SELECT CAST(? AS INTEGER) + 1", (number,))[0][0])

    with ThreadPoolExecutor(16) as threads:
        assert [*threads.map(ask, range(400))] == [*range(1, 401)]


def test_a_lock_is_exclusive_until_it_is_released(pooled: str) -> None:
    def is_free() -> bool:
        try:
            with connection(), locks.exclusive(Lock.SWEEP):
                return True
        except locks.LockBusy:
            return False

    with ThreadPoolExecutor(1) as another:
        with locks.exclusive(Lock.SWEEP):
            # Works whichever session each transaction uses.
            assert audit_chain.extend_to_end() == 0
            assert not another.submit(is_free).result()
        assert another.submit(is_free).result()


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        ({}, "no lock_timeout and no idle_in_transaction_session_timeout"),
        ({"lock_timeout": "2s"}, "no idle_in_transaction_session_timeout"),
        ({"lock_timeout": "2s", "idle_in_transaction_session_timeout": "5s"}, None),
    ],
)
def test_missing_timeouts_of_postgresql_sessions_are_reported_by_name(
    postgres_server: PostgresServer, limits: dict[str, str], missing: str | None
) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url) as administrator:
        for name, limit in limits.items():
            administrator.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} = '{limit}'")
    with PgBouncer(url) as pooler:
        open_database(pooler.url)
        with connection():
            found = [(each.level, each.message) for each in stores.timeouts()]
        close_database()
    assert found == ([(Level.WARNING, f"PostgreSQL's sessions have {missing}.")] if missing else [])


def test_a_database_without_tables_is_migrated(postgres_server: PostgresServer) -> None:
    with PgBouncer(postgres_server.create_database()) as pooler:
        open_database(pooler.url)
        assert schema_version.migrate() == schema_version.known()
        close_database()


def test_a_backup_through_the_pooler_is_refused_and_needs_the_servers_own_address(
    pooled: str, postgres_url: str, tmp_path: Path
) -> None:
    operator = CommandRunner(tmp_path / "here", pooled)
    refused = operator.refused("backup", str(tmp_path / "saved"))
    assert "pg_dump cannot run through PgBouncer" in refused
    assert "PostgreSQL's own address in DATABASE_URL" in refused
    assert operator.run("backup", str(tmp_path / "saved"), DATABASE_URL=postgres_url).exit_code == 0
