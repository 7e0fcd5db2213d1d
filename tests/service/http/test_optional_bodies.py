"""A request with an optional body may declare JSON and send no body; a required body must not be empty."""

from typing import Final

import pytest
from falcon.testing import TestClient

from schemas.targets.target import Target
from storage.db.engine import rows
from tests.support.factories import Customer, make_exports, make_failed
from tests.support.http.raw_http import EXPORTS, JSON, RULES, TARGETS, Call, FieldRefusal, assert_is_error

EMPTY: Final = (FieldRefusal("", "malformed_json"),)


def post(customer: Customer, path: str, content_type: str | None, body: bytes = b"") -> Call:
    call = Call("POST", path, tuple(customer.bearer.items()), body)
    return call if content_type is None else call.plus(("Content-Type", content_type))


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8"])
def test_a_missing_body_counts_as_an_empty_object_with_and_without_a_content_type(
    content_type: str | None, client: TestClient, customer: Customer, target: Target
) -> None:
    [export_id] = make_exports(customer, 1)
    [failed] = make_failed(customer, target.id)
    for export, action, status in (
        (export_id, "snooze", 200),
        (export_id, "restore", 200),
        (export_id, "dismiss", 200),
        (failed, "retry", 202),
    ):
        assert post(customer, f"{EXPORTS}/{export}/{action}", content_type).send(client).status_code == status
    assert post(customer, f"{TARGETS}/{target.id}/pause", content_type).send(client).status_code == 200
    assert post(customer, f"{RULES}/rul_{'0' * 26}/test", content_type).send(client).status_code == 404


def test_a_missing_body_and_an_empty_object_are_the_same_request(client: TestClient, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    path = f"{EXPORTS}/{export_id}/dismiss"
    calls = [
        post(customer, path, None),
        post(customer, path, JSON["Content-Type"]),
        post(customer, path, JSON["Content-Type"], b"{}"),
    ]
    answers = [each.plus(("Idempotency-Key", "once")).send(client) for each in calls]
    assert {(each.status_code, each.content) for each in answers} == {(200, answers[0].content)}
    assert ["idempotency-replayed" in each.headers for each in answers] == [False, True, True]
    assert rows("SELECT COUNT(*) FROM idempotency_keys") == [(1,)]


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {**JSON, "Content-Encoding": "gzip"}])
def test_a_missing_body_with_another_type_or_encoding_is_rejected(
    headers: dict[str, str], client: TestClient, customer: Customer
) -> None:
    [export_id] = make_exports(customer, 1)
    call = Call("POST", f"{EXPORTS}/{export_id}/dismiss", (*customer.bearer.items(), *headers.items()))
    assert_is_error(call.send(client), 415, "UNSUPPORTED_MEDIA_TYPE", ())


@pytest.mark.parametrize("body", [b" ", b"null", b"[]"])
def test_a_present_body_is_parsed(body: bytes, client: TestClient, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    answer = post(customer, f"{EXPORTS}/{export_id}/dismiss", JSON["Content-Type"], body).send(client)
    assert answer.status_code == 422


def test_a_required_body_must_not_be_empty(client: TestClient, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    for path in (f"{EXPORTS}/{export_id}/approve", f"{EXPORTS}/bulk", EXPORTS):
        assert_is_error(post(customer, path, JSON["Content-Type"]).send(client), 422, "VALIDATION_FAILED", EMPTY)
