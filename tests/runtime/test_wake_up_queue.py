"""The wake-up queue: at most one job waits, jobs are JSON, and without Redis a delivery is late but nothing fails."""

import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from redis import Redis
from rq.job import Job

from runtime import wake_up_queue
from runtime.wake_up_queue import JOB, QUEUE, BackgroundWakeUps, WakeUpQueue
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_and_postgres import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    redis_server.start()
    redis_server.flush()
    with wake_up_queue.connect(redis_server.url) as client:
        yield client


def waiting(client: Redis) -> int:
    return len(wake_up_queue.queue(client).get_job_ids())


def test_many_notifications_leave_one_job_waiting(client: Redis) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: WakeUpQueue(client).notify(), range(40))) == [True] * 40
    assert waiting(client) == 1


def test_after_an_acknowledgement_a_notification_queues_a_new_job(client: Redis) -> None:
    wake_ups = WakeUpQueue(client)
    wake_ups.notify()
    take_job(client)
    wake_ups.acknowledge()
    wake_ups.notify()
    wake_ups.notify()
    assert waiting(client) == 1


def take_job(client: Redis) -> None:
    """Remove the waiting job from RQ's list, as a worker does."""
    assert client.lpop(wake_up_queue.queue(client).key) is not None


def test_no_second_job_is_queued_while_one_is_waiting(client: Redis) -> None:
    wake_ups = WakeUpQueue(client)
    for _ in range(3):
        wake_ups.notify()
        # The acknowledgement of an earlier job, or the mark has expired.
        wake_ups.acknowledge()
    assert waiting(client) == 1
    # Running workers still receive each notification.
    assert wake_ups.wait(1)
    wake_ups.notify()
    assert wake_ups.wait(1)
    assert waiting(client) == 1


@pytest.fixture
def waiter(client: Redis, redis_server: RedisServer) -> Iterator[WakeUpQueue]:
    with wake_up_queue.connect(redis_server.url, timeout_s=5) as patient:
        yield WakeUpQueue(patient)


def test_one_waiting_worker_is_notified_in_addition_to_the_job(client: Redis, waiter: WakeUpQueue) -> None:
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(waiter.wait, 1) for _ in range(2)]
        waiter.notify()
        assert sorted(each.result() for each in waits) == [False, True]
    assert waiting(client) == 1


def test_without_a_waiting_worker_one_notification_is_kept_for_seconds(client: Redis) -> None:
    wake_ups = WakeUpQueue(client)
    for _ in range(3):
        wake_ups.notify()
        wake_ups.acknowledge()
    [(key, length)] = [(key, client.llen(key)) for key in client.scan_iter("riskrelay:*")]
    assert length == 1
    assert 0 < int(client.pttl(key)) <= 5000
    assert wake_ups.wait(1)


def test_a_notification_while_the_mark_is_set_wakes_no_worker_twice(waiter: WakeUpQueue) -> None:
    waiter.notify()
    assert waiter.wait(1)
    waiter.notify()
    assert not waiter.wait(1)


def test_a_lost_job_suppresses_wake_ups_for_at_most_five_seconds(client: Redis) -> None:
    WakeUpQueue(client).notify()
    assert 0 < int(client.pttl("riskrelay:woken")) <= 5000


def test_a_notification_contains_only_the_job_name_as_json(client: Redis) -> None:
    WakeUpQueue(client).notify()
    [job_id] = wake_up_queue.queue(client).get_job_ids()
    stored = client.hgetall(Job.key_for(job_id))
    assert json.loads(zlib.decompress(cast("bytes", stored[b"data"]))) == [JOB, None, [], {}]
    assert stored[b"origin"] == QUEUE.encode()
    assert 60 <= int(stored[b"timeout"]) <= 600


def test_the_job_named_by_a_notification_exists() -> None:
    module, _, name = JOB.rpartition(".")
    source = (Path(__file__).parents[2] / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert f"def {name}() -> None:" in source


def test_a_wake_up_without_redis_fails_at_once_and_never_raises(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path / 'no.sock'}", "redis://127.0.0.1:1/0"):
        wake_ups = WakeUpQueue(wake_up_queue.connect(url))
        began = time.monotonic()
        assert wake_ups.notify() is False
        wake_ups.acknowledge()
        assert wake_ups.is_reachable() is False
        assert time.monotonic() - began < 1


def test_a_silent_redis_delays_a_call_by_at_most_a_second() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wake_ups = WakeUpQueue(wake_up_queue.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        began = time.monotonic()
        assert wake_ups.notify() is False
        assert time.monotonic() - began < 1.5


def test_invalid_responses_of_redis_notify_no_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_nonsense, args=(server,), daemon=True).start()
        wake_ups = WakeUpQueue(wake_up_queue.connect(f"redis://127.0.0.1:{server.getsockname()[1]}/0"))
        assert wake_ups.notify() is False
        assert wake_ups.is_reachable() is False


def answer_nonsense(server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:  # the test is over
            return
        with peer:
            peer.recv(1024)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_notifications_work_again_after_a_redis_outage(client: Redis, redis_server: RedisServer) -> None:
    wake_ups = WakeUpQueue(client)
    assert wake_ups.notify()
    redis_server.kill()
    try:
        assert wake_ups.notify() is False
        assert not wake_ups.is_reachable()
    finally:
        redis_server.start()
    assert wake_ups.is_reachable()
    assert wake_ups.notify()
    assert waiting(client) == 1


def test_a_notification_fails_if_redis_accepts_no_writes(client: Redis) -> None:
    client.config_set("maxmemory", "1")
    try:
        assert WakeUpQueue(client).notify() is False
    finally:
        client.config_set("maxmemory", "0")
    assert WakeUpQueue(client).notify() is True


def test_background_notifications_reach_the_queue_after_each_acknowledgement(client: Redis) -> None:
    wake_ups = BackgroundWakeUps(client)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: wake_ups.notify(), range(40))) == [True] * 40
    wait_until(lambda: waiting(client) == 1, 10)
    take_job(client)
    wake_ups.acknowledge()
    wake_ups.notify()
    wait_until(lambda: waiting(client) == 1, 10)


def test_background_notifications_never_wait_for_redis_and_continue_after_a_failure(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        fails.set()
        raise ValueError("nothing that Redis raises")

    wake_ups, fails = BackgroundWakeUps(client), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(WakeUpQueue, "notify", fail)
        assert wake_ups.notify()
        assert fails.wait(10)
    wake_ups.notify()
    wait_until(lambda: waiting(client) == 1, 10)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = BackgroundWakeUps(wake_up_queue.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        began = time.monotonic()
        assert slow.notify()
        assert slow.notify()
        assert time.monotonic() - began < 0.5
