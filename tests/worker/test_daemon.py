"""The daemon as a process: it handles wake-ups and signals, executes nothing from Redis, and costs little when idle."""

import os
import pickle
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis
from rq import Callback, Queue
from rq.serializers import JSONSerializer

from runtime import wake_up_queue
from storage.db.engine import close_database, connection, open_database
from storage.exports import queries
from tests.support.fakes import LoopbackServer
from tests.support.processes.workers import (
    SWEEP_WITHIN_S,
    CountingReceiver,
    WorkerProcess,
    approved,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.worker.receivers import always, make_certificate

#: A worker that checks for a signal once a second ends within this time on a busy machine; a worker that waits for a
#: receiver or its database takes longer.
AT_ONCE_S: Final = 5.0
#: Only a wake-up starts a delivery.
NO_SWEEP: Final = {"SWEEP_SECONDS": "600"}
#: The limit for a worker that holds one large payload from Redis at a time.
MAX_MEMORY_KIB: Final = 600 * 1024
NUMBERS: Final = count(1)


@pytest.fixture
def database(sqlite_url: str) -> Iterator[str]:
    """Only the dispatcher uses the database, so one kind of database is enough."""
    open_database(sqlite_url)
    with connection():
        yield sqlite_url
    close_database()


def test_a_wake_up_is_handled_long_before_the_sweep(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    with start(**NO_SWEEP):
        for _ in range(3):
            [export_id] = approved(receiver.url())
            assert notify_workers(redis)
            wait_until(is_exported(export_id))


def test_a_delivery_begins_before_the_wake_ups_job(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    with Redis.from_url(redis.url) as client, start(**NO_SWEEP):
        # The first delivery shows that the scan at the start is over.
        [first] = approved(receiver.url())
        assert notify_workers(redis)
        wait_until(is_exported(first))
        [export_id] = approved(receiver.url())
        # The part of a notification that is not the job.
        client.rpush("riskrelay:notified", 1)
        wait_until(is_exported(export_id))


def test_a_worker_writes_no_tls_keys_to_the_file_that_the_environment_names(
    start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    context, _ = make_certificate(tmp_path, "127.0.0.1")
    key_log = tmp_path / "keys.log"
    with LoopbackServer(always(), context) as receiver, start(SSLKEYLOGFILE=str(key_log)):
        [export_id] = approved(receiver.url())
        wait_until(lambda: queries.get(export_id).last_attempt is not None)
    assert receiver.connections == 1
    last = queries.get(export_id).last_attempt
    assert last is not None
    assert last.error_code == "tls_certificate"
    assert not key_log.exists()


def test_functions_named_by_redis_jobs_are_not_run(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver, tmp_path: Path
) -> None:
    proof = tmp_path / "made-by-redis"
    with Redis.from_url(redis.url) as client, start(**NO_SWEEP) as worker:
        wake_ups = Queue(wake_up_queue.QUEUE, connection=client, serializer=JSONSerializer)
        wake_ups.enqueue("os.mkdir", str(proof))
        wake_ups.enqueue("no.such.function")
        wake_ups.enqueue(
            wake_up_queue.JOB, on_success=Callback("tests.support.fakes.no_such_callback"), on_failure=Callback("os.abort")
        )
        client.set("rq:suspended", 1)
        client.rpush(f"rq:queue:{wake_up_queue.QUEUE}", "no-such-job")
        [export_id] = approved(receiver.url())
        wake_ups.enqueue("os.mkdir", str(proof))
        wait_until(is_exported(export_id))
        assert worker.process.poll() is None
    assert not proof.exists()


class Pickled:
    """Unpickling it would create the folder `proof`."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._proof),)


def plant_job(client: Redis, data: bytes, **fields: str | bytes) -> None:
    """Queue a job whose name and arguments are replaced by these bytes."""
    job_id = f"planted-{next(NUMBERS)}"
    stored: dict[Any, Any] = {
        "data": data,
        "created_at": "2026-01-01T00:00:00Z",
        "origin": wake_up_queue.QUEUE,
        "status": "queued",
        **fields,
    }
    client.hset(f"rq:job:{job_id}", mapping=stored)
    client.rpush(f"rq:queue:{wake_up_queue.QUEUE}", job_id)


def plant_pickles(client: Redis, proof: Path) -> None:
    pickled = pickle.dumps(Pickled(proof))
    for data in (zlib.compress(pickled), pickled):
        plant_job(client, data, result=pickled, meta=zlib.compress(pickled), serializer="rq.serializers.PickleSerializer")
    client.rpush("riskrelay:notified", pickled)


def plant_malformed_jobs(client: Redis, _proof: Path) -> None:
    for value in ("{}", "null", '["os.getpid"]', "[1, 2, 3, 4]", "[" * 50_000):
        plant_job(client, zlib.compress(value.encode()))
    plant_job(client, b"\xff\x00no zlib", timeout="never", created_at="yesterday", status="no status", meta=b"\xff")
    client.rpush("rq:job:a-list", "x")
    client.rpush(f"rq:queue:{wake_up_queue.QUEUE}", "a-list", b"\xff\xfe", "", "a:b:c" * 1000)


def plant_large_payloads(client: Redis, _proof: Path) -> None:
    # A small payload that is 16 MiB after decompression, and a large one.
    plant_job(client, zlib.compress(b'["' + b" " * (1 << 24) + b'", null, [], {}]'))
    plant_job(client, b"x" * (1 << 22))
    client.rpush("riskrelay:notified", b"x" * (1 << 22), *range(500))


def plant_wrong_types(key: str) -> Callable[[Redis, Path], None]:
    def plant(client: Redis, _proof: Path) -> None:
        # Replaces the value at the key; a worker may write to the key again in between.
        with client.pipeline(transaction=True) as pipeline:
            pipeline.delete(key)
            pipeline.hset(key, "a", "b")
            pipeline.execute()

    return plant


HOSTILE_CONTENT: Final[dict[str, Callable[[Redis, Path], None]]] = {
    "pickles": plant_pickles,
    "malformed jobs": plant_malformed_jobs,
    "large payloads": plant_large_payloads,
    **{
        f"a hash at {key}": plant_wrong_types(key)
        for key in (f"rq:queue:{wake_up_queue.QUEUE}", "riskrelay:notified", "riskrelay:woken", "rq:queues", "rq:workers")
    },
}


def test_hostile_content_of_redis_is_not_run_and_stops_no_delivery(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver, tmp_path: Path
) -> None:
    proof = tmp_path / "made-by-redis"
    with Redis.from_url(redis.url) as client, start() as worker:
        for name, plant in HOSTILE_CONTENT.items():
            plant(client, proof)
            [export_id] = approved(receiver.url())
            notify_workers(redis)
            assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S, name
            assert worker.process.poll() is None, name
            assert not proof.exists(), name
            redis.flush()
        peak = Path(f"/proc/{worker.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) < MAX_MEMORY_KIB
    assert len(receiver.keys) == len(set(receiver.keys)) == len(HOSTILE_CONTENT)


def test_a_wake_up_that_fails_leaves_no_error_message_in_redis_or_the_log(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    receiver.gate.clear()
    [export_id] = approved(receiver.url())
    with Redis.from_url(redis.url) as client, start(**NO_SWEEP) as worker:
        wake_ups = Queue(wake_up_queue.QUEUE, connection=client, serializer=JSONSerializer)
        # The job ends when the delivery that it found has ended, which takes longer than its timeout.
        job = wake_ups.enqueue(wake_up_queue.JOB, job_timeout=1)
        wait_until(lambda: worker.has_logged("wake-up job failed"))
        wait_until(lambda: job.get_status() == "failed")
        result = job.latest_result()
        assert result is not None
        assert result.exc_string == ""
        receiver.gate.set()
        wait_until(is_exported(export_id))
    assert {line["logger"] for line in worker.log_lines if line["level"] == "error"} == {"worker.wake_up_listener"}
    assert "(1 seconds)" not in worker.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_worker_at_once(start: Callable[..., WorkerProcess], number: signal.Signals) -> None:
    with start() as worker:
        time.sleep(0.5)
        began = time.monotonic()
        worker.signal(number)
        assert worker.wait() == 0
        assert time.monotonic() - began < AT_ONCE_S
        assert worker.has_logged("worker stopped")


def test_a_signal_ends_a_worker_without_redis_at_once(start: Callable[..., WorkerProcess], redis: RedisServer) -> None:
    redis.stop()
    with start() as worker:
        time.sleep(0.5)
        began = time.monotonic()
        worker.signal()
        assert worker.wait() == 0
        assert time.monotonic() - began < AT_ONCE_S


def test_a_signal_ends_a_worker_that_lost_redis_at_once(start: Callable[..., WorkerProcess], redis: RedisServer) -> None:
    with start() as worker:
        time.sleep(0.5)
        redis.stop()
        time.sleep(1.5)
        began = time.monotonic()
        worker.signal()
        assert worker.wait() == 0
        assert time.monotonic() - began < AT_ONCE_S


def test_a_signal_during_a_delivery_lets_it_finish_and_begins_no_other(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    receiver.gate.clear()
    ids = approved(receiver.url(), 5)
    with start(WORKER_CONCURRENCY="4", SWEEP_SECONDS="0.1") as worker:
        wait_until(lambda: len(receiver.requests) == 2)
        assert notify_workers(redis)
        worker.signal()
        time.sleep(0.5)
        # A repetition of the same signal does not count as a second one: a terminal and a supervisor may both send it.
        worker.signal()
        time.sleep(0.3)
        assert worker.process.poll() is None
        receiver.gate.set()
        assert worker.wait() == 0
    assert len(receiver.requests) == 2
    found = [queries.get(export_id) for export_id in ids]
    assert sorted(export.attempts for export in found) == [0, 0, 0, 1, 1]
    assert [export.status for export in found if export.attempts] == ["exported", "exported"]
    assert "delivering" not in {export.status for export in found}


def test_a_second_signal_ends_a_worker_within_its_delivery(
    start: Callable[..., WorkerProcess], receiver: CountingReceiver
) -> None:
    receiver.gate.clear()
    [export_id] = approved(receiver.url())
    with start() as worker:
        wait_until(lambda: receiver.requests)
        worker.signal()
        time.sleep(1.2)
        assert worker.process.poll() is None
        began = time.monotonic()
        worker.signal()
        assert worker.wait() == 1
        assert time.monotonic() - began < AT_ONCE_S
    assert queries.get(export_id).status == "delivering"


def test_an_idle_worker_uses_little_cpu_time(start: Callable[..., WorkerProcess]) -> None:
    with start() as worker:
        time.sleep(0.5)
        before = worker.cpu_s()
        time.sleep(2.0)
        # On a busy machine this includes the rest of its start.
        assert worker.cpu_s() - before < 0.4


def test_a_worker_may_open_more_files_than_the_soft_limit_says(start: Callable[..., WorkerProcess]) -> None:
    def limits(process: Any) -> list[str]:
        lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("Max open files")]
        return line.split()[3:5]

    with start() as worker:
        soft, hard = limits(worker.process)
    assert int(soft) == min(65_536, int(hard))
