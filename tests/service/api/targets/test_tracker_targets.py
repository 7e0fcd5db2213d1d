"""Trackers as targets: created and edited by clients, with the settings of the tracker and without its token."""

from base64 import b64decode
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient
from openapi_schema_validator import OAS31Validator

from runtime.clock import utc_now
from schemas.trackers.registry import TRACKERS, provider_keys
from service.operations.targets import NO_TRACKER_PAGE
from storage.accounts import audit_log
from storage.db.engine import rows
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.factories import ENCRYPTION_KEY, Customer, forbid_webhooks, make_approved
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import JSON, TARGETS, Call, FieldRefusal, assert_is_error, everything_stored

TOKEN: Final = "cAnArY-of-a-token"
#: A repository's page; another one on the same server; one on another server; a URL that is not allowed.
PAGE: Final = "https://git.example.com/acme/shop"
OTHER_PAGE: Final = "https://git.example.com/acme/other"
ELSEWHERE: Final = "https://git.attacker.example/acme/shop"
INSIDE: Final = "https://inside.example.com/api/v1"
_KEYS: Final = (b64decode(ENCRYPTION_KEY),)


@pytest.fixture
def resolver() -> FakeResolver:
    public = ["93.184.215.14"]
    return FakeResolver({"git.example.com": public, "git.attacker.example": public, "inside.example.com": ["10.20.30.40"]})


def send(client: TestClient, customer: Customer, method: str, path: str, **members: Any) -> Result:
    call = Call(method, path, (*customer.bearer.items(), *JSON.items()))
    return (call.with_json(members) if members else call).send(client)


def request_for(**members: Any) -> dict[str, Any]:
    return {"provider_key": "gitea", "base_url": PAGE, "name": "Shop", "provider_settings": {"labels": ["risk"]}, **members}


def make_tracker(client: TestClient, customer: Customer, **members: Any) -> dict[str, Any]:
    """Create a target of a tracker with a token; return its record."""
    made = send(client, customer, "POST", TARGETS, **request_for(**members)).json
    targets.set_secret(made["id"], TOKEN, Vault(_KEYS), utc_now())
    found: dict[str, Any] = send(client, customer, "GET", f"{TARGETS}/{made['id']}").json
    assert found["status"] == "active"
    return found


def entries(target_id: str) -> list[audit_log.AuditEntry]:
    return audit_log.list_for_subject(target_id, 50)


def asked_for_validation(target_id: str) -> bool:
    return rows("SELECT validation_asked_at IS NOT NULL FROM targets WHERE id = ?", (target_id,)) in ([(True,)], [(1,)])


def test_a_tracker_is_created_without_its_token_and_is_inactive_until_it_has_one(
    client: TestClient, customer: Customer
) -> None:
    answer = send(client, customer, "POST", TARGETS, **request_for())
    record = answer.json
    assert (answer.status_code, record["provider_key"], record["base_url"]) == (201, "gitea", PAGE)
    assert record["provider_settings"] == {"labels": ["risk"]}
    assert (record["status"], record["status_reason"]) == ("inactive", "no_secret")
    assert record["secret"] == {"configured": False, "fingerprint": None}
    # No worker has validated it yet.
    assert record["last_validation"] is None
    targets.set_secret(record["id"], TOKEN, Vault(_KEYS), utc_now())
    found = send(client, customer, "GET", f"{TARGETS}/{record['id']}").json
    assert (found["status"], found["secret"]["configured"], TOKEN in str(found)) == ("active", True, False)
    assert found["last_validation"] is None
    listed = send(client, customer, "GET", TARGETS).json["items"]
    assert listed == [found]


def test_a_dry_run_shows_the_tracker_and_stores_nothing(client: TestClient, customer: Customer) -> None:
    before = everything_stored()
    call = Call("POST", f"{TARGETS}?dry_run=true", (*customer.bearer.items(), *JSON.items()))
    answer = call.with_json(request_for()).send(client)
    assert (answer.status_code, answer.json["status"], answer.json["provider_settings"]) == (
        200,
        "inactive",
        {"labels": ["risk"]},
    )
    assert everything_stored() == before


# Columns: members of the request; path and code of the error.
REFUSED: Final[list[tuple[dict[str, Any], FieldRefusal]]] = [
    ({"base_url": "https://git.example.com"}, FieldRefusal("/base_url", NO_TRACKER_PAGE)),
    ({"base_url": "https://inside.example.com/acme/shop"}, FieldRefusal("/base_url", "address_private")),
    ({"base_url": "http://git.example.com/acme/shop"}, FieldRefusal("/base_url", "scheme_not_allowed")),
    ({"base_url": f"{PAGE}?access_token=1"}, FieldRefusal("/base_url", "credential_in_query")),
    ({"provider_settings": {"api_base": INSIDE}}, FieldRefusal("/provider_settings/api_base", "address_private")),
    (
        {"provider_settings": {"api_base": "http://git.example.com"}},
        FieldRefusal("/provider_settings/api_base", "scheme_not_allowed"),
    ),
    ({"provider_settings": {"project": "SHOP"}}, FieldRefusal("/provider_settings", "unknown_member")),
    ({"provider_settings": {"labels": [7]}}, FieldRefusal("/provider_settings/labels/0", "invalid_type")),
    ({"provider_key": "trello"}, FieldRefusal("/provider_key", "not_allowed")),
    ({"provider_key": "generic_webhook"}, FieldRefusal("/provider_settings", "unknown_member")),
]


@pytest.mark.parametrize(("members", "problem"), REFUSED)
def test_an_invalid_url_or_setting_of_a_tracker_is_rejected(
    client: TestClient, customer: Customer, members: dict[str, Any], problem: FieldRefusal
) -> None:
    before = everything_stored()
    answer = send(client, customer, "POST", TARGETS, **request_for(**members))
    assert_is_error(answer, 422, "VALIDATION_FAILED", (problem,))
    assert everything_stored() == before


def test_a_token_among_the_settings_is_refused_and_not_repeated(client: TestClient, customer: Customer) -> None:
    for settings in ({"token": TOKEN}, {"access_token": TOKEN}, {"labels": [f"ghp_{'a1B2c3D4e5F6' * 3}"]}):
        answer = send(client, customer, "POST", TARGETS, **request_for(provider_settings=settings))
        assert (answer.status_code, TOKEN in answer.text, "a1B2" in answer.text) == (422, False, False)
    assert rows("SELECT id FROM targets") == []


def test_new_settings_replace_all_settings_and_request_a_validation(
    client: TestClient, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    made = make_tracker(client, customer)
    notified = wake_ups.notifications
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={"on_fixed": "close"})
    assert (answer.status_code, answer.json) == (200, {**made, "provider_settings": {"on_fixed": "close"}})
    assert (asked_for_validation(made["id"]), wake_ups.notifications) == (True, notified + 1)
    assert answer.json["secret"]["configured"] is True
    removed = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={})
    assert removed.json["provider_settings"] == {}
    assert [each.action for each in entries(made["id"])].count("configure_target") == 2


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"provider_settings": {"project": "SHOP"}}, FieldRefusal("/provider_settings", "unknown_member")),
        ({"provider_settings": {"labels": [" "]}}, FieldRefusal("/provider_settings/labels/0", "too_short")),
        ({"provider_settings": {"api_base": INSIDE}}, FieldRefusal("/provider_settings/api_base", "address_private")),
        ({"provider_settings": None}, FieldRefusal("/provider_settings", "null")),
        ({"provider_settings": []}, FieldRefusal("/provider_settings", "invalid_type")),
        ({"base_url": "https://git.example.com/"}, FieldRefusal("/base_url", NO_TRACKER_PAGE)),
        ({"base_url": "https://inside.example.com/acme/shop"}, FieldRefusal("/base_url", "address_private")),
    ],
)
def test_an_edit_is_validated_like_a_new_target(
    client: TestClient, customer: Customer, members: dict[str, Any], problem: FieldRefusal
) -> None:
    made = make_tracker(client, customer)
    before = everything_stored()
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", **members)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (problem,))
    assert everything_stored() == before


def test_a_webhook_takes_no_settings_later(client: TestClient, customer: Customer) -> None:
    request = {"provider_key": "generic_webhook", "base_url": "https://git.example.com/hook", "name": "Hook"}
    made = send(client, customer, "POST", TARGETS, **request).json
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={"labels": []})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/provider_settings", "unknown_member"),))
    assert send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={}).json == made


def test_a_tracker_moved_to_another_project_on_the_same_server_keeps_its_token(
    client: TestClient, customer: Customer
) -> None:
    made = make_tracker(client, customer)
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", base_url=OTHER_PAGE)
    assert (answer.json["base_url"], answer.json["status"], answer.json["secret"]) == (OTHER_PAGE, "active", made["secret"])


@pytest.mark.parametrize(
    "members", [{"base_url": ELSEWHERE}, {"provider_settings": {"api_base": "https://git.attacker.example/api/v1"}}]
)
def test_a_tracker_moved_to_another_server_loses_its_token(
    client: TestClient, customer: Customer, members: dict[str, Any]
) -> None:
    made = make_tracker(client, customer)
    export_id = make_approved(customer, made["id"])
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", **members)
    assert answer.status_code == 200, answer.text
    assert (answer.json["status"], answer.json["status_reason"]) == ("inactive", "no_secret")
    assert answer.json["secret"] == {"configured": False, "fingerprint": None}
    assert rows("SELECT secret_sealed FROM targets WHERE id = ?", (made["id"],)) == [(None,)]
    reasons = [each.reason for each in entries(made["id"]) if each.action == "remove_secret"]
    assert reasons == ["other_server"]
    # The waiting export stays approved.
    assert rows("SELECT status FROM exports WHERE id = ?", (export_id,)) == [("approved",)]


def test_removing_the_api_base_deletes_the_token(client: TestClient, customer: Customer) -> None:
    made = make_tracker(client, customer, provider_settings={"api_base": "https://git.attacker.example/api/v1"})
    answer = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={})
    assert (answer.json["status"], answer.json["secret"]["configured"]) == ("inactive", False)


def test_an_account_that_may_not_use_webhooks_may_not_use_trackers(client: TestClient, customer: Customer) -> None:
    made = make_tracker(client, customer)
    forbid_webhooks(customer)
    created = send(client, customer, "POST", TARGETS, **request_for())
    edited = send(client, customer, "PATCH", f"{TARGETS}/{made['id']}", provider_settings={})
    assert_is_error(created, 403, "FORBIDDEN")
    assert_is_error(edited, 403, "FORBIDDEN")
    found = send(client, customer, "GET", f"{TARGETS}/{made['id']}").json
    assert found == made


def test_providers_are_listed_with_the_settings_and_the_secret_of_each(client: TestClient, customer: Customer) -> None:
    answer = send(client, customer, "GET", "/api/providers")
    items = answer.json["items"]
    assert answer.json.keys() == {"items"}
    assert [each["key"] for each in items] == list(provider_keys())
    for each in items:
        assert each.keys() == {"key", "name", "base_url_example", "settings_schema", "secret"}
        OAS31Validator.check_schema(each["settings_schema"])
    assert {
        each["key"]: each["secret"].startswith(TRACKERS[each["key"]].credential_help) for each in items[1:]
    } == dict.fromkeys(TRACKERS, True)
