"""Acknowledged exports are delivered after every crash: the worker or the service killed, Redis gone, wake-ups lost."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final

import pytest

from runtime import wake_up_queue
from storage.db.engine import rows
from storage.exports import queries
from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, WEBHOOK_SECRET, environment, make_customer, make_exports, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import (
    SWEEP_WITHIN_S,
    CountingReceiver,
    WorkerProcess,
    approved,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import REDIS_FAILURES, RedisServer
from worker.http.signing import SignatureVerdict, verify

#: The documented time. A lease expires 6 s after its last renewal.
TAKEN_OVER_WITHIN_S: Final = 10.0
#: No sweep occurs during a test, so that every delivery was started by a wake-up.
NO_SWEEP: Final = {"SWEEP_SECONDS": "30"}
#: Longer than a listener needs to detect that Redis is unreachable.
NOTICED_WITHIN_S: Final = 1.5


@pytest.mark.parametrize(
    ("database_url", "successor_is"),
    [("sqlite", "started again"), ("postgresql", "already there")],
    indirect=["database_url"],
)
def test_another_worker_repeats_the_delivery_of_a_killed_worker(
    start: Callable[..., WorkerProcess], receiver: CountingReceiver, successor_is: str
) -> None:
    receiver.gate.clear()
    [export_id] = approved(receiver.url())
    with ExitStack() as stack:
        worker = stack.enter_context(start())
        wait_until(lambda: receiver.requests)
        if successor_is == "already there":
            stack.enter_context(start())
        assert len(receiver.requests) == 1
        worker.kill()
        receiver.gate.set()
        if successor_is == "started again":
            stack.enter_context(start())
        # Counted from the kill, or from the start of another worker that can take over.
        assert wait_until(is_exported(export_id)) < TAKEN_OVER_WITHIN_S
    first, second = receiver.requests
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == export_id
    for name in ("x-service-nonce", "x-service-signature", "x-request-id"):
        assert first.headers[name] != second.headers[name], name
    now = int(second.headers["x-service-timestamp"])
    assert verify(WEBHOOK_SECRET.encode(), second.headers, second.body, now, lambda _nonce: False) is SignatureVerdict.OK
    # The attempt of the killed worker was started, so it counts; only the second attempt has a row.
    assert queries.get(export_id).attempts == 2
    assert rows("SELECT number, outcome FROM attempts") == [(2, "delivered")]


@on_sqlite
def test_flushing_redis_loses_no_delivery(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    [export_id] = approved(receiver.url())
    assert notify_workers(redis)
    redis.flush()
    with start():
        wait_until(is_exported(export_id))
        # Redis is emptied while a worker listens.
        redis.flush()
        [export_id] = approved(receiver.url())
        assert notify_workers(redis)
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
    assert len(receiver.requests) == 2


@on_sqlite
def test_without_redis_a_delivery_is_delayed_by_at_most_one_sweep(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    with start():
        redis.kill()
        [export_id] = approved(receiver.url())
        assert not notify_workers(redis)
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
        [export_id] = approved(receiver.url())
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S


@on_sqlite
def test_a_worker_started_without_redis_delivers(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    redis.stop()
    with start():
        [export_id] = approved(receiver.url())
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
        redis.start()
        [export_id] = approved(receiver.url())
        notify_workers(redis)
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S


@on_sqlite
def test_an_idle_worker_is_woken_again_after_every_kind_of_redis_failure(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    with start(**NO_SWEEP) as worker:
        for name, (break_redis, repair) in REDIS_FAILURES.items():
            break_redis(redis)
            time.sleep(NOTICED_WITHIN_S)
            repair(redis)
            # The wake-up that the failure lost left no state that would suppress this one.
            [export_id] = approved(receiver.url())
            assert notify_workers(redis), name
            assert wait_until(is_exported(export_id)) < 6.0, name
        assert worker.process.poll() is None


@on_sqlite
def test_a_crash_between_mark_and_wake_up_delays_deliveries_by_at_most_one_sweep(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    with start(), wake_up_queue.connect(redis.url) as client:
        client.set("riskrelay:woken", 1, ex=60)
        [export_id] = approved(receiver.url())
        assert notify_workers(redis)
        assert wake_up_queue.queue(client).is_empty()
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
    assert len(receiver.requests) == 1


@on_sqlite
def test_a_missing_wake_up_delays_a_delivery_by_at_most_one_sweep(
    start: Callable[..., WorkerProcess], receiver: CountingReceiver
) -> None:
    with start():
        time.sleep(0.5)
        [export_id] = approved(receiver.url())
        assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S


def test_approvals_acknowledged_by_a_killed_service_are_delivered(
    database: str, start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver, tmp_path: Path
) -> None:
    customer = make_customer()
    target = make_target(customer, receiver.url())
    ids = make_exports(customer, 60)
    acknowledged: list[str] = []

    def approve(export_id: str) -> None:
        with suppress(OSError, HTTPException):  # the test is about requests that are cut off
            answer = service.request("POST", f"{EXPORTS}/{export_id}/approve", customer.bearer, {"target_id": target.id})
            assert answer.status == 202
            acknowledged.append(export_id)

    settings = environment(tmp_path, DATABASE_URL=database, REDIS_URL=redis.url, WEB_PROCESSES="2", **LOOPBACK)
    with Service(settings) as service, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(approve, export_id) for export_id in ids]
        wait_until(lambda: len(acknowledged) > 10)
        service.kill()
        for answer in answers:
            answer.result()
    assert len(acknowledged) < len(ids)
    with start():
        wait_until(lambda: rows("SELECT COUNT(*) FROM exports WHERE status NOT IN ('prepared', 'exported')") == [(0,)])
    # Exports that were stored without a response were approved as well. Every acknowledged export was delivered.
    assert set(acknowledged) <= set(receiver.keys)
    assert Counter(receiver.keys) == dict.fromkeys(receiver.keys, 1)


def test_two_workers_share_the_work_and_deliver_nothing_twice(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    ids = approved(receiver.url(), 300)
    with start(WORKER_CONCURRENCY="8"), start(WORKER_CONCURRENCY="8"):
        notify_workers(redis)
        wait_until(lambda: rows("SELECT count(*) FROM exports WHERE status = 'exported'") == [(300,)])
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)


@on_sqlite
def test_a_delivery_to_a_slowly_responding_receiver_fails_after_all_retries(start: Callable[..., WorkerProcess]) -> None:
    def drip(peer: Peer) -> None:
        peer.read()
        peer.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 1000)

    with LoopbackServer(drip) as slow, start(DELIVERY_TIMEOUT_S="0.3", RETRY_SCHEDULE="1,1", SWEEP_SECONDS="0.1"):
        [export_id] = approved(slow.url())
        wait_until(lambda: queries.get(export_id).status == "retry_scheduled")
        last = queries.get(export_id).last_attempt
        assert last is not None
        assert last.error_code == "deadline_exceeded"
        wait_until(lambda: queries.get(export_id).status == "failed")
    export = queries.get(export_id)
    assert (export.status_reason, export.attempts) == ("attempts_exhausted", 3)
    assert rows("SELECT number, outcome, error_code FROM attempts ORDER BY number") == [
        (1, "retryable", "deadline_exceeded"),
        (2, "retryable", "deadline_exceeded"),
        (3, "exhausted", "deadline_exceeded"),
    ]
