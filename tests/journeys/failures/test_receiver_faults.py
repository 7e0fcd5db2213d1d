"""Common faults of delivery systems, which real workers must not have.

Retry-After ignored or too short; redirects followed; responses read without a limit; one slow receiver that delays all
deliveries; retries lost with Redis.
"""

import time
from collections.abc import Callable
from typing import Final

import pytest

from bench.processes.cost import resident_mb
from runtime.clock import utc_now
from storage.db.engine import execute, rows, transaction
from storage.exports import queries
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_approved, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.processes.workers import CountingReceiver, WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

#: The schedule has the shortest delays, so that only the receiver's Retry-After causes a longer wait.
AT_ONCE: Final = {"RETRY_SCHEDULE": "1,1,1,1", "SWEEP_SECONDS": "0.2"}


def approve(customer: Customer, url: str, count: int = 1) -> list[str]:
    target = make_target(customer, url)
    return [make_approved(customer, target.id, utc_now()) for _ in range(count)]


def know_of_each_other() -> bool:
    """Return whether two workers run and each has counted both, so that it knows its share of a target."""
    [(count, first_seen, last_started)] = rows("SELECT COUNT(*), MIN(seen_at), MAX(started_at) FROM workers")
    return bool(count == 2 and first_seen > last_started)


def status_of(export_id: str) -> str:
    return queries.get(export_id).status.value


def test_retry_after_pauses_every_export_of_the_target_at_every_worker(
    start: Callable[..., WorkerProcess], customer: Customer
) -> None:
    arrivals: list[float] = []
    asked_at: list[float] = []

    def ask_first(peer: Peer) -> None:
        while peer.read():
            arrivals.append(time.monotonic())
            if asked_at:
                peer.answer(202)
            else:
                asked_at.append(time.monotonic())
                peer.answer(429, Retry_After="4")

    with LoopbackServer(ask_first) as receiver, start(**AT_ONCE), start(**AT_ONCE):
        wait_until(know_of_each_other)
        with transaction():
            ids = approve(customer, receiver.url(), 20)
            # One request at a time at first, so that no other request is in progress when the receiver responds 429.
            execute("UPDATE targets SET ramp = 1")
        wait_until(lambda: asked_at)
        # The target shows that it waits and why. The other exports have used no attempt.
        wait_until(lambda: rows("SELECT held_reason FROM targets") == [("rate_limited",)])
        wait_until(lambda: sum(queries.get(export_id).attempts for export_id in ids) == 1)
        wait_until(lambda: {status_of(export_id) for export_id in ids} == {"exported"}, 30)
    # No request arrived between the 429 and the end of the pause, and no export was lost.
    assert [at - asked_at[0] >= 4.0 for at in arrivals[1:]] == [True] * 20
    assert sum(queries.get(export_id).attempts for export_id in ids) == 21


@on_sqlite
def test_a_delivery_follows_no_redirect(start: Callable[..., WorkerProcess], customer: Customer) -> None:
    with CountingReceiver() as elsewhere:

        def send_on(peer: Peer) -> None:
            while peer.read():
                peer.answer(307, Location=elsewhere.url())

        with LoopbackServer(send_on) as receiver, start(**AT_ONCE):
            [export_id] = approve(customer, receiver.url())
            wait_until(lambda: status_of(export_id) == "failed")
        assert queries.get(export_id).status_reason == "redirect_refused"
        assert elsewhere.requests == []


@on_sqlite
@pytest.mark.parametrize(("head", "status"), [(b"200 OK", "exported"), (b"302 Found", "failed")])
def test_an_endless_response_is_read_up_to_the_limit(
    start: Callable[..., WorkerProcess], customer: Customer, head: bytes, status: str
) -> None:
    def flood(peer: Peer) -> None:
        while peer.read():
            peer.send(b"HTTP/1.1 " + head + b"\r\nLocation: /\r\n\r\n")
            while not peer.client_has_closed():
                peer.send(b"x" * 65536)

    with LoopbackServer(flood) as receiver, start(**AT_ONCE) as worker:
        before_mb = resident_mb(worker.process.pid)
        ids = approve(customer, receiver.url(), 10)
        wait_until(lambda: {status_of(export_id) for export_id in ids} == {status})
        assert resident_mb(worker.process.pid) < before_mb + 30


@on_sqlite
def test_a_hanging_receiver_does_not_delay_other_targets(
    start: Callable[..., WorkerProcess], receiver: CountingReceiver, customer: Customer
) -> None:
    def hang(peer: Peer) -> None:
        peer.read()
        peer.wait()

    with LoopbackServer(hang) as silent, start(WORKER_CONCURRENCY="8", DELIVERY_TIMEOUT_S="60", **AT_ONCE):
        stuck = approve(customer, silent.url(), 100)
        wait_until(lambda: "delivering" in {status_of(export_id) for export_id in stuck})
        others = approve(customer, receiver.url(), 100)
        wait_until(lambda: {status_of(export_id) for export_id in others} == {"exported"}, 20)
        assert {status_of(export_id) for export_id in stuck} <= {"delivering", "approved"}


@on_sqlite
def test_retries_continue_after_redis_is_flushed(
    start: Callable[..., WorkerProcess], redis: RedisServer, customer: Customer
) -> None:
    answers = iter([503, 503, 202])

    def refuse_twice(peer: Peer) -> None:
        while peer.read():
            redis.flush()
            peer.answer(next(answers))

    with LoopbackServer(refuse_twice) as receiver, start(**AT_ONCE):
        [export_id] = approve(customer, receiver.url())
        wait_until(lambda: status_of(export_id) == "exported")
    assert queries.get(export_id).attempts == 3
