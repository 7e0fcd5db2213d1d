"""Decisions on many exports by the API: a result for each, once a key, and nothing of another account."""

from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from schemas.targets.target import Target
from storage.db.engine import execute, rows
from tests.support.factories import Customer, make_approved, make_customer, make_exports, make_failed, make_target
from tests.support.fakes import FakeWakeUpQueue
from tests.support.raw_http import EXPORTS, JSON, Call

BULK: Final = f"{EXPORTS}/bulk"
NO_TARGET: Final = "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"


def call(customer: Customer, **body: Any) -> Call:
    return Call("POST", BULK, (*customer.bearer.items(), *JSON.items())).with_json(body)


def named(ids: list[str]) -> list[dict[str, str]]:
    return [{"id": each} for each in ids]


def statuses() -> dict[str, str]:
    return dict(rows("SELECT id, status FROM exports"))


def test_approvals_have_a_result_for_each_and_wake_the_workers_once(
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


def test_the_same_key_decides_once(client: TestClient, customer: Customer, target: Target) -> None:
    ids = make_exports(customer, 2)
    keyed = call(customer, action="approve", target_id=target.id, ids=named(ids)).plus(("Idempotency-Key", "once"))
    first, again = keyed.send(client), keyed.send(client)
    assert (first.json["changed"], again.json) == (2, first.json)
    assert again.headers["idempotency-replayed"] == "true"


def problems(answer: Result) -> list[tuple[str, str]]:
    assert answer.status_code == 422, answer.text
    return [(each["path"], each["code"]) for each in answer.json["error"]["details"]["fields"]]


#: What a body has, the path and the code of its refusal.
REFUSED: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"action": "dismiss", "ids": []}, "/ids", "too_short"),
    ({"action": "dismiss", "ids": named(["exp_1"] * 201)}, "/ids", "too_many"),
    ({"action": "dismiss", "ids": named(["exp_1", "exp_2", "exp_1"])}, "/ids/2/id", "repeated"),
    ({"action": "dismiss", "ids": ["exp_1"]}, "/ids/0", "invalid_type"),
    ({"action": "dismiss", "ids": [{"id": "exp_1", "version": 3}]}, "/ids/0", "unknown_member"),
    ({"action": "dismiss"}, "/ids", "required"),
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
def test_what_is_wrong_is_named(client: TestClient, customer: Customer, body: dict[str, Any], path: str, code: str) -> None:
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
