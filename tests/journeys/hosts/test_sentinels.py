"""Redis with Sentinels: after a failover to another master, wake-ups, rate limits and deliveries work again."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, Customer, environment, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import CountingReceiver, WorkerProcess, is_exported, wait_until
from tests.support.servers.redis_servers import ENCODED, PASSWORD, RedisWithSentinels, redis_with_sentinels

#: No sweep occurs during the test, so that every delivery was started by a wake-up.
NO_SWEEP = {"SWEEP_SECONDS": "60"}
#: The Sentinels detect the loss of the master after 0.4 s, elect a new one, and switch. A busy machine needs longer.
SWITCHED_WITHIN_S = 30.0


@pytest.fixture
def redis_behind_sentinels() -> Iterator[RedisWithSentinels]:
    with redis_with_sentinels(wait_until) as started:
        yield started


def messages(log: Path) -> list[str]:
    """Return the messages of the lines of a log."""
    return [json.loads(line)["message"] for line in log.read_text().splitlines()]


@on_sqlite
def test_wake_ups_and_rate_limits_continue_after_a_failover(
    database: str, redis_behind_sentinels: RedisWithSentinels, receiver: CountingReceiver, tmp_path: Path
) -> None:
    url = redis_behind_sentinels.url
    customer = make_customer()
    target = make_target(customer, receiver.url())
    before, during, after = make_exports(customer, 3)
    settings = {"DATABASE_URL": database, "REDIS_URL": url, "WEB_PROCESSES": "1", "RATE_LIMIT_PER_MINUTE": "100", **LOOPBACK}

    def approve(export_id: str) -> None:
        answer = service.request("POST", f"{EXPORTS}/{export_id}/approve", customer.bearer, {"target_id": target.id})
        assert (answer.status, answer.json["status"]) == (202, "approved")

    with (
        Service(environment(tmp_path, **settings)) as service,
        WorkerProcess(tmp_path / "worker", database, url, **NO_SWEEP) as worker,
    ):
        approve(before)
        wait_until(is_exported(before))
        first = redis_behind_sentinels.master()
        first.kill()
        approve(during)
        wait_until(lambda: redis_behind_sentinels.master() is not first, SWITCHED_WITHIN_S)
        assert redis_behind_sentinels.master().role() == "master"
        # The first wake-up that reaches a worker makes it send all due exports.
        wait_until(lambda: service.request("GET", "/readyz").json["status"] == "ok")
        approve(after)
        wait_until(is_exported(after))
        wait_until(is_exported(during))
        wait_until(lambda: has_redis_back(service, customer))
        # The loss of a Sentinel has no effect: the clients use the others.
        redis_behind_sentinels.sentinels[0].kill()
        assert service.request("GET", "/readyz").json["status"] == "ok"
        assert worker.process.poll() is None
    assert Counter(receiver.keys) == dict.fromkeys((before, during, after), 1)
    reported = service.log.read_text() + worker.log.read_text()
    assert [secret for secret in (PASSWORD, ENCODED) if secret in reported] == []


def has_redis_back(service: Service, customer: Customer) -> bool:
    """Send a request that the service counts; return whether its rate limits have lost Redis and found it again."""
    # Slow enough to stay below the rate limit, whose 429 would be sent without counting.
    time.sleep(0.5)
    assert service.request("GET", EXPORTS, customer.bearer).status == 200
    return "Redis available again: rate limits hold over all processes" in messages(service.log)
