"""Recoveries by the API: begun once per key, listed, read, cancelled, and hidden from other accounts."""

from datetime import timedelta
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.targets.target import Target
from storage.db.engine import rows
from storage.exports import recoveries
from storage.targets import targets
from tests.support.factories import Customer, make_customer, make_failed, make_target
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.raw_http import BASE, JSON, RECOVERIES, Call, assert_is_error
from worker.background.batches.batch_task import recovery_task

UNKNOWN_ID: Final = "rec_01AAAAAAAAAAAAAAAAAAAAAAAA"


def post(customer: Customer, path: str = RECOVERIES, **body: Any) -> Call:
    return Call("POST", path, (*customer.bearer.items(), *JSON.items())).with_json(body)


def get(customer: Customer, path: str = RECOVERIES, query: str = "") -> Call:
    return Call("GET", path, tuple(customer.bearer.items()), query=query)


def test_a_recovery_is_begun_read_and_carried_out(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    make_failed(customer, target.id, 3, utc_now())
    begun = post(customer, target_id=target.id, since="24h").send(client)
    record = begun.json
    assert (begun.status_code, begun.headers["location"]) == (202, f"{BASE}{RECOVERIES}/{record['id']}")
    assert (record["status"], record["total"], record["done"], wake_ups.notifications) == ("running", 3, 0, 1)
    assert get(customer, f"{RECOVERIES}/{record['id']}").send(client).json == record
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    while task.run_once():
        pass
    ended = get(customer, f"{RECOVERIES}/{record['id']}").send(client).json
    assert (ended["status"], ended["done"]) == ("done", 3)
    assert get(customer).send(client).json == {"items": [ended], "next_cursor": None}
    assert_is_error(post(customer, f"{RECOVERIES}/{record['id']}/cancel").send(client), 409, "CONFLICT")


def test_requests_with_the_same_key_begin_one_recovery(client: TestClient, customer: Customer, target: Target) -> None:
    call = post(customer, target_id=target.id, since="1h").plus(("Idempotency-Key", "once"))
    first, again = call.send(client), call.send(client)
    assert (first.status_code, again.status_code, again.json) == (202, 202, first.json)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(recoveries.list_page()) == 1
    # Without the key, the second request is refused with the ID of the running recovery.
    refused = call.without("Idempotency-Key").send(client)
    assert_is_error(refused, 409, "CONFLICT")
    assert first.json["id"] in refused.json["error"]["message"]


def test_a_running_recovery_is_cancelled(client: TestClient, customer: Customer, target: Target) -> None:
    make_failed(customer, target.id, 2, utc_now())
    recovery_id = post(customer, target_id=target.id, since="1h").send(client).json["id"]
    cancelled = post(customer, f"{RECOVERIES}/{recovery_id}/cancel").send(client)
    assert (cancelled.status_code, cancelled.json["status"], cancelled.json["done"]) == (200, "cancelled", 0)
    assert not recovery_task(FakeWakeUpQueue(), utc_now).run_once()
    assert rows("SELECT COUNT(*) FROM exports WHERE status = 'failed'") == [(2,)]
    assert rows("SELECT actor FROM audit_entries WHERE action = 'cancel_recovery'") == [(f"user:{customer.user_id}",)]


#: Columns: members of the body besides its target; path and code of the error.
REFUSED = [
    ({"since": "yesterday"}, "/since", "invalid_since"),
    ({"since": "2999-01-01"}, "/since", "in_the_future"),
    ({"since": 24}, "/since", "invalid_type"),
    ({"since": "1" * 65}, "/since", "too_long"),
    ({"since": "1h", "target_id": "tgt_none"}, "/target_id", "unknown_target"),
    ({}, "/since", "required"),
    ({"since": "1h", "all": True}, "", "unknown_member"),
]


@pytest.mark.parametrize(("body", "path", "code"), REFUSED, ids=[f"{path}-{code}" for _, path, code in REFUSED])
def test_an_invalid_request_begins_no_recovery(
    client: TestClient, customer: Customer, target: Target, body: dict[str, Any], path: str, code: str
) -> None:
    refused = post(customer, **{"target_id": target.id, **body}).send(client)
    assert refused.status_code == 422
    assert [(each["path"], each["code"]) for each in refused.json["error"]["details"]["fields"]] == [(path, code)]
    assert recoveries.list_page() == []


def test_a_target_that_is_turned_off_is_a_conflict(client: TestClient, customer: Customer, target: Target) -> None:
    targets.change_status(target.id, "disable", utc_now(), "user:1")
    refused = post(customer, target_id=target.id, since="1h").send(client)
    assert_is_error(refused, 409, "CONFLICT")
    assert "is disabled" in refused.json["error"]["message"]


def test_another_accounts_target_and_recovery_are_not_found(client: TestClient, customer: Customer) -> None:
    other = make_customer()
    theirs, now = make_target(other), utc_now()
    make_failed(other, theirs.id, 1, now)
    refused = post(customer, target_id=theirs.id, since="1h").send(client)
    assert [each["code"] for each in refused.json["error"]["details"]["fields"]] == ["unknown_target"]
    others = recoveries.request(theirs.id, other.account_id, now - timedelta(hours=1), now, "user:9").id
    for recovery_id in (others, UNKNOWN_ID):
        assert_is_error(get(customer, f"{RECOVERIES}/{recovery_id}").send(client), 404, "NOT_FOUND")
        assert_is_error(post(customer, f"{RECOVERIES}/{recovery_id}/cancel").send(client), 404, "NOT_FOUND")
    assert get(customer).send(client).json["items"] == []
    assert recoveries.get(others).status == "running"


def test_recoveries_are_listed_in_pages(client: TestClient, customer: Customer) -> None:
    ids = [post(customer, target_id=make_target(customer).id, since="1h").send(client).json["id"] for _ in range(3)]
    first = get(customer, query="limit=2").send(client).json
    rest = get(customer, query=f"limit=2&cursor={first['next_cursor']}").send(client).json
    assert [each["id"] for each in (*first["items"], *rest["items"])] == sorted(ids, reverse=True)
    assert rest["next_cursor"] is None
