"""Redis fails in any way at any point of a delivery: approvals get a response, and each export is sent once."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from storage.db.engine import close_database, connection, open_database
from storage.exports import queries
from tests.support.factories import LOOPBACK, Customer, environment, make_approved, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import (
    SWEEP_WITHIN_S,
    CountingReceiver,
    WorkerProcess,
    is_exported,
    notify_workers,
    wait_until,
)
from tests.support.servers.redis_and_postgres import REDIS_FAILURES, RedisServer

#: Redis, which counts requests, may delay a response by half a second at most. The rest is for a busy machine.
ANSWERED_IN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServiceAndWorker:
    """A service and a worker on one database, one Redis and one receiver."""

    service: Service
    redis: RedisServer
    receiver: CountingReceiver
    customer: Customer
    target_id: str

    def prepared(self) -> str:
        """Prepare an export and return its id."""
        [export_id] = make_exports(self.customer, 1, utc_now())
        return export_id

    def approve(self, export_id: str) -> None:
        """Approve an export through the API, which must respond 202 in every state of Redis."""
        body = {"target_id": self.target_id}
        began = time.monotonic()
        answer = self.service.request("POST", f"{EXPORTS}/{export_id}/approve", self.customer.bearer, body)
        assert (answer.status, answer.json["status"]) == (202, "approved")
        assert time.monotonic() - began < ANSWERED_IN_S


@pytest.fixture(scope="module")
def installation(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceAndWorker]:
    """One installation for all failures, so that each must also cope with the effects of the previous ones."""
    folder = tmp_path_factory.mktemp("installation")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    open_database(url)
    with connection(), RedisServer() as redis, CountingReceiver() as receiver:
        customer = make_customer()
        target = make_target(customer, receiver.url())
        settings = {"DATABASE_URL": url, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
        with Service(environment(folder, **settings)) as service, WorkerProcess(folder / "data", url, redis.url):
            yield ServiceAndWorker(service, redis, receiver, customer, target.id)
    close_database()


@pytest.fixture(params=REDIS_FAILURES)
def failure(request: pytest.FixtureRequest, installation: ServiceAndWorker) -> Iterator[Callable[[], None]]:
    """Return a function that makes Redis fail. Redis is repaired at the end of the test."""
    break_redis, repair = REDIS_FAILURES[request.param]
    yield lambda: break_redis(installation.redis)
    repair(installation.redis)


def test_an_approval_succeeds_and_is_delivered_if_redis_fails_before_it(
    installation: ServiceAndWorker, failure: Callable[[], None]
) -> None:
    export_id = installation.prepared()
    failure()
    installation.approve(export_id)
    assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
    assert len(installation.receiver.of(export_id)) == 1


def test_an_approval_is_delivered_if_redis_fails_before_its_wake_up(
    installation: ServiceAndWorker, failure: Callable[[], None]
) -> None:
    export_id = make_approved(installation.customer, installation.target_id, utc_now())
    failure()
    notify_workers(installation.redis)
    assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
    assert len(installation.receiver.of(export_id)) == 1


def test_a_delivery_is_recorded_if_redis_fails_during_it(
    installation: ServiceAndWorker, failure: Callable[[], None]
) -> None:
    receiver = installation.receiver
    receiver.gate.clear()
    export_id = installation.prepared()
    installation.approve(export_id)
    wait_until(lambda: receiver.of(export_id))
    failure()
    receiver.gate.set()
    assert wait_until(is_exported(export_id)) < SWEEP_WITHIN_S
    assert len(receiver.of(export_id)) == 1
    assert queries.get(export_id).attempts == 1
