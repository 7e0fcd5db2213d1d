"""The test servers are real, come back with their data, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support.servers.redis_and_postgres import (
    PROJECT_ROOT,
    PostgresServer,
    RedisServer,
    Server,
    find_postgres,
    processes_in,
)

# How long the kernel and the servers may take to end after their parent.
GRACE_S = 10.0


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def set_and_get(server: RedisServer) -> bytes:
    with redis.Redis.from_url(server.url) as client:
        client.set("bell", "ding")
        return bytes(client.get("bell") or b"")


def get(server: RedisServer) -> bytes | None:
    with redis.Redis.from_url(server.url) as client:
        answer: bytes | None = client.get("bell")
        return answer


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def ends_soon(folder: Path) -> bool:
    deadline = time.monotonic() + GRACE_S
    while list(processes_in(folder)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def test_redis_stores_values(redis_server: RedisServer) -> None:
    assert set_and_get(redis_server) == b"ding"


def test_redis_has_its_data_after_a_restart(redis_server: RedisServer) -> None:
    set_and_get(redis_server)
    redis_server.stop()
    with pytest.raises(redis.exceptions.ConnectionError):
        get(redis_server)
    redis_server.start()
    assert get(redis_server) == b"ding"


def test_a_persistent_redis_has_its_data_after_a_kill(redis_server: RedisServer) -> None:
    set_and_get(redis_server)
    redis_server.kill()
    redis_server.start()
    assert get(redis_server) == b"ding"


def test_a_redis_without_persistence_is_empty_after_a_kill() -> None:
    with RedisServer() as server:
        set_and_get(server)
        server.kill()
        server.start()
        assert get(server) is None


def test_a_flushed_redis_is_empty(redis_server: RedisServer) -> None:
    set_and_get(redis_server)
    redis_server.flush()
    assert get(redis_server) is None


def test_two_redis_servers_share_no_data(redis_server: RedisServer) -> None:
    set_and_get(redis_server)
    with RedisServer() as other:
        assert get(other) is None


def test_postgres_responds_to_queries(postgres_server: PostgresServer) -> None:
    assert rows(postgres_server.url, "SELECT 6 * 7, current_setting('TimeZone')") == [(42, "UTC")]


def test_postgres_databases_share_no_tables(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    rows(first, "CREATE TABLE kept (n int)")
    assert rows(first, "SELECT to_regclass('kept')::text") == [("kept",)]
    assert rows(second, "SELECT to_regclass('kept')::text") == [(None,)]


def test_postgres_stores_text_as_utf8(postgres_server: PostgresServer) -> None:
    assert rows(postgres_server.url, "SELECT length('žluťoučký 🐎')") == [(11,)]


def test_postgres_has_its_data_after_a_restart(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    rows(url, "CREATE TABLE kept AS SELECT 1 AS n")
    postgres_server.stop()
    with pytest.raises(psycopg.OperationalError):
        rows(url, "SELECT n FROM kept")
    postgres_server.start()
    assert rows(url, "SELECT n FROM kept") == [(1,)]


def test_postgres_accepts_connections_after_a_kill_and_restart(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as open_all_along:
        postgres_server.kill()
        postgres_server.start()
        assert rows(postgres_server.url, "SELECT 1") == [(1,)]
        with pytest.raises(psycopg.OperationalError):
            open_all_along.execute("SELECT 1")


def test_the_installed_postgres_has_every_needed_program() -> None:
    for name in ("initdb", "postgres"):
        assert os.access(find_postgres() / name, os.X_OK)


@pytest.mark.parametrize("kind", [RedisServer, PostgresServer])
def test_a_closed_server_leaves_no_process_and_no_folder(kind: type[RedisServer | PostgresServer]) -> None:
    with kind() as server:
        assert list(processes_in(server.folder))
    assert not list(processes_in(server.folder))
    assert not server.folder.exists()


@pytest.mark.parametrize("kind", [RedisServer, PostgresServer])
def test_a_server_exits_when_its_parent_is_killed(kind: type[Server], tmp_path: Path) -> None:
    program = f"""
        import os
        from tests.support.servers.redis_and_postgres import {kind.__name__}
        server = {kind.__name__}()
        server.start()
        print(server.folder, flush=True)
        os.kill(os.getpid(), 9)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    folder = Path(killed.stdout.strip())
    assert killed.returncode == -9
    assert folder.is_dir()
    assert ends_soon(folder)
    shutil.rmtree(folder)
