"""A recovery is completed even if the command that started it is killed, and the redelivered exports arrive."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import utc_now
from storage.db.engine import is_sqlite, rows, transaction
from storage.db.leases import LeasedJobs
from storage.db.models import RecoveryRow
from storage.exports import recoveries
from storage.exports.recoveries import BATCH_SIZE
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, Customer, environment, make_failed, make_target
from tests.support.processes.workers import RISKRELAY, CountingReceiver, WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

#: Enough batches to stop the command in the middle of them.
MANY: Final = 16 * BATCH_SIZE


class RecoverProcess:
    """`bin/riskrelay export recover` for one target, as a separate process."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, target_id: str) -> None:
        folder.mkdir(exist_ok=True)
        settings = environment(folder, DATABASE_URL=database_url, REDIS_URL=redis_url, **LOOPBACK)
        words = [RISKRELAY, "export", "recover", "--target", target_id, "--since", "1h", "--json"]
        self.process = subprocess.Popen(
            words, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """End the command with a signal, or wait for its end; return its exit code and its output."""
        if number is not None:
            self.process.send_signal(number)
        reported, complaints = self.process.communicate(timeout=60)
        return self.process.returncode, reported, complaints


@pytest.fixture
def command(database: str, redis: RedisServer, tmp_path: Path) -> Callable[[str], RecoverProcess]:
    return lambda target_id: RecoverProcess(tmp_path / "data", database, redis.url, target_id)


def waiting_target(customer: Customer) -> str:
    """Return a paused target: the exports that a recovery redelivers are not sent."""
    target = make_target(customer)
    targets.change_status(target.id, "pause", utc_now(), "operator")
    return target.id


def progress() -> list[tuple[Any, ...]]:
    return rows("SELECT status, done, total FROM recoveries")


def retried() -> Counter[str]:
    return Counter(row[0] for row in rows("SELECT subject_id FROM audit_entries WHERE action = 'retry'"))


@contextmanager
def in_the_middle(command: RecoverProcess) -> Iterator[None]:
    """Wait until the first batches are redelivered, and block further batches during the block."""
    deadline = time.monotonic() + 30
    while True:
        with transaction():
            # On SQLite this transaction is the only writer; on PostgreSQL the next batch waits for the lock on this row.
            found = rows("SELECT status, done FROM recoveries" + ("" if is_sqlite() else " FOR UPDATE"))  # noqa: S608 - our own names
            if found and found[0][1]:
                assert found[0][0] == "running"
                assert found[0][1] < MANY
                yield
                return
        assert command.process.poll() is None, command.end()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_completes_the_recovery_of_a_killed_command(
    start: Callable[..., WorkerProcess], command: Callable[[str], RecoverProcess], customer: Customer
) -> None:
    target_id = waiting_target(customer)
    ids = make_failed(customer, target_id, MANY, utc_now())
    killed = command(target_id)
    with in_the_middle(killed):
        pass
    # Long enough for the command to be within a batch, but not after the last one.
    time.sleep(0.02)
    killed.end(signal.SIGKILL)
    [(status, done, total)] = progress()
    assert (status, total) == ("running", MANY)
    assert 0 < done < MANY
    # The recorded progress equals the exports that are done.
    assert retried().total() == done
    with start():
        wait_until(lambda: progress() == [("done", MANY, MANY)], 60)
    assert retried() == Counter(ids)
    assert rows("SELECT status, COUNT(*) FROM exports GROUP BY status") == [("approved", MANY)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@on_sqlite
def test_an_interrupted_command_finishes_its_batch_and_leaves_the_rest_to_a_worker(
    command: Callable[[str], RecoverProcess], customer: Customer, number: signal.Signals
) -> None:
    target_id = waiting_target(customer)
    make_failed(customer, target_id, MANY, utc_now())
    interrupted = command(target_id)
    with in_the_middle(interrupted):
        interrupted.process.send_signal(number)
    exit_code, reported, complaints = interrupted.end()
    [recovery] = recoveries.list_page()
    assert (exit_code, reported) == (1, "")
    assert complaints.count("\n") == 1
    assert f"a worker continues {recovery.id}" in complaints
    assert (recovery.status, 0 < recovery.done < MANY, recovery.done % BATCH_SIZE) == ("running", True, 0)
    assert retried().total() == recovery.done
    # The job is free at once, before its lease would expire.
    assert LeasedJobs(RecoveryRow).any_waiting(utc_now())


@on_sqlite
def test_a_command_ends_if_its_recovery_is_cancelled(command: Callable[[str], RecoverProcess], customer: Customer) -> None:
    target_id = waiting_target(customer)
    make_failed(customer, target_id, MANY, utc_now())
    running = command(target_id)
    with in_the_middle(running):
        cancelled = recoveries.cancel(recoveries.list_page()[0].id, utc_now(), "operator")
    exit_code, reported, complaints = running.end()
    assert (exit_code, json.loads(reported)["status"]) == (1, "cancelled")
    assert "A worker took over recovery" in complaints
    assert recoveries.get(cancelled.id) == cancelled
    assert retried().total() == cancelled.done < MANY


def test_recovered_exports_are_delivered_once(
    start: Callable[..., WorkerProcess],
    command: Callable[[str], RecoverProcess],
    customer: Customer,
    receiver: CountingReceiver,
) -> None:
    target_id = make_target(customer, receiver.url()).id
    ids = make_failed(customer, target_id, 40, utc_now())
    with start():
        exit_code, reported, _ = command(target_id).end()
        assert (exit_code, json.loads(reported)["done"]) == (0, 40)
        wait_until(lambda: rows("SELECT COUNT(*) FROM exports WHERE status = 'exported'") == [(40,)], 60)
    assert Counter(receiver.keys) == Counter(ids)
