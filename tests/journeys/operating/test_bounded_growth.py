"""A process leaks neither objects in memory nor file descriptors, however much it has done and whatever has failed."""

import gc
import logging
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from service.app import create_app
from service.http.limits.large_body_limiter import LARGE_BYTES
from storage.db.engine import execute
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    LOOPBACK,
    SCANNER_SECRET,
    Customer,
    environment,
    make_approved,
    make_exports,
    make_settings,
    make_target,
    postback,
)
from tests.support.fakes import NO_TRACKERS, FakeResolver, FakeWakeUpQueue
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import CountingReceiver, WorkerProcess, all_are, approved, notify_workers, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient

#: Repetitions of each kind of work. If one leaked an object each time, there would be this many.
ROUNDS: Final = 60
#: Slightly longer than the service avoids a Redis that did not respond.
REDIS_AVOIDED_S: Final = 5.5
#: Repetitions of the failures.
FAILURES: Final = 4
#: Three times the service's longest timeout for a client.
GIVEN_BACK_S: Final = 60.0
#: Allowed difference, caused by caches, the garbage collector and late threads.
TOLERATED: Final = 40
#: Clients at the same time. The pool of Redis connections, Unix sockets here, grows to the number of concurrent threads.
CLIENTS: Final = 30


@pytest.fixture
def unrecorded() -> Iterator[None]:
    """Disable logging: pytest keeps every log record, and these would be counted."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def grown_by(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[int, Counter[str]]:
    """Return how many more tracked objects exist after `rounds` of some work, and their types: the least of three tries.

    A leak adds objects in every try. Changes by a thread of an earlier test appear in one try only.
    """
    for _ in range(rounds // 2):
        work()
    tries = (_grown_once(work, rounds) for _ in range(3))
    least = next(tries)
    for each in tries:
        if least[0] < TOLERATED:
            break
        least = min(least, each, key=lambda reported: reported[0])
    return least


def _grown_once(work: Callable[[], object], rounds: int) -> tuple[int, Counter[str]]:
    before = _containers()
    for _ in range(rounds):
        work()
    more = _containers()
    more.subtract(before)
    return sum(more.values()), Counter({kind: count for kind, count in more.most_common(5) if count > 0})


def _containers() -> Counter[str]:
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if not _is_of_nothing(each))


def _is_of_nothing(each: object) -> bool:
    """Return whether an object is a dead weak reference: an SQLite connection keeps those of up to 200 cursors."""
    return isinstance(each, weakref.ref) and each() is None


@pytest.mark.usefixtures("unrecorded")
def test_the_memory_of_a_service_does_not_grow_with_requests(customer: Customer, tmp_path: Path) -> None:
    reported = {"DEFAULT_PROJECT_ID": str(customer.project_id), "RATE_LIMIT_PER_MINUTE": "1000000"}
    settings = make_settings(tmp_path, {**reported, "AUTH_FAILURES_PER_MINUTE": "1000000"})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    [export_id] = make_exports(customer, 1)
    scanner = {"X-Scanner-Secret": SCANNER_SECRET}
    large = {**postback(42), "padding": "x" * LARGE_BYTES}

    def every_kind_of_request() -> None:
        statuses = [
            client.simulate_get(f"/api/ticket-exports/{export_id}", headers=customer.bearer).status_code,
            client.simulate_get(f"/api/ticket-exports/{export_id}").status_code,
            client.simulate_get("/nowhere").status_code,
            client.simulate_post("/api/scanner/results", headers=scanner, json=postback(42)).status_code,
            client.simulate_post("/api/scanner/results", headers=scanner, json=large).status_code,
            client.simulate_post("/api/scanner/results", headers=scanner, json={"password": 1}).status_code,
            client.simulate_get("/metrics").status_code,
        ]
        assert statuses == [200, 401, 404, 202, 202, 422, 200]

    grown, kinds = grown_by(every_kind_of_request)
    assert grown < TOLERATED, kinds


@pytest.mark.usefixtures("unrecorded")
def test_the_memory_of_a_worker_does_not_grow_with_deliveries(customer: Customer, tmp_path: Path) -> None:
    policy = make_settings(tmp_path, LOOPBACK).target_policy
    with CountingReceiver() as receiver:
        resolver = FakeResolver({})
        client = HttpClient(policy=policy, resolver=resolver, deadline_s=5.0, connect_timeout_s=2.0, connections=4)
        runner = AttemptRunner(
            client.post,
            Vault(()),
            AttemptOptions(DefaultSecret("secret"), Schedule((60.0,), timedelta(hours=72)), utc_now),
            NO_TRACKERS,
        )
        dispatcher = Dispatcher(runner, DispatcherOptions("worker:test:1:00000000", 4, 0.5, utc_now))
        dispatcher.start()
        try:

            def ten_deliveries() -> None:
                # One account for all targets: each account has its own connections, which stay open until idle for long.
                target = make_target(customer, receiver.url())
                for _ in range(10):
                    make_approved(customer, target.id, utc_now())
                dispatcher.deliver_due()
                wait_until(all_are("exported"))
                execute("UPDATE targets SET status = 'disabled'")
                assert len(receiver.requests) == 10
                # The receiver's records do not belong to the worker.
                receiver.requests.clear()

            grown, kinds = grown_by(ten_deliveries, rounds=12)
            assert grown < TOLERATED, kinds
        finally:
            dispatcher.stop()
            assert dispatcher.join(20.0)


def descriptors(pids: list[int]) -> Counter[str]:
    """Count the open descriptors of processes by target, without those of the database pool, which fills to its limit."""
    opened = [_opened(each) for pid in pids for each in Path(f"/proc/{pid}/fd").iterdir()]
    unix = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    kinds = ["unix socket" if each in unix else each.split(":[")[0] for each in opened]
    return Counter(each for each in kinds if "/riskrelay.db" not in each)


def _opened(descriptor: Path) -> str:
    """Return the path of a descriptor's file, or its kind and number ("socket:[1]", "pipe:[2]")."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        # Closed since it was listed; this name is not counted.
        return "/riskrelay.db"


def stable_descriptors(pids: list[int]) -> Counter[str]:
    """Wait until the open descriptors stay the same, as after all reconnections; return them."""
    seen: list[Counter[str]] = []
    while len(seen) < 5 or any(each != seen[-1] for each in seen[-5:]):
        assert len(seen) < 100
        seen.append(descriptors(pids))
        time.sleep(0.3)
    return seen[-1]


def assert_given_back(before: Counter[str], pids: list[int], failures: int) -> None:
    """Wait until fewer new descriptors are open than `failures`, apart from one Redis connection for each client."""
    deadline = time.monotonic() + GIVEN_BACK_S
    pooled = Counter({"unix socket": CLIENTS})
    while (left := descriptors(pids) - before - pooled).total() >= failures:
        assert time.monotonic() < deadline, f"After {failures} failures these are open, beyond {before}: {left}"
        time.sleep(0.1)


def test_a_service_closes_every_file_descriptor_after_failures(sqlite_url: str, redis: RedisServer, tmp_path: Path) -> None:
    env = environment(tmp_path, DATABASE_URL=sqlite_url, REDIS_URL=redis.url, WEB_PROCESSES="1")
    with Service(env) as service:

        def everything_fails() -> None:
            _clients_that_break_off(service)
            redis.stop()
            _answered(service)
            redis.start()
            _answered(service)

        everything_fails()
        # The service avoids Redis for some seconds. The count must include the connections to Redis.
        time.sleep(REDIS_AVOIDED_S)
        _answered(service)
        before = stable_descriptors(service.workers)
        for _ in range(FAILURES):
            everything_fails()
        assert_given_back(before, service.workers, FAILURES)


def _clients_that_break_off(service: Service) -> None:
    """Disconnect many clients at once: within a head, a body or a chunk, before the response, or after invalid bytes."""
    post = b"POST /api/scanner/results HTTP/1.1\r\nHost: x\r\nX-Scanner-Secret: " + SCANNER_SECRET.encode()
    post += b"\r\nContent-Type: application/json\r\n"
    for begun in (
        b"GET /healthz HT",
        post + b"Content-Length: 1000\r\n\r\n{",
        post + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x00\xff\r\n\r\n",
    ):
        opened = [service.connect() for _ in range(CLIENTS)]
        for connected in opened:
            with suppress(OSError):
                connected.sendall(begun)
        for number, connected in enumerate(opened):
            with suppress(OSError):
                if number % 2:
                    connected.shutdown(socket.SHUT_WR)
            connected.close()


def _answered(service: Service) -> None:
    headers = {"X-Scanner-Secret": "wrong", "Authorization": "Bearer wrong"}
    statuses = {service.request(*each, headers).status for each in (("GET", "/readyz"), ("GET", "/api/ticket-exports"))}
    assert statuses <= {200, 401, 429}


@on_sqlite
def test_a_worker_closes_every_file_descriptor_after_failures(
    start: Callable[..., WorkerProcess], redis: RedisServer, receiver: CountingReceiver
) -> None:
    urls = ("http://127.0.0.1:1/nobody-listens", f"https://127.0.0.1:{receiver.port}/speaks-no-tls")

    def everything_fails() -> None:
        for url in urls * 4:
            approved(url, 2)
        notify_workers(redis)
        wait_until(all_are("retry_scheduled"))
        redis.stop()
        redis.start()

    with start(RETRY_SCHEDULE="3600", DELIVERY_TIMEOUT_S="1", CONNECT_TIMEOUT_S="1") as worker:
        pids = [worker.process.pid]
        everything_fails()
        before = stable_descriptors(pids)
        for _ in range(FAILURES):
            everything_fails()
        assert_given_back(before, pids, FAILURES)
