"""`PATCH` and `DELETE /api/ticket-export-targets/{target_id}`."""

from base64 import b64encode
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from storage.db.engine import execute
from storage.secrets.vault import Vault
from storage.targets import changes, webhook_secrets
from tests.support.factories import DEFAULT_SECRET, NOW, Customer, make_approved, make_failed, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, TARGETS, Call, FieldRefusal, assert_is_error, everything_stored

VAULT = Vault([b"A" * 32])
STANDARD = f"whsec_{b64encode(bytes(32)).decode()}"

#: Columns: URL that is not allowed; reason.
UNSAFE = [
    ("", "scheme_missing"),
    ("http://tracker.example.com/", "scheme_not_allowed"),
    ("https://10.20.30.40/", "address_private"),
    ("https://inside.example.com/", "address_private"),
    ("https://nobody.example.com/", "dns_not_found"),
    ("https://tracker.example.com/?token=hidden", "credential_in_query"),
]
#: Columns: body; its error.
REFUSED: list[tuple[dict[str, Any], FieldRefusal]] = [
    ({}, FieldRefusal("", "no_members")),
    ({"name": None}, FieldRefusal("/name", "null")),
    ({"name": " "}, FieldRefusal("/name", "too_short")),
    ({"base_url": None}, FieldRefusal("/base_url", "null")),
    ({"max_per_minute": 0}, FieldRefusal("/max_per_minute", "out_of_range")),
    ({"provider_key": "generic_webhook"}, FieldRefusal("", "unknown_member")),
    ({"signature": "none"}, FieldRefusal("/signature", "not_allowed")),
    ({"signature": "both"}, FieldRefusal("/signature", "standard_secret_needed")),
    ({"format": "xml"}, FieldRefusal("/format", "not_allowed")),
    ({"headers": [{"name": "Authorization", "value": "x"}]}, FieldRefusal("", "unknown_member")),
    ({"status": "active"}, FieldRefusal("", "unknown_member")),
]


@pytest.fixture
def resolver() -> FakeResolver:
    return FakeResolver({"tracker.example.com": ["93.184.215.14"], "inside.example.com": ["10.20.30.40"]})


def patch(client: TestClient, customer: Customer, target_id: str, **members: Any) -> Result:
    call = Call("PATCH", f"{TARGETS}/{target_id}", (*customer.bearer.items(), *JSON.items()))
    return call.with_json(members).send(client)


def delete(client: TestClient, customer: Customer, target_id: str) -> Result:
    return Call("DELETE", f"{TARGETS}/{target_id}", tuple(customer.bearer.items())).send(client)


def get(client: TestClient, customer: Customer, path: str) -> Result:
    return Call("GET", path, tuple(customer.bearer.items())).send(client)


def test_only_members_of_the_body_are_changed(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    before = get(client, customer, f"{TARGETS}/{target.id}").json
    answer = patch(client, customer, target.id, name="Other", max_per_minute=30)
    changed = {"name": "Other", "max_per_minute": 30, "delivery": {**before["delivery"], "max_per_minute": 30}}
    assert (answer.status_code, answer.json) == (200, {**before, **changed})
    lifted = patch(client, customer, target.id, max_per_minute=None).json
    assert (lifted["name"], lifted["max_per_minute"]) == ("Other", None)
    assert get(client, customer, f"{TARGETS}/{target.id}").json == lifted


def test_signature_and_format_are_changed_and_headers_are_shown_as_fingerprints(
    client: TestClient, customer: Customer
) -> None:
    target = make_target(customer)
    fingerprint = webhook_secrets.set_header(target.id, "Authorization", "Bearer of ours", VAULT, NOW, "operator")
    standard = webhook_secrets.set_standard_secret(target.id, STANDARD, VAULT, DEFAULT_SECRET, NOW, "operator")
    answer = patch(client, customer, target.id, signature="standard-webhooks", format="cloudevents-binary")
    assert answer.status_code == 200
    members = ("signature", "format", "headers", "standard_secret")
    assert {name: answer.json[name] for name in members} == {
        "signature": "standard-webhooks",
        "format": "cloudevents-binary",
        "headers": [{"name": "Authorization", "fingerprint": fingerprint}],
        "standard_secret": {"configured": True, "fingerprint": standard},
    }
    assert "of ours" not in answer.text


def test_a_new_url_makes_the_target_active_again_and_wakes_the_workers(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    execute("UPDATE targets SET status = 'paused', status_reason = 'client', connected_status = 'failing'")
    notified = wake_ups.notifications
    answer = patch(client, customer, target.id, base_url="https://tracker.example.com/other")
    record = answer.json
    assert (answer.status_code, record["status"], record["connected"]["status"]) == (200, "active", "unknown")
    assert record["base_url"] == "https://tracker.example.com/other"
    assert wake_ups.notifications == notified + 1


@pytest.mark.parametrize(("base_url", "reason"), UNSAFE)
def test_an_unsafe_url_is_refused_as_for_a_new_target(
    client: TestClient, customer: Customer, base_url: str, reason: str
) -> None:
    target = make_target(customer)
    before = everything_stored()
    answer = patch(client, customer, target.id, base_url=base_url)
    assert answer.status_code == 422
    assert answer.json["error"]["details"]["fields"][0]["code"] == reason
    assert answer.json["error"]["details"]["fields"][0]["path"] == "/base_url"
    assert everything_stored() == before


@pytest.mark.parametrize(("body", "problem"), REFUSED)
def test_an_empty_or_invalid_change_is_refused(
    client: TestClient, customer: Customer, body: dict[str, Any], problem: FieldRefusal
) -> None:
    target = make_target(customer)
    before = everything_stored()
    assert_is_error(patch(client, customer, target.id, **body), 422, "VALIDATION_FAILED", (problem,))
    assert everything_stored() == before


def test_a_repeated_edit_with_a_key_gets_the_first_response(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    headers = (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", "one"))
    call = Call("PATCH", f"{TARGETS}/{target.id}", headers).with_json({"name": "Other"})
    first = call.send(client)
    patch(client, customer, target.id, name="Third")
    again = call.send(client)
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    assert get(client, customer, f"{TARGETS}/{target.id}").json["name"] == "Third"


def test_a_removed_target_is_a_404_everywhere(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    [failed] = make_failed(customer, target.id)
    answer = delete(client, customer, target.id)
    assert (answer.status_code, answer.content) == (204, b"")
    path = f"{TARGETS}/{target.id}"
    assert get(client, customer, path).status_code == 404
    assert delete(client, customer, target.id).status_code == 404
    assert patch(client, customer, target.id, name="Other").status_code == 404
    for verb in ("validate", "ping", "pause", "resume", "disable"):
        assert Call("POST", f"{path}/{verb}", tuple(customer.bearer.items())).send(client).status_code == 404
    assert get(client, customer, TARGETS).json["items"] == []
    assert get(client, customer, f"{EXPORTS}/{failed}").json["target_id"] == target.id
    retried = Call("POST", f"{EXPORTS}/{failed}/retry", tuple(customer.bearer.items())).send(client)
    assert_is_error(retried, 422, "VALIDATION_FAILED", (FieldRefusal("/target_id", "target_removed"),))


def test_a_target_that_exports_wait_for_is_a_409_with_their_number(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    answer = delete(client, customer, target.id)
    assert (answer.status_code, answer.json["error"]["code"]) == (409, "CONFLICT")
    assert answer.json["error"]["details"] == {"approved": 1, "delivering": 0, "retry_scheduled": 0, "pending_events": 0}
    headers = (*customer.bearer.items(), ("Accept", "application/problem+json"))
    problem = Call("DELETE", f"{TARGETS}/{target.id}", headers).send(client)
    assert (problem.json["approved"], problem.json["errors"]) == (1, [])
    assert get(client, customer, f"{TARGETS}/{target.id}").status_code == 200


def test_the_same_removal_twice_is_not_found_the_second_time(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    changes.remove(target.id, NOW, "user:1")
    assert_is_error(delete(client, customer, target.id), 404, "NOT_FOUND")
