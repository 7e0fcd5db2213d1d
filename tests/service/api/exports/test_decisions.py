"""Requests that edit, dismiss, restore, snooze and split exports, approve for several targets, and retry at another one."""

from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from storage.accounts import projects
from storage.db.engine import execute
from storage.exports import queries
from storage.targets import targets
from tests.support.factories import NOW, Customer, issue, make_exports, make_failed, make_target, postback, record_postback
from tests.support.http.raw_http import EXPORTS, JSON, Call, FieldRefusal, assert_is_error

TICKET_TITLE: Final = "Missing name"


@pytest.fixture
def export_id(customer: Customer) -> str:
    [made] = make_exports(customer, 1)
    return made


class ExportClient:
    """Sends requests about one export as a customer."""

    def __init__(self, client: TestClient, customer: Customer, export_id: str) -> None:
        self._client, self._customer, self._path = client, customer, f"{EXPORTS}/{export_id}"

    def post(self, verb: str, body: Any) -> Result:
        return self._send("POST", f"{self._path}/{verb}", body)

    def patch(self, body: Any) -> Result:
        return self._send("PATCH", self._path, body)

    def read(self) -> Result:
        return Call("GET", self._path, tuple(self._customer.bearer.items())).send(self._client)

    def _send(self, method: str, path: str, body: Any) -> Result:
        return Call(method, path, (*self._customer.bearer.items(), *JSON.items())).with_json(body).send(self._client)


@pytest.fixture
def one(client: TestClient, customer: Customer, export_id: str) -> ExportClient:
    return ExportClient(client, customer, export_id)


def test_the_response_to_an_edit_has_the_original_ticket_and_a_new_entity_tag(one: ExportClient) -> None:
    before = one.read()
    answer = one.patch({"title": "Name the field", "severity": "minor", "ticket_digest": before.json["ticket_digest"]})
    assert answer.status_code == 200
    assert (answer.json["ticket"]["title"], answer.json["severity"], answer.json["edited"]) == (
        "Name the field",
        "low",
        True,
    )
    assert answer.json["original_ticket"] == before.json["ticket"]
    assert answer.json["ticket_digest"] != before.json["ticket_digest"]
    after = one.read()
    assert after.json == answer.json
    assert after.headers["etag"] != before.headers["etag"]
    assert one.patch({"title": TICKET_TITLE, "severity": "high"}).json["edited"] is False


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, ("", "no_members")),
        ({"ticket_digest": None}, ("", "no_members")),
        ({"title": ""}, ("/title", "too_short")),
        ({"title": " "}, ("/title", "too_short")),
        ({"title": None}, ("/title", "null")),
        ({"title": "x" * 251}, ("/title", "too_long")),
        ({"description": " \n"}, ("/description", "too_short")),
        ({"severity": "urgent-ish"}, ("/severity", "not_allowed")),
        ({"labels": [""]}, ("/labels/0", "too_short")),
        ({"page_url": "https://shop.example/"}, ("", "unknown_member")),
        ({"description": "password: Hunter2Hunter2!"}, ("/description", "assigned_secret")),
    ],
)
def test_an_edit_that_is_invalid_is_refused_at_its_field(body: Any, refusal: tuple[str, str], one: ExportClient) -> None:
    before = one.read().json
    assert_is_error(one.patch(body), 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))
    assert one.read().json == before


def test_an_edit_of_another_ticket_or_of_an_approved_one_is_a_conflict(one: ExportClient, customer: Customer) -> None:
    seen = one.read().json["ticket_digest"]
    one.patch({"title": "First"})
    assert_is_error(one.patch({"title": "Second", "ticket_digest": seen}), 409, "CONFLICT")
    one.post("approve", {"target_id": make_target(customer).id})
    assert_is_error(one.patch({"title": "Third"}), 409, "CONFLICT")
    assert one.read().json["ticket"]["title"] == "First"


def test_a_dismissal_with_a_reason_and_a_note_is_on_the_record_until_it_is_restored(one: ExportClient) -> None:
    first = one.read()
    answer = one.post("dismiss", {"reason": "false_positive", "note": "It is decoration."})
    assert answer.status_code == 200
    dismissal = answer.json["dismissal"]
    assert dismissal == {"reason": "false_positive", "note": "It is decoration.", "at": answer.json["finished_at"]}
    assert one.post("dismiss", {"reason": "false_positive", "note": "It is decoration."}).json == answer.json
    assert_is_error(one.post("dismiss", {"reason": "other"}), 409, "CONFLICT")
    assert one.read().json == answer.json
    restored = one.post("restore", {})
    assert (restored.status_code, restored.json) == (200, first.json)
    assert one.post("restore", {}).json == restored.json
    assert one.read().headers["etag"] not in {first.headers["etag"]}


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"reason": "boring"}, ("/reason", "not_allowed")),
        ({"reason": 1}, ("/reason", "invalid_type")),
        ({"note": "x" * 2001}, ("/note", "too_long")),
        ({"note": "password: Hunter2Hunter2!"}, ("/note", "assigned_secret")),
        ({"why": "x"}, ("", "unknown_member")),
    ],
)
def test_a_dismissal_that_is_invalid_is_refused_at_its_field(body: Any, refusal: tuple[str, str], one: ExportClient) -> None:
    assert_is_error(one.post("dismiss", body), 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))
    assert one.read().json["status"] == "prepared"


def test_a_blank_note_is_stored_as_null(one: ExportClient) -> None:
    assert one.post("dismiss", {"reason": None, "note": " "}).json["dismissal"]["note"] is None


def test_a_snooze_is_on_the_record_and_ended_by_restore(one: ExportClient) -> None:
    before = one.read()
    answer = one.post("snooze", {"until": "2126-03-15T09:00:00+01:00"})
    assert (answer.status_code, answer.json["status"]) == (200, "prepared")
    assert answer.json["snoozed_until"] == "2126-03-15T08:00:00.000Z"
    snoozed = one.read()
    assert snoozed.json == answer.json
    assert snoozed.headers["etag"] != before.headers["etag"]
    assert one.post("snooze", {}).json["snoozed_until"] is None
    assert one.post("restore", {}).json == before.json


@pytest.mark.parametrize(
    ("until", "code"), [("2025-01-01T00:00:00Z", "in_the_past"), ("tomorrow", "invalid_timestamp"), (5, "invalid_type")]
)
def test_a_snooze_without_a_future_time_is_refused(until: Any, code: str, one: ExportClient, export_id: str) -> None:
    answer = one.post("snooze", {"until": until})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/until", code),))
    assert queries.get(export_id).version == 1


def test_a_split_returns_the_exports_and_is_carried_out_once_per_key(client: TestClient, customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    body = postback(issues=[issue("csp", location=name) for name in "abc"])
    [group] = record_postback(PostbackForm().read(body), customer.project_id).ticket_exports
    keyed = (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", "split-1"))
    call = Call("POST", f"{EXPORTS}/{group}/split", keyed).with_json({})
    first, again = call.send(client), call.send(client)
    assert (first.status_code, first.json["ticket_exports"][0], len(first.json["ticket_exports"])) == (200, group, 3)
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    refused = ExportClient(client, customer, group).post("split", {})
    assert_is_error(refused, 409, "CONFLICT")


def test_an_approval_for_several_targets_returns_one_export_for_each(one: ExportClient, customer: Customer) -> None:
    target_ids = [make_target(customer).id for _ in range(2)]
    answer = one.post("approve", {"target_ids": target_ids, "ticket_digest": one.read().json["ticket_digest"]})
    assert answer.status_code == 202
    items = answer.json["items"]
    assert [item["target_id"] for item in items] == target_ids
    assert {item["status"] for item in items} == {"approved"}
    assert one.read().json == items[0]
    assert items[0]["siblings"] == items[1]["siblings"] == [item["id"] for item in items]
    again = one.post("approve", {"target_ids": target_ids})
    assert (again.status_code, again.json) == (202, answer.json)
    assert_is_error(one.post("approve", {"target_ids": [*target_ids, make_target(customer).id]}), 409, "CONFLICT")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, ("/target_id", "required")),
        ({"target_id": "tgt_1", "target_ids": ["tgt_1", "tgt_2"]}, ("/target_ids", "not_both")),
        ({"target_ids": ["tgt_1"]}, ("/target_ids", "too_short")),
        ({"target_ids": None}, ("/target_ids", "null")),
        ({"target_ids": [f"tgt_{number}" for number in range(21)]}, ("/target_ids", "too_many")),
        ({"target_ids": ["tgt_1", "tgt_2", "tgt_1"]}, ("/target_ids/2", "repeated")),
        ({"target_ids": ["tgt_1", "tgt_2"]}, ("/target_ids/0", "unknown_target")),
    ],
)
def test_an_approval_names_one_target_or_several_different_ones(
    body: Any, refusal: tuple[str, str], one: ExportClient
) -> None:
    assert_is_error(one.post("approve", body), 422, "VALIDATION_FAILED", (FieldRefusal(*refusal),))
    assert one.read().json["status"] == "prepared"


def test_a_target_whose_url_is_refused_is_blocked_and_nothing_is_approved(one: ExportClient, customer: Customer) -> None:
    bad = make_target(customer, "https://tracker.example.com:4444/hook")
    answer = one.post("approve", {"target_ids": [make_target(customer).id, bad.id]})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/target_ids/1", "target_not_active"),))
    assert targets.get(bad.id, None).status == "blocked"
    assert one.read().json["status"] == "prepared"


def test_a_failed_export_is_retried_at_another_target(client: TestClient, customer: Customer) -> None:
    [failed] = make_failed(customer, make_target(customer).id)
    one, right = ExportClient(client, customer, failed), make_target(customer).id
    before = one.read().json
    answer = one.post("retry", {"target_id": right})
    assert (answer.status_code, answer.json["status"], answer.json["target_id"]) == (202, "approved", right)
    assert answer.json["ticket_digest"] == before["ticket_digest"]
    assert one.post("retry", {"target_id": right}).json == answer.json
    assert_is_error(one.post("retry", {}), 409, "CONFLICT")


def test_a_retry_at_a_target_that_is_not_active_or_not_allowed_is_refused(client: TestClient, customer: Customer) -> None:
    [failed] = make_failed(customer, make_target(customer).id)
    one, bad = ExportClient(client, customer, failed), make_target(customer, "https://tracker.example.com:4444/hook")
    for target_id, code in ((bad.id, "target_not_active"), ("tgt_1", "unknown_target"), ("", "too_short")):
        refusal = FieldRefusal("/target_id", code)
        assert_is_error(one.post("retry", {"target_id": target_id}), 422, "VALIDATION_FAILED", (refusal,))
    assert targets.get(bad.id, None).status == "blocked"
    assert one.read().json["status"] == "failed"


def test_an_exports_own_blocked_target_is_resumed_by_a_retry_that_names_it(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    [failed] = make_failed(customer, target.id, status="blocked")
    execute("UPDATE targets SET status = 'blocked', status_reason = 'address_private' WHERE id = ?", (target.id,))
    answer = ExportClient(client, customer, failed).post("retry", {"target_id": target.id})
    assert (answer.status_code, answer.json["status"]) == (202, "approved")
    assert targets.get(target.id, None).status == "active"
