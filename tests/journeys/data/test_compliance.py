"""A redaction is completed after its worker is killed, and leaves no data of the person in tables, Redis or logs."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import ComplianceResult, Topic
from storage.accounts import audit_chain
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows
from storage.secrets.vault import Vault
from tests.support.factories import Customer
from tests.support.http.storefront import (
    ADA,
    BOB,
    PersonDataSeeder,
    all_ids,
    cloud_client,
    data_request_body,
    give_shop,
    plant_captures,
    redact_body,
    send_webhook,
    stored,
    traces_of,
)
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

#: Enough rows to keep a worker busy for about a second.
CAPTURES: Final = 8000
#: The lease of the killed worker must expire, and another worker must do the rest.
TAKEN_OVER_WITHIN_S: Final = 60.0
KEYS: Final = [b"A" * 32]


def erased(request_id: str) -> int:
    return compliance_requests.get(request_id).counts.get("evidence_captures", 0)


def everything_in(redis: RedisServer) -> str:
    """Return every key and value of a Redis."""
    readers: dict[bytes, Callable[[Redis, bytes], Any]] = {
        b"string": lambda client, key: client.get(key),
        b"list": lambda client, key: client.lrange(key, 0, -1),
        b"set": lambda client, key: client.smembers(key),
        b"hash": lambda client, key: client.hgetall(key),
        b"stream": lambda client, key: client.xrange(key),
        b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    }
    with Redis.from_url(redis.url) as client:
        reported = [(key, readers[client.type(key)](client, key)) for key in client.scan_iter()]
    return repr(reported).lower()


@pytest.mark.parametrize(
    ("database_url", "successor_is"),
    [("sqlite", "started later"), ("postgresql", "already there")],
    indirect=["database_url"],
)
def test_another_worker_completes_the_redaction_of_a_killed_worker(
    start: Callable[..., WorkerProcess], customer: Customer, redis: RedisServer, tmp_path: Path, successor_is: str
) -> None:
    client = cloud_client(tmp_path, REDIS_URL=redis.url)
    planter = PersonDataSeeder(client, give_shop(customer))
    planter.plant(ADA)
    before = all_ids()
    planter.plant(BOB)
    # Prevents deliveries by the real worker: it does not take over expired claims of paused targets.
    execute("UPDATE targets SET status = 'paused'")
    execute("UPDATE exports SET due_at = ? WHERE status = 'delivering'", (to_ms(utc_now()),))
    assert audit_chain.extend_to_end() == 0
    bobs = {table: ids - before[table] for table, ids in all_ids().items()}
    untouched = stored(bobs)
    with ExitStack() as stack:
        workers = [stack.enter_context(start())]
        assert send_webhook(client, Topic.DATA_REQUEST, data_request_body(ADA)).status_code == 204
        WakeUpQueue(connect(redis.url)).notify()
        [asked] = compliance_requests.list_all()
        wait_until(lambda: compliance_requests.get(asked.id).result is ComplianceResult.REPORTED)
        report = compliance_requests.report_of(asked.id, Vault(KEYS))
        assert report is not None
        assert len(report["records"]) == 19

        plant_captures(customer, ADA, CAPTURES)
        if successor_is == "already there":
            workers.append(stack.enter_context(start()))
        assert send_webhook(client, Topic.CUSTOMER_REDACT, redact_body(ADA)).status_code == 204
        WakeUpQueue(connect(redis.url)).notify()
        [request_id] = [line.id for line in compliance_requests.list_all() if line.topic is Topic.CUSTOMER_REDACT]
        wait_until(lambda: erased(request_id))
        [busy] = [worker for worker in workers if worker.has_logged(f"compliance request {request_id} claimed")]
        busy.kill()
        assert 0 < erased(request_id) <= CAPTURES
        assert compliance_requests.get(request_id).result is None
        assert traces_of(ADA, stored()) != []
        if successor_is == "started later":
            workers.append(stack.enter_context(start()))
        wait_until(lambda: compliance_requests.get(request_id).result, TAKEN_OVER_WITHIN_S)

    line = compliance_requests.get(request_id)
    assert (line.result, line.attempts) == (ComplianceResult.REDACTED, 2)
    assert (line.counts["evidence_captures"], line.counts["exports"]) == (CAPTURES + 1, 12)
    assert traces_of(ADA, stored()) == []
    assert stored(bobs) == untouched
    assert rows("SELECT COUNT(*) FROM compliance_requests WHERE report_sealed IS NOT NULL") == [(0,)]
    reported = everything_in(redis) + "".join(worker.log.read_text().lower() for worker in workers)
    assert request_id.lower() in reported
    assert traces_of(ADA, reported) == []
