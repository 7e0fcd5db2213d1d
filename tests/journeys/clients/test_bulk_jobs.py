"""A bulk job with thousands of exports decides on each one once, even if the service and workers are killed meanwhile."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import execute, rows
from tests.support.factories import LOOPBACK, Customer, environment, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

MANY: Final = 2_000
KILLS: Final = 2


@pytest.fixture
def service(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[Service]:
    """The service. A test can kill it and start it again."""
    folder = tmp_path / "service"
    folder.mkdir()
    made = Service(environment(folder, DATABASE_URL=database, REDIS_URL=redis.url, **LOOPBACK))
    with made:
        yield made


def held_target(customer: Customer) -> str:
    """Return a target that exports can be approved for, but that receives no deliveries for now."""
    target = make_target(customer, "http://127.0.0.1:1/hook")
    execute("UPDATE targets SET held_until = ? WHERE id = ?", (to_ms(utc_now()) + 3_600_000, target.id))
    return target.id


def progress() -> tuple[str, int]:
    [found] = rows("SELECT status, done FROM bulk_jobs")
    return found[0], found[1]


def decided() -> Counter[str]:
    return Counter(row[0] for row in rows("SELECT subject_id FROM audit_entries WHERE action = 'approve'"))


def until_a_batch_more(than: int) -> None:
    deadline = time.monotonic() + 60
    while progress()[1] <= than:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_bulk_job_approves_every_export_once_despite_kills_of_workers_and_the_service(
    start: Callable[..., WorkerProcess], service: Service, customer: Customer
) -> None:
    ids = [each for _ in range(MANY // 500) for each in make_exports(customer, 500)]
    target_id = held_target(customer)
    body = {"action": "approve", "target_id": target_id, "filter": {"status": "prepared"}, "expected_count": MANY}
    headers = {**customer.bearer, "Idempotency-Key": "once"}

    def post() -> Any:
        return service.request("POST", f"{EXPORTS}/bulk", headers, body)

    begun = post()
    assert begun.status == 202, begun.content
    for number in range(KILLS):
        before = progress()[1]
        worker = start()
        with worker:
            until_a_batch_more(before)
            if number % 2:
                service.kill()
            worker.kill()
        # The recorded progress equals the exports that are done.
        status, done = progress()
        assert (status, decided().total()) == ("running", done)
        assert before < done < MANY
        if number % 2:
            service.__enter__()
            again = post()
            assert (again.status, again.headers["idempotency-replayed"], again.json) == (202, "true", begun.json)
    path = f"/api/bulk-jobs/{begun.json['id']}"
    with start():
        # The lease of the killed worker must expire first. A token may send 600 requests a minute.
        wait_until(lambda: service.request("GET", path, customer.bearer).json["status"] == "done", 120, every_s=0.2)
    job = service.request("GET", path, customer.bearer).json
    assert (job["total"], job["done"], job["changed"], job["skipped"], job["errors"]) == (MANY, MANY, MANY, 0, {})
    assert decided() == Counter(ids)
    assert rows("SELECT status, COUNT(*) FROM exports GROUP BY status") == [("approved", MANY)]
    assert rows("SELECT COUNT(*) FROM bulk_job_items") == [(0,)]


def test_retries_after_a_killed_request_create_one_bulk_job(service: Service, customer: Customer) -> None:
    make_exports(customer, 500)
    body = {"action": "dismiss", "filter": {"status": "prepared"}, "expected_count": 500}
    headers = {**customer.bearer, "Idempotency-Key": "once"}
    for pause_s in (0.0, 0.005, 0.02, 0.05):
        with service.connect() as connection:
            content = b'{"action": "dismiss", "filter": {"status": "prepared"}, "expected_count": 500}'
            lines = [f"POST {EXPORTS}/bulk HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
            lines += [f"Content-Length: {len(content)}", *(f"{name}: {value}" for name, value in headers.items())]
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
            time.sleep(pause_s)
            service.kill()
        service.__enter__()
    answer = service.request("POST", f"{EXPORTS}/bulk", headers, body)
    assert answer.status == 202
    assert rows("SELECT id, total FROM bulk_jobs") == [(answer.json["id"], 500)]
    assert rows("SELECT COUNT(*) FROM bulk_job_items") == [(500,)]
