"""A client pings its target: real service, real worker, real receivers on loopback that respond correctly or not."""

import json
import signal
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from bin.receiver_kit.receiver import LocalReceiver
from runtime.clock import utc_now
from storage.db.engine import release, rows
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.databases import on_postgresql
from tests.support.factories import ENCRYPTION_KEY, LOOPBACK, WEBHOOK_SECRET, Customer, environment, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.raw_http import TARGETS
from tests.support.processes.gunicorn_process import RawResponse, Service
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from worker.http.signing import SignatureVerdict

# Which process pings and for how long does not depend on the database. The tests of `storage` run on both databases.
pytestmark = on_postgresql

#: The deadline of a request to a receiver: long enough for loopback on a busy machine, short enough for tests that wait
#: for it.
DEADLINE_S: Final = 1.5
OWN_SECRET: Final = "of the target itself"


@pytest.fixture
def service(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[Service]:
    """The service on the open database, with one process, so that tests see if a waiting request delays others."""
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
    with Service(environment(tmp_path, DELIVERY_TIMEOUT_S=str(DEADLINE_S), **settings)) as running:
        yield running


@pytest.fixture
def worker(start: Callable[..., WorkerProcess]) -> Iterator[WorkerProcess]:
    """A worker that finds nothing before a wake-up, because its sweeps are far apart."""
    with start(DELIVERY_TIMEOUT_S=str(DEADLINE_S), SWEEP_SECONDS="600") as running:
        yield running


@pytest.fixture
def listening() -> Iterator[LocalReceiver]:
    """The receiver that `bin/riskrelay listen` runs."""
    with LocalReceiver([WEBHOOK_SECRET.encode(), OWN_SECRET.encode()], utc_now) as receiver:
        yield receiver


def ping(service: Service, customer: Customer, target_id: str, key: str | None = None) -> RawResponse:
    keyed = {} if key is None else {"Idempotency-Key": key}
    return service.request("POST", f"{TARGETS}/{target_id}/ping", {**customer.bearer, **keyed})


def answering(status: int, location: str = "/") -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        while peer.read():
            peer.answer(status, b"{}", Location=location)

    return behave


def silent(peer: Peer) -> None:
    peer.read()
    peer.wait()


def connected(customer: Customer, service: Service, target_id: str) -> str:
    record = service.request("GET", f"{TARGETS}/{target_id}", customer.bearer).json
    status: str = record["connected"]["status"]
    return status


@pytest.mark.usefixtures("worker")
def test_a_receiver_gets_a_signed_ping_and_the_client_gets_the_result(
    service: Service, customer: Customer, listening: LocalReceiver
) -> None:
    plain, own = make_target(customer, listening.url), make_target(customer, listening.url)
    targets.set_secret(own.id, OWN_SECRET, Vault([b64decode(ENCRYPTION_KEY)]), utc_now())
    for number, target in enumerate((plain, own)):
        began = time.monotonic()
        answer = ping(service, customer, target.id)
        assert time.monotonic() - began < 3.0
        reported = answer.json
        assert (answer.status, reported["delivered"], reported["response_status"], reported["error_code"]) == (
            200,
            True,
            200,
            None,
        )
        assert 0 <= reported["duration_ms"] < 1000 * DEADLINE_S
        received = listening.received[number]
        assert (received.kind, received.verdict, received.response.status) == ("target.ping", SignatureVerdict.OK, 200)
        event = json.loads(received.body)
        assert event["target"] == {"id": target.id, "name": "Tracker"}
        assert received.idempotency_key == received.request_id == event["id"]
        assert connected(customer, service, target.id) == "connected"
    assert rows("SELECT COUNT(*) FROM attempts") == [(0,)]


@pytest.mark.usefixtures("worker")
def test_a_repeated_ping_request_with_the_same_key_sends_no_second_ping(
    service: Service, customer: Customer, listening: LocalReceiver
) -> None:
    target = make_target(customer, listening.url)
    first, again = (ping(service, customer, target.id, "k") for _ in range(2))
    assert (again.status, again.json) == (200, first.json)
    assert again.headers["idempotency-replayed"] == "true"
    assert listening.count == 1
    assert ping(service, customer, target.id, "another").json["delivered"]
    assert listening.count == 2


@pytest.mark.usefixtures("worker")
def test_a_failed_ping_returns_its_error_code_and_updates_the_target(service: Service, customer: Customer) -> None:
    def reported(url: str) -> tuple[Any, ...]:
        target = make_target(customer, url)
        answer = ping(service, customer, target.id).json
        after = targets.get(target.id, None)
        assert not answer["delivered"]
        return answer["response_status"], answer["error_code"], after.connected_status, after.status.value

    with (
        LoopbackServer(answering(503)) as busy,
        LoopbackServer(answering(200)) as elsewhere,
        LoopbackServer(silent) as hanging,
    ):
        with LoopbackServer(answering(302, elsewhere.url())) as moved:
            assert reported(moved.url()) == (302, "redirect_refused", "failing", "active")
            assert elsewhere.connections == 0
        assert reported(moved.url()) == (None, "connect_refused", "failing", "active")
        assert reported(busy.url()) == (503, "receiver_unavailable", "unknown", "active")
        began = time.monotonic()
        assert reported(hanging.url()) == (None, "deadline_exceeded", "failing", "active")
        assert DEADLINE_S <= time.monotonic() - began < DEADLINE_S + 2
        assert reported("http://10.20.30.40/hook") == (None, "address_private", "failing", "blocked")
        assert reported("http://169.254.169.254/latest") == (None, "address_metadata", "failing", "blocked")


@pytest.mark.usefixtures("worker")
def test_a_ping_to_a_silent_receiver_does_not_delay_other_pings(
    service: Service, customer: Customer, listening: LocalReceiver
) -> None:
    with LoopbackServer(silent) as hanging, ThreadPoolExecutor(2) as pool:
        slow = make_target(customer, hanging.url())
        waiting: list[Future[RawResponse]] = [pool.submit(ping, service, customer, slow.id) for _ in range(2)]
        wait_until(lambda: hanging.connections == 2)
        assert ping(service, customer, make_target(customer, listening.url).id).json["delivered"]
        assert not any(each.done() for each in waiting)
        assert [each.result().json["error_code"] for each in waiting] == ["deadline_exceeded"] * 2


def test_a_ping_of_a_killed_worker_is_reported_as_lost(service: Service, worker: WorkerProcess, customer: Customer) -> None:
    with LoopbackServer(silent) as hanging, ThreadPoolExecutor(1) as pool:
        target = make_target(customer, hanging.url())
        began = time.monotonic()
        waiting = pool.submit(ping, service, customer, target.id)
        wait_until(lambda: hanging.connections == 1)
        worker.kill()
        answer = waiting.result()
        assert time.monotonic() - began < DEADLINE_S + 5
        assert answer.json == {"delivered": False, "response_status": None, "error_code": "worker_lost", "duration_ms": None}


def test_a_worker_finishes_its_ping_before_it_stops_on_sigterm(
    service: Service, worker: WorkerProcess, customer: Customer
) -> None:
    with LoopbackServer(silent) as hanging, ThreadPoolExecutor(1) as pool:
        target = make_target(customer, hanging.url())
        waiting = pool.submit(ping, service, customer, target.id)
        wait_until(lambda: hanging.connections == 1)
        worker.signal(signal.SIGTERM)
        assert waiting.result().json["error_code"] == "deadline_exceeded"
        assert worker.wait() == 0


def test_a_ping_without_a_worker_is_reported_as_no_worker_and_never_sent(
    service: Service, customer: Customer, listening: LocalReceiver, start: Callable[..., WorkerProcess]
) -> None:
    target = make_target(customer, listening.url)
    release()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ping, service, customer, target.id)
        served = 0
        while not waiting.done():
            assert service.request("GET", f"{TARGETS}/{target.id}", customer.bearer, timeout_s=2).status == 200
            served += 1
            time.sleep(0.1)
        assert served > 10
        assert waiting.result().json == {
            "delivered": False,
            "response_status": None,
            "error_code": "no_worker",
            "duration_ms": None,
        }
    with start():
        assert ping(service, customer, make_target(customer, listening.url).id).json["delivered"]
    assert listening.count == 1
