"""Several hosts share one PostgreSQL and one Redis: one is killed, cut off or added. No export is lost, and all work."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from storage.db.engine import rows
from tests.support.database.databases import on_postgresql
from tests.support.factories import LOOPBACK, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.hosts import Host, approved_for_each, claimed_by, count_alive, delivered_by, name_of
from tests.support.processes.workers import CountingReceiver, all_are, is_exported, wait_until
from tests.support.servers.redis_and_postgres import RedisServer
from worker.delivery.lease_keeper import DEFER_CLAIMS_FACTOR
from worker.delivery.options import RENEW_S

pytestmark = on_postgresql

#: Few requests at once for each worker, so that its share of some hundred exports is many times what it claims. The timeout
#: is long enough for requests to a receiver whose gate is closed for a while.
AT_ONCE: Final = {"WORKER_CONCURRENCY": "8", "DELIVERY_TIMEOUT_S": "60"}
#: Delay of a response. Some hundred exports then take seconds, so that no worker sends all before another one scans.
PAUSE_S: Final = 0.05
#: A lease expires 6 s after its last renewal; within 10 s another worker takes over. The rest is for the deliveries.
TAKEN_OVER_WITHIN_S: Final = 30.0

NewHost = Callable[[], Host]


@pytest.fixture
def host(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[NewHost]:
    """Return a function that creates hosts. Their processes end with the test."""
    with ExitStack() as stack:
        numbers = iter(range(10))
        yield lambda: stack.enter_context(Host(tmp_path / f"host-{next(numbers)}", database, redis))


@pytest.fixture
def receiver() -> Iterator[CountingReceiver]:
    """A receiver that responds with a delay."""
    with CountingReceiver(pause_s=PAUSE_S) as made:
        yield made


def assert_each_is_delivered_by_one(ids: list[str]) -> None:
    """Check that every export has exactly one delivered attempt, even if a second worker sent it as well."""
    found = rows("SELECT export_id, COUNT(*) FROM attempts WHERE outcome = 'delivered' GROUP BY export_id")
    assert Counter(dict(found)) == dict.fromkeys(ids, 1)


def test_workers_share_the_work_evenly_with_an_added_worker(host: NewHost, receiver: CountingReceiver) -> None:
    first = [host().work(**AT_ONCE) for _ in range(2)]
    wait_until(lambda: count_alive() == 2)
    ids = approved_for_each(receiver.url(), targets=30, each=40)
    wait_until(lambda: len(receiver.requests) > 100)
    # While the gate is closed, the other workers can only send what they have claimed, however long the start takes.
    receiver.gate.clear()
    added = host().work(**AT_ONCE)
    wait_until(lambda: count_alive() == 3)
    before = delivered_by()
    receiver.gate.set()
    wait_until(all_are("exported"), 60)
    together = delivered_by()
    together.subtract(before)
    fair = together.total() / 3
    for worker in (*first, added):
        assert together[name_of(worker)] > fair / 2, together
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)


def test_other_hosts_complete_the_deliveries_of_a_failed_host(host: NewHost, receiver: CountingReceiver) -> None:
    dying, *others = [host().work(**AT_ONCE) for _ in range(3)]
    wait_until(lambda: count_alive() == 3)
    ids = approved_for_each(receiver.url(), targets=20, each=35)
    wait_until(lambda: delivered_by()[name_of(dying)] > 20)
    dying.kill()
    by_then = delivered_by()[name_of(dying)]
    held = claimed_by()[name_of(dying)] - by_then
    wait_until(all_are("exported"), TAKEN_OVER_WITHIN_S)
    assert_each_is_delivered_by_one(ids)
    # Only the requests that the dead worker had in progress were sent again.
    sent = Counter(receiver.keys)
    assert set(sent) == set(ids)
    assert sum(count - 1 for count in sent.values()) <= held
    assert delivered_by()[name_of(dying)] == by_then
    assert all(delivered_by()[name_of(worker)] for worker in others)


def test_a_disconnected_host_is_replaced_and_records_no_late_result(host: NewHost, receiver: CountingReceiver) -> None:
    hosts = [host() for _ in range(3)]
    workers = [each.work(**AT_ONCE) for each in hosts]
    wait_until(lambda: count_alive() == 3)
    receiver.gate.clear()
    ids = approved_for_each(receiver.url(), targets=20, each=2)
    wait_until(lambda: min(claimed_by()[name_of(worker)] for worker in workers) > 0)
    late = name_of(workers[0])
    wait_until(lambda: len(receiver.requests) >= 3)
    held = claimed_by()[late]
    hosts[0].cut_off()
    receiver.gate.set()
    wait_until(all_are("exported"), TAKEN_OVER_WITHIN_S)
    assert_each_is_delivered_by_one(ids)
    written = delivered_by()
    assert written[late] < held
    hosts[0].reconnect()
    wait_until(lambda: workers[0].has_logged("lease expired before the result was written"), 20)
    assert delivered_by() == written
    # It continues with the others. After its long absence, it first waits for their heartbeats.
    wait_until(lambda: count_alive() == 3, 20)
    time.sleep(DEFER_CLAIMS_FACTOR * RENEW_S)
    new = approved_for_each(receiver.url(), targets=30, each=20)
    wait_until(all_are("exported"), 60)
    assert delivered_by()[late] - written[late] > len(new) / 3 / 2


def test_replays_and_rate_limits_continue_at_another_service_after_a_kill(host: NewHost, receiver: CountingReceiver) -> None:
    dying, other = [host().serve(RATE_LIMIT_PER_MINUTE="20", **LOOPBACK) for _ in range(2)]
    host().work()
    customer, another = make_customer(), make_customer()
    target = make_target(customer, receiver.url())
    ids = make_exports(customer, 3)
    keyed = {**customer.bearer, "Idempotency-Key": "once"}
    path, body = f"{EXPORTS}/{ids[0]}/approve", {"target_id": target.id}
    reported = dying.request("POST", path, keyed, body)
    dying.kill()
    again = other.request("POST", path, keyed, body)
    assert (reported.status, again.status) == (202, 202)
    assert again.content == reported.content
    assert (reported.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
    assert other.request("POST", path, keyed, {"target_id": "tgt_another"}).status == 409
    wait_until(is_exported(ids[0]))
    polled = [other.request("GET", f"{EXPORTS}/{ids[0]}", customer.bearer) for _ in range(17)]
    # The limit is 20 requests; one was counted by the service that is gone.
    assert [each.status for each in polled] == [200] * 17
    assert other.request("GET", f"{EXPORTS}/{ids[0]}", customer.bearer).status == 429
    assert other.request("GET", EXPORTS, another.bearer).status == 200
    assert len(receiver.requests) == 1
