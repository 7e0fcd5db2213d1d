"""A repeated request gets the first response; a key belongs to one payload, caller and path; rejections store no key."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from falcon.testing import Result, TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from schemas.base.principal import TokenKind
from service.app import create_app
from storage.accounts import tokens
from storage.db.engine import rows
from tests.support.factories import NOW, Customer, issue, make_customer, make_settings, make_target, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    BASE,
    EXPORTS,
    JSON,
    RESULTS,
    SCANNER,
    TARGETS,
    Call,
    assert_has_standard_headers,
    assert_is_error,
    everything_stored,
    prepared,
    target_request,
)

REPLAYED = "idempotency-replayed"


def results(scan_run_id: int = 7, key: str = "k") -> Call:
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items(), ("Idempotency-Key", key)))
    return call.with_json(postback(scan_run_id))


def register(customer: Customer, key: str = "k") -> Call:
    call = Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", key)))
    return call.with_json(target_request())


def approve(customer: Customer, export_id: str, target_id: str, key: str = "k") -> Call:
    headers = (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", key))
    return Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json({"target_id": target_id})


#: The three routes that accept a key, each with a request that changes something.
KEYED: dict[str, Callable[[TestClient, Customer], Call]] = {
    "results": lambda _, __: results(),
    "register": lambda _, customer: register(customer),
    "approve": lambda client, customer: approve(customer, prepared(client), make_target(customer).id),
}


@pytest.mark.parametrize("route", KEYED)
def test_a_repeated_request_gets_the_first_response_and_does_nothing(
    route: str, client: TestClient, customer: Customer
) -> None:
    call = KEYED[route](client, customer)
    first = call.send(client)
    before = everything_stored()

    again = call.send(client)

    assert first.status_code in {201, 202}
    assert REPLAYED not in first.headers
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers[REPLAYED] == "true"
    assert again.headers.get("location") == first.headers.get("location")
    assert again.headers["content-type"] == "application/json"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert_has_standard_headers(again)
    assert everything_stored() == before


def test_the_location_is_part_of_the_stored_response(client: TestClient, customer: Customer) -> None:
    first, again = register(customer).send(client), register(customer).send(client)
    assert first.headers["location"] == again.headers["location"] == f"{BASE}{TARGETS}/{first.json['id']}"


@pytest.mark.parametrize("route", KEYED)
def test_without_a_key_nothing_is_replayed(route: str, client: TestClient, customer: Customer) -> None:
    call = KEYED[route](client, customer).without("Idempotency-Key")
    answers = [call.send(client), call.send(client)]
    assert all(REPLAYED not in answer.headers for answer in answers)
    assert rows("SELECT * FROM idempotency_keys") == []


def test_another_payload_under_the_same_key_is_a_conflict(client: TestClient, customer: Customer) -> None:
    first = results(7).send(client)
    before = everything_stored()

    assert_is_error(results(8).send(client), 409, "IDEMPOTENCY_CONFLICT")

    assert everything_stored() == before
    assert results(7).send(client).content == first.content


def test_another_spelling_of_the_json_is_the_same_payload(client: TestClient) -> None:
    call = results()
    first = call.with_json({"scanRunId": 7, "status": "running", "page": {"url": "https://shop.example/"}}).send(client)
    spelled = b'{ "page" : {"url":"https:\\/\\/shop.example\\u002f"},\n "status":"running", "scanRunId":7 }'

    again = Call(call.method, call.path, call.headers, spelled).send(client)

    assert again.content == first.content
    assert again.headers[REPLAYED] == "true"


def test_a_key_reused_with_another_id_in_the_path_is_a_conflict(client: TestClient, customer: Customer) -> None:
    one, target = prepared(client), make_target(customer)
    two = prepared(client, 43, issues=[issue("another")])
    assert approve(customer, one, target.id).send(client).status_code == 202
    assert_is_error(approve(customer, two, target.id).send(client), 409, "IDEMPOTENCY_CONFLICT")


def test_the_same_key_on_another_route_is_another_request(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    calls = [results(), register(customer), approve(customer, export_id, target.id)]
    answers = [call.send(client) for call in calls]
    assert [answer.status_code for answer in answers] == [202, 201, 202]
    assert all(REPLAYED not in answer.headers for answer in answers)


def test_the_same_key_of_another_user_is_another_request(client: TestClient, customer: Customer) -> None:
    first, second = register(customer).send(client), register(make_customer()).send(client)
    assert first.json["id"] != second.json["id"]
    assert REPLAYED not in second.headers


def test_a_new_token_of_the_same_user_gets_the_stored_response(client: TestClient, customer: Customer) -> None:
    first = register(customer).send(client)
    _, token = tokens.create(customer.email, TokenKind.API, utc_now())
    renewed = register(customer).without("Authorization").plus(("Authorization", f"Bearer {token}"))
    assert renewed.send(client).content == first.content


def test_a_revoked_token_gets_no_stored_response(client: TestClient, customer: Customer) -> None:
    row, token = tokens.create(customer.email, TokenKind.API, utc_now())
    call = register(customer).without("Authorization").plus(("Authorization", f"Bearer {token}"))
    assert call.send(client).status_code == 201

    tokens.revoke(row.id, utc_now())

    answer = call.send(client)
    assert_is_error(answer, 401, "UNAUTHORIZED")
    assert REPLAYED not in answer.headers


def _spoiled(call: Call) -> dict[int, Call]:
    return {
        401: call.without("X-Scanner-Secret"),
        415: call.without("Content-Type"),
        406: call.plus(("Accept", "text/html")),
        422: call.with_json({}),
    }


@pytest.mark.parametrize("status", [401, 406, 415, 422])
def test_a_request_rejected_before_its_operation_stores_no_key(status: int, client: TestClient) -> None:
    refused = _spoiled(results())[status].send(client)
    right = results().send(client)

    assert refused.status_code == status
    assert right.status_code == 202
    assert REPLAYED not in right.headers


def test_a_rejection_by_the_operation_itself_stores_no_key(client: TestClient, customer: Customer) -> None:
    export_id, target = prepared(client), make_target(customer)
    refused = [
        approve(customer, export_id, "tgt_nobody").send(client),  # 422
        approve(customer, "exp_nobody", target.id).send(client),  # 404
        approve(customer, export_id, target.id)
        .with_json({"target_id": target.id, "ticket_digest": "x"})
        .send(client),  # 409
    ]
    right = approve(customer, export_id, target.id).send(client)

    assert [answer.status_code for answer in refused] == [422, 404, 409]
    assert (right.status_code, REPLAYED in right.headers) == (202, False)


def test_a_forbidden_request_stores_no_key(client: TestClient) -> None:
    poor = make_customer(may_use_webhooks=False)
    assert_is_error(register(poor).send(client), 403, "FORBIDDEN")
    assert rows("SELECT * FROM idempotency_keys") == []


def _postback_at(client: TestClient, hours: float) -> Result:
    with freeze_time(NOW + timedelta(hours=hours)):
        return results().send(client)


def test_a_key_is_stored_for_its_time_and_no_longer(customer: Customer, tmp_path: Path) -> None:
    changes = {"DEFAULT_PROJECT_ID": str(customer.project_id), "IDEMPOTENCY_TTL_HOURS": "5"}
    client = TestClient(create_app(make_settings(tmp_path, changes), FakeWakeUpQueue(), FakeResolver({})))
    first = _postback_at(client, 0)
    remembered, forgotten = _postback_at(client, 5), _postback_at(client, 5.01)

    assert remembered.headers[REPLAYED] == "true"
    assert remembered.content == first.content
    assert REPLAYED not in forgotten.headers
    assert forgotten.json["findings"] == {"new": 0, "seen": 1, "fixed": 0, "reopened": 0}


@pytest.mark.parametrize("key", ["k", "~", "a" * 255, "with spaces and , commas", '"quoted"', "42"])
def test_a_valid_key_is_accepted(key: str, client: TestClient) -> None:
    assert results(key=key).send(client).status_code == 202
    assert results(key=key).send(client).headers[REPLAYED] == "true"
