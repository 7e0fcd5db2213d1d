"""The database: no read followed by a write loses an update, readers never wait, and every outage is recognized."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import pytest
from peewee import IntegrityError, OperationalError
from psycopg.errors import ConnectionTimeout

from storage.accounts import accounts
from storage.db.drivers.sqlite import CACHE_BYTES, WRITER_CACHE_BYTES
from storage.db.engine import (
    DAMAGE,
    OUTAGES,
    close_database,
    connection,
    execute,
    first_row,
    is_reachable,
    is_sqlite,
    location_hint,
    missing_folder,
    open_database,
    release,
    rows,
    transacted,
    transaction,
    values_list,
)
from storage.db.engine import database as db
from storage.db.models import AccountRow
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_and_postgres import PostgresServer

ROOT: Final = Path(__file__).parents[3]

#: In a loop, reads a number and writes the next number in the same transaction.
COUNTER: Final = """
import sys
from storage.db.engine import connection, execute, open_database, rows, transaction
open_database(sys.argv[1])
sys.stdin.read(1)
with connection():
    for _ in range(25):
        with transaction():
            [(count,)] = rows("SELECT created_at FROM accounts WHERE id = 1")
            execute("UPDATE accounts SET created_at = ? WHERE id = 1", (count + 1,))
"""


@pytest.fixture
def opened() -> Iterator[Callable[[str], None]]:
    """Return a function that opens a database; it is closed after the test."""

    def open_it(url: str) -> None:
        open_database(url)

    yield open_it
    close_database()


def count() -> int:
    [(number,)] = rows("SELECT COUNT(*) FROM accounts")
    return int(number)


# --- transactions


def test_processes_that_read_and_then_write_lose_nothing(sqlite_url: str, opened: Callable[[str], None]) -> None:
    opened(sqlite_url)
    with connection():
        accounts.add_account("Counter", NOW)
        execute("UPDATE accounts SET created_at = 0")
    command = [sys.executable, "-c", COUNTER, sqlite_url]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        reported = list(pool.map(lambda process: process.communicate("go", timeout=60)[1], started))
    assert reported == [""] * 8
    with connection():
        assert rows("SELECT created_at FROM accounts") == [(8 * 25,)]


def test_threads_that_write_take_turns(database: str) -> None:
    def add(number: int) -> None:
        with connection():
            accounts.add_account(f"Account {number}", NOW)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(add, range(60)))
    assert count() == 60


def test_a_transaction_that_fails_leaves_nothing(database: str) -> None:
    def add_two_and_fail() -> None:
        with transaction():
            accounts.add_account("One", NOW)
            with transaction():
                accounts.add_account("Two", NOW)
            raise LookupError

    with pytest.raises(LookupError):
        add_two_and_fail()
    assert count() == 0


def test_an_interrupt_within_a_commit_is_raised_unchanged(sqlite_url: str, opened: Callable[[str], None]) -> None:
    opened(sqlite_url)

    def be_interrupted() -> None:
        with connection(), transaction():
            accounts.add_account("Kept", NOW)
            # The transaction has ended in SQLite, but not in our code.
            db.execute_sql("COMMIT")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    with connection():
        assert [account.name for account in AccountRow.select()] == ["Kept"]


def test_a_transaction_within_another_one_joins_it(database: str) -> None:
    def others_see() -> int:
        with connection():
            return count()

    with ThreadPoolExecutor(1) as pool, transaction():
        with transaction():
            accounts.add_account("One", NOW)
        assert pool.submit(others_see).result(10) == 0
    assert count() == 1


def test_a_transaction_that_has_to_connect_first_is_joined_too(database: str) -> None:
    release()
    with transaction():
        with transaction():
            accounts.add_account("within", NOW)
        assert db.in_transaction()
    assert [name for (name,) in rows("SELECT name FROM accounts")] == ["within"]


def test_readers_are_not_kept_waiting_by_a_writer(database: str) -> None:
    begun, finish = threading.Event(), threading.Event()

    def write() -> None:
        with connection(), transaction():
            accounts.add_account("Slow", NOW)
            begun.set()
            finish.wait(10)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert begun.wait(10)
        began = time.monotonic()
        assert count() == 0
        assert time.monotonic() - began < 1
        finish.set()
        writing.result(10)
    assert count() == 1


def test_a_connection_is_usable_after_a_failed_statement(customer: Customer) -> None:
    for _ in range(3):
        with pytest.raises(IntegrityError):
            AccountRow.create(id=customer.account_id, name="taken", may_use_webhooks=True, created_at=NOW)
        assert count() == 1


# --- connections


def test_a_connection_within_another_one_is_the_same_and_stays_open(database: str) -> None:
    before = db.connection()
    with connection():
        assert db.connection() is before
    assert is_reachable()
    assert db.connection() is before


def test_a_connection_returns_to_the_pool_after_an_exception(database_url: str, opened: Callable[[str], None]) -> None:
    opened(database_url)

    def break_inside() -> None:
        with connection():
            raise LookupError

    for _ in range(100):
        with pytest.raises(LookupError):
            break_inside()
        assert db.is_closed()
    with connection():
        assert count() == 0


def test_more_threads_than_connections_wait_their_turn(database: str) -> None:
    def ask(_number: int) -> int:
        with connection():
            time.sleep(0.005)
            return count()

    with ThreadPoolExecutor(60) as pool:
        assert set(pool.map(ask, range(120))) == {0}


def test_sqlite_is_opened_to_survive_a_power_cut_and_to_keep_its_keys(
    sqlite_url: str, opened: Callable[[str], None]
) -> None:
    opened(sqlite_url)
    with connection():
        found = {
            name: rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
        with transaction():
            writes = {name: rows(f"PRAGMA {name}")[0][0] for name in found}
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}
    # A writer waits in our code, because a wait inside SQLite would block every greenlet of the process.
    assert writes == {**found, "busy_timeout": 0}


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://relative.db", "", "riskrelay.db"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:/// or postgresql://"):
        open_database(url)


def test_postgresql_may_be_called_postgres(postgres_url: str, opened: Callable[[str], None]) -> None:
    opened(postgres_url.replace("postgresql://", "postgres://"))
    assert is_reachable()
    assert not is_sqlite()


@pytest.mark.parametrize(("columns", "times", "text"), [(1, 1, "(?)"), (2, 2, "(?, ?), (?, ?)"), (3, 1, "(?, ?, ?)")])
def test_a_list_of_values_has_a_placeholder_for_each_value(columns: int, times: int, text: str) -> None:
    assert values_list(columns, times) == text


# --- single lookups


def name_of(number: int) -> tuple[Any, ...] | None:
    return first_row("SELECT name FROM accounts WHERE id = ?", (number,))


def test_a_lookup_returns_the_first_row_and_holds_no_connection(database_url: str, opened: Callable[[str], None]) -> None:
    opened(database_url)
    with connection():
        made = accounts.add_account("One", NOW).id
    for _ in range(100):
        assert (name_of(made), name_of(0)) == (("One",), None)
        assert db.is_closed()


def test_a_lookup_sees_the_latest_commit(database_url: str, opened: Callable[[str], None]) -> None:
    opened(database_url)
    with connection():
        made = accounts.add_account("0", NOW).id
        for number in range(1, 20):
            execute("UPDATE accounts SET name = ? WHERE id = ?", (str(number), made))
            assert name_of(made) == (str(number),)


def test_a_lookup_sees_no_uncommitted_rows(database: str) -> None:
    made = accounts.add_account("Before", NOW).id
    with transaction():
        execute("UPDATE accounts SET name = 'after'")
        assert name_of(made) == ("Before",)
    assert name_of(made) == ("after",)


def test_threads_perform_lookups_concurrently(database_url: str, opened: Callable[[str], None]) -> None:
    """More threads than connections, so that some wait for one."""
    opened(database_url)
    with connection():
        made = [accounts.add_account(str(number), NOW).id for number in range(60)]
    with ThreadPoolExecutor(60) as pool:
        assert list(pool.map(name_of, made * 5)) == [(str(number),) for number in range(60)] * 5


def test_a_lookup_uses_the_currently_open_database(
    sqlite_url: str, postgres_url: str, opened: Callable[[str], None]
) -> None:
    for url in (sqlite_url, postgres_url, sqlite_url):
        opened(url)
        with connection():
            name, made = f"Of {url}", accounts.add_account(f"Of {url}", NOW).id
        assert name_of(made) == (name,)


def test_a_lookup_without_a_database_is_an_outage(tmp_path: Path, opened: Callable[[str], None]) -> None:
    opened(f"sqlite:///{tmp_path / 'missing' / 'riskrelay.db'}")
    with pytest.raises(OUTAGES):
        name_of(1)
    (tmp_path / "riskrelay.db").write_bytes(b"not a database at all " * 100)
    opened(f"sqlite:///{tmp_path / 'riskrelay.db'}")
    with pytest.raises(DAMAGE):
        name_of(1)


def test_an_error_of_sqlite_while_later_rows_are_read_is_an_outage(sqlite_url: str, opened: Callable[[str], None]) -> None:
    opened(sqlite_url)
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100000) SELECT n FROM n"
    with connection():
        # Interrupts the statement after some thousand rows.
        db.connection().set_progress_handler(lambda: True, 100_000)
        with pytest.raises(OUTAGES):
            rows(numbers)
        db.connection().set_progress_handler(None, 0)


def test_a_lookup_succeeds_when_the_server_is_back(
    postgres_url: str, postgres_server: PostgresServer, opened: Callable[[str], None]
) -> None:
    opened(postgres_url)
    assert name_of(1) is None
    postgres_server.stop()
    try:
        with pytest.raises(OUTAGES):
            name_of(1)
    finally:
        postgres_server.start()
    assert name_of(1) is None


# --- outages


def test_session_options_of_a_url_are_kept_in_addition_to_ours(postgres_url: str, opened: Callable[[str], None]) -> None:
    opened(f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Delsewhere%20-c%20work_mem%3D8MB")
    reported = [rows(f"SHOW {name}")[0][0] for name in ("search_path", "work_mem", "lock_timeout", "jit")]
    assert reported == ["elsewhere", "8MB", "5s", "off"]


def test_defaults_of_the_server_do_not_affect_texts_and_times(
    postgres_server: PostgresServer, opened: Callable[[str], None]
) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as owner:
        for default in ("datestyle = German", "client_encoding = LATIN1"):
            owner.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {default}")
    opened(url)
    assert rows("SELECT ?, TIMESTAMPTZ '2026-03-01 12:00+00'", ("🚀",)) == [("🚀", datetime(2026, 3, 1, 12, tzinfo=UTC))]


def test_a_file_that_is_locked_too_long_is_an_outage(sqlite_url: str, opened: Callable[[str], None]) -> None:
    opened(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with connection():
            db.execute_sql("PRAGMA busy_timeout = 50")
            with pytest.raises(OUTAGES):
                execute("UPDATE accounts SET name = 'late'")
            assert is_reachable()
            other.execute("ROLLBACK")
            accounts.add_account("In time", NOW)
            assert count() == 1
    finally:
        other.close()


def test_a_folder_that_is_missing_is_an_outage(tmp_path: Path, opened: Callable[[str], None]) -> None:
    opened(f"sqlite:///{tmp_path / 'missing' / 'riskrelay.db'}")
    with pytest.raises(OUTAGES), connection():
        count()
    assert not is_reachable()


def test_a_file_that_is_no_database_is_not_reachable(tmp_path: Path, opened: Callable[[str], None]) -> None:
    path = tmp_path / "riskrelay.db"
    path.write_bytes(b"not a database at all " * 100)
    opened(f"sqlite:///{path}")
    assert not is_reachable()


def test_a_full_disk_is_an_outage(sqlite_url: str, opened: Callable[[str], None]) -> None:
    opened(sqlite_url)
    with connection():
        with transaction():
            [(pages,)] = rows("PRAGMA page_count")
            db.execute_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OUTAGES):
            accounts.add_account("x" * 100_000, NOW)
        assert count() == 0


def test_an_unreachable_server_is_an_outage(opened: Callable[[str], None]) -> None:
    opened("postgresql://riskrelay@127.0.0.1:1/riskrelay")
    with pytest.raises(OUTAGES), connection():
        count()
    assert not is_reachable()


class SilentOnce(psycopg.Connection[Any]):
    """A driver whose first connection attempt times out."""

    asked = 0

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Self:
        cls.asked += 1
        if cls.asked == 1:
            raise ConnectionTimeout("connection timeout expired")
        return super().connect(*args, **options)


def test_only_the_first_of_several_callers_waits_for_a_silent_server(postgres_url: str) -> None:
    open_database(postgres_url, driver=SilentOnce)
    try:
        assert [is_reachable() for _ in range(3)] == [False] * 3
        assert SilentOnce.asked == 1
        wait_until(is_reachable)
        assert SilentOnce.asked == 2
    finally:
        close_database()


def test_a_short_lock_timeout_can_be_requested(postgres_url: str) -> None:
    open_database(postgres_url, 0.25)
    with connection():
        assert rows("SELECT current_setting('lock_timeout')") == [("250ms",)]
    close_database()


def test_a_lock_timeout_is_an_outage(postgres_url: str, opened: Callable[[str], None]) -> None:
    opened(postgres_url)
    with connection():
        accounts.add_account("One", NOW)

        def hold(held: threading.Event, done: threading.Event) -> None:
            with connection(), transaction():
                execute("UPDATE accounts SET name = 'held'")
                held.set()
                done.wait(10)

        held, done = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(hold, held, done)
            assert held.wait(10)
            db.execute_sql("SET lock_timeout = 50")
            with pytest.raises(OUTAGES):
                execute("UPDATE accounts SET name = 'late'")
            done.set()
            holding.result(10)
        assert rows("SELECT name FROM accounts") == [("held",)]


def test_after_a_restart_of_the_server_every_pooled_connection_is_replaced(
    postgres_url: str, postgres_server: PostgresServer, opened: Callable[[str], None]
) -> None:
    opened(postgres_url)
    everybody = threading.Barrier(4)

    def ask(_number: int) -> int:
        with connection():
            everybody.wait(10)
            return count()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [0] * 4
        try:
            with connection():
                postgres_server.stop()
                with pytest.raises(OUTAGES):
                    count()
            assert not is_reachable()
        finally:
            postgres_server.start()
        assert list(pool.map(ask, range(4))) == [0] * 4
    assert is_reachable()


def test_importing_the_models_touches_no_database(tmp_path: Path) -> None:
    code = "import storage.db.models, storage.exports.transitions, storage.intake.findings, storage.db.schema_version"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert ran.stdout == ran.stderr == b""
    found: list[Any] = [*tmp_path.iterdir()]
    assert found == []


def test_only_the_writer_of_sqlite_has_a_large_page_cache(sqlite_url: str) -> None:
    """A worker has some twenty connections that are rarely used: their caches would hold memory for an hour."""
    open_database(sqlite_url)
    try:
        with connection():
            assert rows("PRAGMA cache_size") == [(-CACHE_BYTES // 1024,)]
            with transaction():
                assert rows("PRAGMA cache_size") == [(-WRITER_CACHE_BYTES // 1024,)]
        assert WRITER_CACHE_BYTES + 25 * CACHE_BYTES < 16 * 1024 * 1024
    finally:
        close_database()


@on_sqlite
def test_a_folder_that_may_not_be_entered_is_not_called_missing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert missing_folder() is None
    assert location_hint().endswith("riskrelay.db, its owner and the free space there")


class _Deadlock(Exception):
    sqlstate = "40P01"


def test_a_transacted_function_runs_once_more_after_a_deadlock(customer: Customer) -> None:
    calls: list[str] = []

    @transacted
    def rename(name: str) -> str:
        calls.append(name)
        execute("UPDATE accounts SET name = ?", (f"{name} {len(calls)}",))
        if len(calls) == 1:
            raise OperationalError("deadlock detected") from _Deadlock()
        return name

    assert rename("changed") == "changed"
    assert (calls, rows("SELECT name FROM accounts")) == (["changed", "changed"], [("changed 2",)])
