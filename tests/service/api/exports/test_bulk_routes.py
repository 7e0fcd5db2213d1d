"""Decisions on many exports by the API: a result for each export, repeatable with a key, and nothing of another account."""

from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.targets.target import Target
from storage.accounts.account_limits import UNLIMITED
from storage.db.engine import execute, rows
from tests.support.factories import (
    LOOPBACK_POLICY,
    Customer,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_target,
)
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.raw_http import BASE, EXPORTS, JSON, Call, assert_is_error
from worker.background.batches.batch_task import bulk_job_task

BULK: Final = f"{EXPORTS}/bulk"
NO_TARGET: Final = "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"


def call(customer: Customer, **body: Any) -> Call:
    return Call("POST", BULK, (*customer.bearer.items(), *JSON.items())).with_json(body)


def named(ids: list[str]) -> list[dict[str, str]]:
    return [{"id": each} for each in ids]


def statuses() -> dict[str, str]:
    return dict(rows("SELECT id, status FROM exports"))


def test_a_bulk_approval_has_a_result_per_export_and_wakes_the_workers_once(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    first, second = make_exports(customer, 2)
    done = make_approved(customer, target.id)
    [foreign] = make_exports(make_customer(), 1)
    ids = [{"id": second}, {"id": done}, {"id": first, "ticket_digest": "sha256:1"}, {"id": foreign}]
    answer = call(customer, action="approve", target_id=target.id, ids=ids).send(client)
    assert answer.status_code == 200
    assert answer.json == {
        "results": [
            {"id": second, "status": "approved"},
            {"id": done, "status": "approved"},
            {
                "id": first,
                "error": {
                    "code": "CONFLICT",
                    "message": f"The ticket of export {first} is not the one with this digest; read it again.",
                },
            },
            {"id": foreign, "error": {"code": "NOT_FOUND", "message": "There is no such ticket export."}},
        ],
        "changed": 1,
        "skipped": 1,
    }
    assert wake_ups.notifications == 1
    audited = rows("SELECT actor, subject_id FROM audit_entries WHERE action = 'approve' ORDER BY id DESC LIMIT 1")
    assert audited == [(f"user:{customer.user_id}", second)]


def test_two_hundred_exports_are_approved_with_one_request(client: TestClient, customer: Customer, target: Target) -> None:
    ids = make_exports(customer, 200)
    answer = call(customer, action="approve", target_id=target.id, ids=named(ids)).send(client)
    assert (answer.json["changed"], [each["id"] for each in answer.json["results"]]) == (200, ids)


def test_exports_are_dismissed_with_a_reason_and_restored(client: TestClient, customer: Customer) -> None:
    ids = make_exports(customer, 3)
    dismissing = call(customer, action="dismiss", reason="false_positive", note="a test page", ids=named(ids))
    assert dismissing.send(client).json["changed"] == 3
    assert set(rows("SELECT status, dismissal_reason, dismissal_note FROM exports")) == {
        ("dismissed", "false_positive", "a test page")
    }
    again = dismissing.send(client).json
    assert (again["changed"], again["skipped"]) == (0, 3)
    restored = call(customer, action="restore", ids=named(ids[:2])).send(client).json
    assert (restored["changed"], statuses()) == (2, {ids[0]: "prepared", ids[1]: "prepared", ids[2]: "dismissed"})


@pytest.mark.parametrize("note", ["", " \n", None])
def test_a_dismissal_with_a_blank_note_is_the_same_as_one_without(
    client: TestClient, customer: Customer, note: str | None
) -> None:
    [export_id] = make_exports(customer, 1)
    answer = call(customer, action="dismiss", reason="test", note=note, ids=named([export_id])).send(client)
    assert (answer.status_code, rows("SELECT dismissal_note FROM exports")) == (200, [(None,)])
    once = Call("POST", f"{EXPORTS}/{export_id}/dismiss", (*customer.bearer.items(), *JSON.items()))
    for again in ({"reason": "test"}, {"reason": "test", "note": ""}):
        assert once.with_json(again).send(client).status_code == 200


@pytest.mark.parametrize(("reason", "joins"), [("wont_fix", True), ("false_positive", True), ("duplicate", False)])
def test_new_places_join_a_dismissed_group_for_reasons_that_last(
    client: TestClient, customer: Customer, reason: str, joins: bool
) -> None:
    ids = make_exports(customer, 1)
    execute("UPDATE exports SET open_group = 'csp', project_id = ?", (customer.project_id,))
    call(customer, action="dismiss", reason=reason, ids=named(ids)).send(client)
    assert rows("SELECT open_group FROM exports") == [("csp" if joins else None,)]


def test_failed_exports_are_retried(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    ids = make_failed(customer, target.id, 2)
    answer = call(customer, action="retry", ids=named(ids)).send(client).json
    assert (answer["changed"], wake_ups.notifications) == (2, 1)
    assert set(statuses().values()) == {"approved"}


def test_a_bulk_request_with_the_same_key_is_carried_out_once(
    client: TestClient, customer: Customer, target: Target
) -> None:
    ids = make_exports(customer, 2)
    keyed = call(customer, action="approve", target_id=target.id, ids=named(ids)).plus(("Idempotency-Key", "once"))
    first, again = keyed.send(client), keyed.send(client)
    assert (first.json["changed"], again.json) == (2, first.json)
    assert again.headers["idempotency-replayed"] == "true"


def problems(answer: Result) -> list[tuple[str, str]]:
    assert answer.status_code == 422, answer.text
    return [(each["path"], each["code"]) for each in answer.json["error"]["details"]["fields"]]


#: Columns: body; path and code of the error.
REFUSED: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"action": "dismiss", "ids": []}, "/ids", "too_short"),
    ({"action": "dismiss", "ids": named(["exp_1"] * 201)}, "/ids", "too_many"),
    ({"action": "dismiss", "ids": named(["exp_1", "exp_2", "exp_1"])}, "/ids/2/id", "repeated"),
    ({"action": "dismiss", "ids": ["exp_1"]}, "/ids/0", "invalid_type"),
    ({"action": "dismiss", "ids": [{"id": "exp_1", "version": 3}]}, "/ids/0", "unknown_member"),
    ({"action": "delete", "ids": named(["exp_1"])}, "/action", "not_allowed"),
    ({"action": "approve", "ids": named(["exp_1"])}, "/target_id", "required"),
    ({"action": "approve", "target_id": NO_TARGET, "ids": named(["exp_1"])}, "/target_id", "unknown_target"),
    ({"action": "retry", "target_id": NO_TARGET, "ids": named(["exp_1"])}, "/target_id", "not_of_this_action"),
    ({"action": "restore", "reason": "test", "ids": named(["exp_1"])}, "/reason", "not_of_this_action"),
    ({"action": "dismiss", "reason": "boring", "ids": named(["exp_1"])}, "/reason", "not_allowed"),
    ({"action": "dismiss", "note": "a" * 2001, "ids": named(["exp_1"])}, "/note", "too_long"),
    ({"action": "dismiss", "note": "4111 1111 1111 1111", "ids": named(["exp_1"])}, "/note", "card_number"),
]


@pytest.mark.parametrize(("body", "path", "code"), REFUSED)
def test_problems_of_a_request_are_reported(
    client: TestClient, customer: Customer, body: dict[str, Any], path: str, code: str
) -> None:
    [prepared] = make_exports(customer, 1)
    body = {**body, "ids": [{**each, "id": prepared} for each in body["ids"]]} if code == "unknown_target" else body
    assert problems(call(customer, **body).send(client)) == [(path, code)]
    assert set(statuses().values()) == {"prepared"}


def test_a_target_that_is_paused_refuses_all(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (target.id,))
    ids = make_exports(customer, 2)
    answer = call(customer, action="approve", target_id=target.id, ids=named(ids)).send(client)
    assert problems(answer) == [("/target_id", "target_not_active")]


def test_a_target_whose_url_the_policy_refuses_is_blocked(client: TestClient, customer: Customer) -> None:
    target = make_target(customer, "https://169.254.169.254/hook")
    answer = call(customer, action="approve", target_id=target.id, ids=named(make_exports(customer, 1))).send(client)
    assert problems(answer) == [("/target_id", "target_not_active")]
    assert rows("SELECT status FROM targets WHERE id = ?", (target.id,)) == [("blocked",)]
    assert set(statuses().values()) == {"prepared"}


# --- jobs


def run_jobs() -> None:
    task = bulk_job_task(FakeWakeUpQueue(), LOOPBACK_POLICY, UNLIMITED, utc_now)
    while task.run_once():
        pass


def begin(customer: Customer, expected: int, **given: Any) -> Call:
    body = {"action": "dismiss", "filter": given, "expected_count": expected}
    return call(customer, **body)


def read(client: TestClient, customer: Customer, path: str = "/api/bulk-jobs") -> Any:
    return client.simulate_get(path, headers=customer.bearer).json


def test_a_filter_becomes_a_job_that_a_worker_carries_out(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    make_exports(customer, 3)
    make_exports(make_customer(), 1)
    make_failed(customer, target.id)
    body = {"action": "approve", "target_id": target.id, "filter": {"status": ["prepared"]}, "expected_count": 3}
    begun = call(customer, **body).send(client)
    job = begun.json
    path = f"/api/bulk-jobs/{job['id']}"
    assert (begun.status_code, begun.headers["location"], wake_ups.notifications) == (202, f"{BASE}{path}", 1)
    started = {"action": "approve", "status": "running", "total": 3, "done": 0, "changed": 0, "skipped": 0, "errors": {}}
    assert job == {"id": job["id"], **started, "created_at": job["created_at"], "finished_at": None}
    assert read(client, customer, path) == job
    run_jobs()
    ended = read(client, customer, path)
    assert ended == {**job, "status": "done", "done": 3, "changed": 3, "finished_at": ended["finished_at"]}
    assert read(client, customer) == {"items": [ended], "next_cursor": None}
    cancelled = Call("POST", f"{path}/cancel", (*customer.bearer.items(), *JSON.items())).with_json({}).send(client)
    assert (cancelled.status_code, cancelled.json) == (200, ended)


def test_a_wrong_expected_count_is_a_conflict_that_names_the_actual_count(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 2)
    refused = begin(customer, 3, status="prepared").send(client)
    assert (refused.status_code, refused.json["error"]["code"]) == (409, "CONFLICT")
    assert refused.json["error"]["details"] == {"count": 2}
    assert "matches 2 exports, not 3" in refused.json["error"]["message"]


def test_requests_with_the_same_key_begin_one_job(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 2)
    keyed = begin(customer, 2).plus(("Idempotency-Key", "once"))
    first, again = keyed.send(client), keyed.send(client)
    assert (first.status_code, again.status_code, again.json) == (202, 202, first.json)
    assert rows("SELECT COUNT(*) FROM bulk_jobs") == [(1,)]


def test_a_running_job_is_cancelled_and_jobs_of_others_are_not_found(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 2)
    path = f"/api/bulk-jobs/{begin(customer, 2).send(client).json['id']}"
    stranger = make_customer()
    for each in (Call("GET", path), Call("POST", f"{path}/cancel", tuple(JSON.items())).with_json({})):
        assert_is_error(each.plus(*stranger.bearer.items()).send(client), 404, "NOT_FOUND")
    cancelled = Call("POST", f"{path}/cancel", (*customer.bearer.items(), *JSON.items())).with_json({}).send(client)
    assert (cancelled.status_code, cancelled.json["status"], cancelled.json["done"]) == (200, "cancelled", 0)
    run_jobs()
    assert set(statuses().values()) == {"prepared"}
    assert read(client, stranger) == {"items": [], "next_cursor": None}


#: Columns: members of the body besides its action; path and code of the error.
REFUSED_FILTERS: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"filter": {}}, "/expected_count", "required"),
    ({"filter": {}, "expected_count": -1}, "/expected_count", "out_of_range"),
    ({"filter": {"sort": "created_at"}, "expected_count": 1}, "/filter", "unknown_member"),
    ({"filter": {"status": "lost"}, "expected_count": 1}, "/filter/status", "not_allowed"),
    ({"filter": {}, "expected_count": 1, "ids": named(["exp_1"])}, "", "ids_or_filter"),
    ({"expected_count": 1, "ids": named(["exp_1"])}, "", "ids_or_filter"),
    ({}, "", "ids_or_filter"),
]


@pytest.mark.parametrize(("body", "path", "code"), REFUSED_FILTERS)
def test_problems_of_a_filter_are_reported(
    client: TestClient, customer: Customer, body: dict[str, Any], path: str, code: str
) -> None:
    assert problems(call(customer, action="dismiss", **body).send(client)) == [(path, code)]
