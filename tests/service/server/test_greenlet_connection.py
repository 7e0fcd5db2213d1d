"""Greenlets that wait for PostgreSQL do not block others, and are notified of every event that ends their wait."""

from collections.abc import Iterator

import gevent
import psycopg
import pytest

from service.server.greenlet_connection import GreenletConnection
from storage.db.engine import close_database, connection, database, execute, first_row, open_database, transaction
from tests.support.factories import make_customer

#: If the others were blocked, none could release the lock, and the server would end the wait.
LOCK_TIMEOUT = "options=-clock_timeout%3D10s"


@pytest.fixture
def connections(postgres_url: str) -> Iterator[list[GreenletConnection]]:
    """Two connections outside the pool."""
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{LOCK_TIMEOUT}"
    opened = [GreenletConnection.connect(url, autocommit=True) for _ in range(2)]
    yield opened
    for each in opened:
        each.close()


def test_other_greenlets_continue_while_one_waits_for_a_response(connections: list[GreenletConnection]) -> None:
    waits, holds = connections
    holds.execute("SELECT pg_advisory_lock(1)")
    waiting = gevent.spawn(waits.execute, "SELECT pg_advisory_lock(1)")
    gevent.sleep(0.05)
    assert not waiting.ready()
    assert holds.execute("SELECT 1").fetchone() == (1,)
    holds.execute("SELECT pg_advisory_unlock(1)")
    assert waiting.get(timeout=10).fetchone() == ("",)


def test_the_end_of_a_connection_ends_the_wait(connections: list[GreenletConnection]) -> None:
    waits, ends = connections
    waiting = gevent.spawn(waits.execute, "SELECT pg_sleep(60)")
    gevent.sleep(0.05)
    ends.execute("SELECT pg_terminate_backend(%s)", (waits.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        waiting.get(timeout=10)
    assert waits.closed


def test_a_connection_is_usable_after_an_error_of_the_server(connections: list[GreenletConnection]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connections[0].execute("SELECT 1 / 0")
    assert connections[0].execute("SELECT 1").fetchone() == (1,)


def test_data_of_many_reads_and_writes_arrives_completely(connections: list[GreenletConnection]) -> None:
    text = "é" * 3_000_000
    assert connections[0].execute("SELECT %s || 'x'", (text,)).fetchone() == (f"{text}x",)


def test_a_wait_with_a_timeout_ends(connections: list[GreenletConnection]) -> None:
    assert list(connections[0].notifies(timeout=0.05)) == []


def test_the_pool_consists_of_greenlet_connections_if_configured(postgres_url: str) -> None:
    open_database(postgres_url, driver=GreenletConnection)
    try:
        with connection(), transaction():
            make_customer()
            assert execute("UPDATE accounts SET name = ?", ("Greenlet",)) == 1
        assert isinstance(pooled(), GreenletConnection)
        assert first_row("SELECT name FROM accounts WHERE name = ?", ("Greenlet",)) == ("Greenlet",)
        many = [gevent.spawn(first_row, "SELECT pg_sleep(0.01), CAST(? AS INTEGER)", (number,)) for number in range(20)]
        assert [waiting.get(timeout=10)[1] for waiting in many] == list(range(20))
    finally:
        close_database()


def pooled() -> object:
    """Return a connection from the pool."""
    with connection():
        return database.connection()
