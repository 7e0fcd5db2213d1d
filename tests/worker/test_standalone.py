"""The job in a plain `rq worker`: it opens settings and database by itself, delivers, and leaves nothing running."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from redis import Redis

from runtime import wake_up_queue
from runtime.clock import utc_now
from storage.db.engine import close_database, connection, open_database, rows
from tests.support.factories import LOOPBACK, environment, make_approved, make_customer, make_tracker
from tests.support.processes.workers import ROOT, CountingReceiver, all_are, approved, notify_workers, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.trackers.servers import FakeGitea
from worker import jobs

#: RQ's console script, which its documentation uses to start a worker.
RQ: Final = str(Path(sys.executable).with_name("rq"))
#: Enough for a start, a job that imports the whole worker, and an end, on a busy machine.
PATIENCE_S: Final = 90.0

#: Options for RQ's worker classes: one forks for each job, which is the default, the other does not.
WORKERS: Final = {"forking": (), "in process": ("--worker-class", "rq.SimpleWorker")}

StartRq = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def database(sqlite_url: str) -> Iterator[str]:
    """These tests do not depend on the kind of database."""
    open_database(sqlite_url)
    with connection():
        yield sqlite_url
    close_database()


@pytest.fixture
def start_rq(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[StartRq]:
    """Return a function that starts a plain `rq worker` on the queue."""
    started = []

    def start(*options: str, **changes: str) -> "subprocess.Popen[bytes]":
        settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, **LOOPBACK, **changes}
        command = [RQ, "worker", "--serializer", "json", "--path", str(ROOT), "--url", redis.url, *options]
        started.append(
            subprocess.Popen([*command, wake_up_queue.QUEUE], cwd=tmp_path, env=environment(tmp_path, **settings))
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def threads_of(process: "subprocess.Popen[bytes]") -> int:
    return len([*Path(f"/proc/{process.pid}/task").iterdir()])


@pytest.mark.parametrize("options", WORKERS.values(), ids=list(WORKERS))
def test_a_plain_rq_worker_delivers_what_is_due_and_leaves_no_lease(
    options: tuple[str, ...], start_rq: StartRq, redis: RedisServer, receiver: CountingReceiver
) -> None:
    approved(receiver.url(), 12)
    assert notify_workers(redis)
    process = start_rq("--burst", *options)
    assert process.wait(PATIENCE_S) == 0
    assert all_are("exported")()
    assert len(receiver.keys) == len(set(receiver.keys)) == 12
    assert rows("SELECT COUNT(*) FROM workers") == [(0,)]
    with Redis.from_url(redis.url) as client:
        queue = wake_up_queue.queue(client)
        assert (queue.count, queue.failed_job_registry.count) == (0, 0)


def test_a_plain_rq_worker_creates_issues_in_a_tracker(start_rq: StartRq, redis: RedisServer) -> None:
    customer = make_customer()
    with FakeGitea() as gitea:
        target_id = make_tracker(customer, gitea.base_url)
        ids = [make_approved(customer, target_id, utc_now()) for _ in range(3)]
        assert notify_workers(redis)
        assert start_rq("--burst").wait(PATIENCE_S) == 0
        assert [len(gitea.issues_of(each)) for each in ids] == [1, 1, 1]
    assert all_are("exported")()


def test_a_deadline_that_is_longer_than_a_job_fails_before_anything_is_sent(
    start_rq: StartRq, redis: RedisServer, receiver: CountingReceiver
) -> None:
    [export_id] = approved(receiver.url(), 1)
    assert notify_workers(redis)
    assert start_rq("--burst", DELIVERY_TIMEOUT_S="146").wait(PATIENCE_S) == 0
    assert rows("SELECT id, status FROM exports") == [(export_id, "approved")]
    with Redis.from_url(redis.url) as client:
        queue = wake_up_queue.queue(client)
        [job_id] = queue.failed_job_registry.get_job_ids()
        failed = queue.fetch_job(job_id)
        assert failed is not None
        result = failed.latest_result()
        assert result is not None
        assert "DELIVERY_TIMEOUT_S: A plain RQ worker supports at most 145 seconds." in str(result.exc_string)


def test_one_process_takes_one_job_after_another_and_ends_at_a_signal(
    start_rq: StartRq, redis: RedisServer, receiver: CountingReceiver
) -> None:
    process = start_rq(*WORKERS["in process"])
    threads: list[int] = []
    for _ in range(3):
        approved(receiver.url(), 2)
        assert notify_workers(redis)
        wait_until(all_are("exported"), PATIENCE_S)
        wait_until(lambda: rows("SELECT COUNT(*) FROM workers") == [(0,)], PATIENCE_S)
        # All threads of the job, such as the dispatcher and the watchdog, have ended with it.
        wait_until(lambda: threads_of(process) <= max(threads, default=64), PATIENCE_S)
        threads.append(threads_of(process))
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_exports_left_by_a_time_slice_are_delivered_by_the_next_job(
    database: str, redis: RedisServer, receiver: CountingReceiver, tmp_path: Path
) -> None:
    """Jobs with a short time slice: each queues the next one until nothing is due."""
    approved(receiver.url(), 60)
    script = (
        "from functools import partialmethod; from rq import SimpleWorker; from worker import standalone as plain;"
        "from worker.delivery.dispatcher import Dispatcher; from runtime import wake_up_queue as queues; import sys;"
        "Dispatcher.deliver_due = partialmethod(Dispatcher.deliver_due, 0.05);"
        "client = queues.connect(sys.argv[1]); queue = queues.queue(client);"
        "SimpleWorker([queue], connection=client, serializer=queue.serializer).work(burst=True)"
    )
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WORKER_CONCURRENCY": "1", **LOOPBACK}
    assert notify_workers(redis)
    ran = subprocess.run(
        [sys.executable, "-c", script, redis.url],
        cwd=tmp_path,
        env=environment(tmp_path, **settings, PYTHONPATH=str(ROOT)),
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0
    assert all_are("exported")()
    assert len(receiver.keys) == len(set(receiver.keys)) == 60


def test_within_the_daemon_the_job_calls_the_installed_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    monkeypatch.setattr(jobs, "_on_wake_up", None)
    jobs.install(lambda: woken.append("dispatcher"))
    jobs.deliver_due()
    assert woken == ["dispatcher"]
