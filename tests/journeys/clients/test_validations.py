"""A client has its target validated: real service, real worker, receivers on loopback that respond correctly or not."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import utc_now
from schemas.targets.target import Target
from storage.db.engine import execute, release, rows
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, NOW, Customer, environment, make_exports, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.raw_http import EXPORTS, TARGETS
from tests.support.processes.gunicorn_process import RawResponse, Service
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.worker.receivers import make_certificate
from worker.background.account_tasks import AT_ONCE

# Which process validates and for how long does not depend on the database. The tests of `storage` run on both databases.
pytestmark = on_sqlite

#: The deadline of a validation: long enough for loopback on a busy machine, short enough for tests that wait for it.
DEADLINE_S: Final = 1.5


@pytest.fixture
def service(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[Service]:
    """The service on the open database, with one process, so that tests see if a waiting request delays others."""
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
    with Service(environment(tmp_path, DELIVERY_TIMEOUT_S=str(DEADLINE_S), **settings)) as running:
        yield running


@pytest.fixture
def start_worker(start: Callable[..., WorkerProcess]) -> Callable[[], WorkerProcess]:
    """Start a worker whose sweeps for due deliveries are far apart."""
    return lambda: start(DELIVERY_TIMEOUT_S=str(DEADLINE_S), SWEEP_SECONDS="600")


def validate(service: Service, customer: Customer, target: Target) -> RawResponse:
    return service.request("POST", f"{TARGETS}/{target.id}/validate", customer.bearer)


def reported(answer: RawResponse) -> tuple[Any, ...]:
    """Return the status and reason of a validation in a response, and the target's state after it."""
    record = answer.json
    checked = record["last_validation"]
    return checked["status"], checked["reason"], record["connected"]["status"], record["status"]


def silent(peer: Peer) -> None:
    peer.wait()


def answering(peer: Peer) -> None:
    while peer.read():
        peer.answer(200)


def test_a_validation_by_a_worker_reports_connection_and_tls_errors(
    service: Service, customer: Customer, tmp_path: Path, start_worker: Callable[[], WorkerProcess]
) -> None:
    context, _ = make_certificate(tmp_path, "receiver.example.com", timedelta(days=1))
    sent: list[object] = []
    with (
        start_worker(),
        LoopbackServer(lambda peer: sent.append(peer.read())) as listening,
        LoopbackServer(silent, context) as untrusted,
        LoopbackServer(silent) as hanging,
    ):
        began = time.monotonic()
        assert reported(validate(service, customer, make_target(customer, listening.url()))) == (
            "passed",
            None,
            "unknown",
            "active",
        )
        assert time.monotonic() - began < 4.0
        wait_until(lambda: listening.connections == 1)  # the server counts after the client has connected
        assert reported(validate(service, customer, make_target(customer, untrusted.url()))) == (
            "failed",
            "tls_certificate",
            "failing",
            "active",
        )
        mute = make_target(customer, hanging.url().replace("http:", "https:"))
        assert reported(validate(service, customer, mute)) == ("failed", "deadline_exceeded", "failing", "active")
        gone = make_target(customer, listening.url())
    assert set(sent) <= {None}  # the validation connected, but sent no request
    with start_worker():
        assert reported(validate(service, customer, gone)) == ("failed", "connect_refused", "failing", "active")
        unsafe = make_target(customer, "http://169.254.169.254/latest")
        assert reported(validate(service, customer, unsafe))[1:] == ("address_metadata", "unknown", "blocked")


def test_a_target_without_a_success_for_a_day_is_validated_automatically(
    customer: Customer, start_worker: Callable[[], WorkerProcess]
) -> None:
    with LoopbackServer(silent) as listening:
        silent_for_long, recent = make_target(customer, listening.url()), make_target(customer, listening.url())
        execute("UPDATE targets SET validation_due_at = 1")
        at = int(utc_now().timestamp() * 1000)
        execute("UPDATE targets SET last_success_at = ? WHERE id = ?", (at, recent.id))
        with start_worker():
            wait_until(lambda: targets.get(silent_for_long.id, None).validated_at != NOW)
            wait_until(lambda: rows("SELECT 1 FROM targets WHERE validation_due_at < ?", (at,)) == [])
        wait_until(lambda: listening.connections == 1)
    assert targets.get(recent.id, None).validated_at == NOW


def test_approvals_are_refused_until_a_worker_revalidates_the_target(
    service: Service, customer: Customer, start_worker: Callable[[], WorkerProcess]
) -> None:
    [export_id] = make_exports(customer, 1)
    with LoopbackServer(answering) as stopped:
        target = make_target(customer, stopped.url())
    body = {"target_id": target.id}

    def approve() -> RawResponse:
        return service.request("POST", f"{EXPORTS}/{export_id}/approve", customer.bearer, body)

    with start_worker():
        assert reported(validate(service, customer, target))[:2] == ("failed", "connect_refused")
        refused = approve()
        [field] = refused.json["error"]["details"]["fields"]
        assert (refused.status, field["path"], field["code"]) == (422, "/target_id", "target_unavailable")
        with LoopbackServer(answering, port=stopped.port):
            # The next validation is due in half a minute.
            assert execute("UPDATE targets SET validation_due_at = 1 WHERE validation_due_at > 1") == 1
            wait_until(lambda: targets.get(target.id, None).validation_status == "passed")
            assert approve().status == 202


def test_hanging_validations_do_not_delay_pings(
    service: Service, customer: Customer, start: Callable[..., WorkerProcess]
) -> None:
    with (
        start(DELIVERY_TIMEOUT_S="60"),
        LoopbackServer(silent) as hanging,
        LoopbackServer(answering) as listening,
        ThreadPoolExecutor(AT_ONCE + 1) as pool,
    ):
        url = hanging.url().replace("http:", "https:")
        slow = [make_target(customer, url) for _ in range(AT_ONCE + 1)]
        quick = make_target(customer, listening.url())
        release()
        waiting = [pool.submit(validate, service, customer, target) for target in slow]
        wait_until(lambda: hanging.connections == AT_ONCE)
        assert service.request("POST", f"{TARGETS}/{quick.id}/ping", customer.bearer).json["delivered"]
        # No worker finished a validation meanwhile: the service itself completed each one.
        assert {reported(each.result())[0] for each in waiting} == {"passed"}
        assert hanging.connections == AT_ONCE


def test_the_service_and_another_worker_take_over_the_validation_of_a_killed_worker(
    service: Service, customer: Customer, start_worker: Callable[[], WorkerProcess]
) -> None:
    with LoopbackServer(silent) as hanging, ThreadPoolExecutor(1) as pool:
        target = make_target(customer, hanging.url().replace("http:", "https:"))
        with start_worker() as worker:
            waiting = pool.submit(validate, service, customer, target)
            wait_until(lambda: hanging.connections == 1)
            worker.kill()
        assert reported(waiting.result()) == ("passed", None, "unknown", "active")
    # The claim would expire after some time; the test does not wait for that.
    assert execute("UPDATE targets SET validation_due_at = 1 WHERE validation_lease IS NOT NULL") == 1
    with start_worker():
        wait_until(lambda: targets.get(target.id, None).validation_status == "failed")
    assert targets.get(target.id, None).validation_reason == "connect_refused"


def test_without_a_worker_the_service_validates_itself_and_serves_other_requests_meanwhile(
    service: Service, customer: Customer, start_worker: Callable[[], WorkerProcess]
) -> None:
    with LoopbackServer(silent) as listening, ThreadPoolExecutor(1) as pool:
        target = make_target(customer, listening.url())
        release()
        waiting = pool.submit(validate, service, customer, target)
        served = 0
        while not waiting.done():
            assert service.request("GET", f"{TARGETS}/{target.id}", customer.bearer, timeout_s=2).status == 200
            served += 1
            time.sleep(0.1)
        assert served > 10
        assert reported(waiting.result()) == ("passed", None, "unknown", "active")
        other = make_target(customer, listening.url())
        with start_worker():
            assert reported(validate(service, customer, other))[0] == "passed"
        assert listening.connections == 1  # by the second validation; no worker runs the first one any more
