"""Compliance webhooks: signed and valid ones are stored once and encrypted; all others leave no row."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import Topic
from service.app import create_app
from service.http.auth import is_signed
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows
from storage.maintenance import retention
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from tests.service.conftest import LogLines
from tests.support.corpora import CORPORA
from tests.support.factories import NOW, SCANNER_SECRET, Customer, make_platform_token, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import FieldRefusal, assert_has_standard_headers, assert_is_error
from tests.support.http.storefront import (
    ADA,
    BOB,
    CLOUD,
    SECRET,
    SHOP,
    WEBHOOKS,
    data_request_body,
    redact_body,
    send_webhook,
    shop_body,
    signature,
    stored,
    traces_of,
)

KEY: Final = b"A" * 32
GOOD: Final[dict[Topic, dict[str, Any]]] = {
    Topic.DATA_REQUEST: data_request_body(ADA),
    Topic.CUSTOMER_REDACT: redact_body(ADA),
    Topic.SHOP_REDACT: shop_body(),
}


def corpus(path: str) -> Any:
    file = CORPORA / path
    if not file.exists():
        pytest.skip(f"no corpora at {CORPORA}; set CORPORA_DIR")
    return json.loads(file.read_text())


@pytest.fixture
def client(customer: Customer, tmp_path: Path, wake_ups: FakeWakeUpQueue) -> TestClient:
    """A cloud installation, because others do not have this route."""
    return TestClient(create_app(make_settings(tmp_path, CLOUD), wake_ups, FakeResolver({})))


@pytest.fixture
def vault() -> Vault:
    return Vault([KEY])


def count() -> int:
    return int(rows("SELECT COUNT(*) FROM compliance_requests")[0][0])


# --- what is accepted


@pytest.mark.parametrize("topic", Topic)
def test_a_webhook_gets_an_empty_response_and_is_stored_encrypted(
    topic: Topic, client: TestClient, wake_ups: FakeWakeUpQueue, vault: Vault, log_lines: LogLines
) -> None:
    wake_ups.on_notify = count
    with freeze_time(NOW):
        answer = send_webhook(client, topic, GOOD[topic])
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-type" not in answer.headers
    assert_has_standard_headers(answer)
    # Notified once, after the commit.
    assert wake_ups.seen == [1]
    [line] = compliance_requests.list_all()
    assert (line.topic, line.shop_domain, line.status, line.result) == (topic, SHOP, "received", None)
    assert (line.received_at, line.next_run_at, line.due_at) == (NOW, NOW, NOW + timedelta(days=30))
    assert (dict(line.counts), line.attempts, line.has_report) == ({}, 0, False)
    assert traces_of(ADA, stored()) == []
    assert traces_of(ADA, log_lines.text.lower()) == []
    held = compliance_requests.claim_next(NOW)
    assert held is not None
    is_shops = topic is Topic.SHOP_REDACT
    assert (held.subject_sealed is None, line.subject_pseudonym is None) == (is_shops, is_shops)
    if not is_shops:
        assert compliance_requests.subject_of(held, vault) == ADA.subject
        assert line.subject_pseudonym is not None
        assert line.subject_pseudonym.startswith("ps:")
        assert len(line.subject_pseudonym) == 35
    audited = rows("SELECT actor, action, subject_id, reason FROM audit_entries WHERE actor = 'storefront'")
    assert audited == [("storefront", "receive_compliance_request", line.id, topic.value)]


def test_a_webhook_that_is_repeated_is_stored_once(client: TestClient, wake_ups: FakeWakeUpQueue) -> None:
    for _ in range(3):
        assert send_webhook(client, Topic.CUSTOMER_REDACT, redact_body(ADA)).status_code == 204
    assert (count(), wake_ups.notifications) == (1, 1)
    assert send_webhook(client, Topic.CUSTOMER_REDACT, redact_body(BOB)).status_code == 204
    assert (count(), wake_ups.notifications) == (2, 2)


def test_a_person_has_one_pseudonym_in_a_shop_and_another_one_in_another(client: TestClient) -> None:
    assert send_webhook(client, Topic.DATA_REQUEST, data_request_body(ADA)).status_code == 204
    assert send_webhook(client, Topic.CUSTOMER_REDACT, redact_body(replace(ADA, phone="1", orders=()))).status_code == 204
    elsewhere = redact_body(ADA, "sun.shops.example")
    assert send_webhook(client, Topic.CUSTOMER_REDACT, elsewhere, "sun.shops.example").status_code == 204
    first, second, third = (row[0] for row in rows("SELECT subject_pseudonym FROM compliance_requests ORDER BY id"))
    assert first == second != third


def test_the_documented_bodies_are_accepted(client: TestClient, vault: Vault) -> None:
    placeholders = {"{shop}.myshopify.com": SHOP, "<domain>": SHOP, "snowdevil.myshopify.com": SHOP}
    bodies = corpus("shopify/compliance-bodies.json")
    assert len(bodies) == 5
    for number, each in enumerate(bodies):
        body = {**each["body"], "shop_domain": placeholders[each["body"]["shop_domain"]], "n": number}
        assert send_webhook(client, each["topic"], body).status_code == 204, body
    assert count() == 5
    subjects = []
    while held := compliance_requests.claim_next(utc_now()):
        subjects.append(compliance_requests.subject_of(held, vault))
        execute("UPDATE compliance_requests SET lease = NULL, next_run_at = ? WHERE id = ?", (to_ms(NOW) * 2, held.id))
    actual = [(subject.customer_id, subject.email, subject.phone, len(subject.order_ids)) for subject in subjects]
    assert actual == [
        ("191167", "john@example.com", "555-625-1199", 3),
        ("191167", "john@example.com", "555-625-1199", 3),
        (None, None, None, 0),
        (None, "john@email.com", None, 3),
        ("<ID>", "<email>", "<phone>", 1),
    ]


def test_a_shop_is_the_same_however_it_is_spelled(client: TestClient) -> None:
    body = {**shop_body(), "shop_domain": "Snow.Shops.example"}
    assert send_webhook(client, Topic.SHOP_REDACT, body, "SNOW.shops.EXAMPLE.").status_code == 204
    assert [line.shop_domain for line in compliance_requests.list_all()] == [SHOP]


FINISH: Final = "UPDATE compliance_requests SET status = 'done', result = 'redacted', next_run_at = NULL, finished_at = ?, \
subject_sealed = NULL"


@pytest.mark.parametrize("topic", [Topic.DATA_REQUEST, Topic.CUSTOMER_REDACT])
def test_a_repeated_request_of_a_person_is_new_two_days_after_the_first_was_completed(
    client: TestClient, topic: Topic
) -> None:
    with freeze_time(NOW):
        assert send_webhook(client, topic, GOOD[topic]).status_code == 204
    execute(FINISH, (to_ms(NOW),))
    with freeze_time(NOW + timedelta(days=2)):
        assert send_webhook(client, topic, GOOD[topic]).status_code == 204
        assert count() == 1
    with freeze_time(NOW + timedelta(days=2, seconds=1)):
        assert send_webhook(client, topic, GOOD[topic]).status_code == 204
    assert [line.status for line in compliance_requests.list_all()] == ["received", "done"]


@pytest.mark.parametrize("days", [1, 3, 4000])
def test_a_replayed_erasure_of_a_shop_does_nothing_however_late(
    client: TestClient, wake_ups: FakeWakeUpQueue, days: int
) -> None:
    with freeze_time(NOW):
        assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    execute(FINISH, (to_ms(NOW),))
    with freeze_time(NOW + timedelta(days=days)):
        list(retention.purge(retention.cutoffs(utc_now(), timedelta(days=1), timedelta(days=1))))
        assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    assert ([line.status for line in compliance_requests.list_all()], wake_ups.notifications) == (["done"], 1)


@pytest.mark.parametrize(
    ("days", "is_back", "query"), [(1, True, ""), (3, False, ""), (3, True, "dry_run=true"), (3, True, "")]
)
def test_an_ignored_erasure_of_a_shop_that_has_data_again_is_logged(
    client: TestClient, customer: Customer, caplog: pytest.LogCaptureFixture, days: int, is_back: bool, query: str
) -> None:
    with freeze_time(NOW):
        assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    execute(FINISH, (to_ms(NOW),))
    if is_back:
        execute("UPDATE projects SET shop_domain = ? WHERE id = ?", (SHOP, customer.project_id))
    with freeze_time(NOW + timedelta(days=days)):
        assert send_webhook(client, Topic.SHOP_REDACT, shop_body(), query=query).status_code in {200, 204}
    is_reported = is_back and days > 2 and not query
    [request] = compliance_requests.list_all()
    entries = rows("SELECT subject_id FROM audit_entries WHERE action = 'ignore_compliance_request'")
    assert (request.status, entries) == ("done", [(request.id,)] if is_reported else [])
    assert (f"run: compliance repeat {request.id}" in caplog.text) is is_reported


@pytest.mark.parametrize("query", ["", "dry_run=true"])
@pytest.mark.parametrize("days", [0, 400])
@pytest.mark.parametrize("first", [Topic.DATA_REQUEST, Topic.CUSTOMER_REDACT])
def test_a_body_is_accepted_for_one_topic_only(client: TestClient, first: Topic, days: int, query: str) -> None:
    # The body names no order, so it is valid for both topics; the signature does not cover the header with the topic.
    body = {"shop_domain": SHOP, "customer": ADA.body}
    [second] = {Topic.DATA_REQUEST, Topic.CUSTOMER_REDACT} - {first}
    with freeze_time(NOW):
        assert send_webhook(client, first, body).status_code == 204
    if days:
        execute(FINISH, (to_ms(NOW),))
    with freeze_time(NOW + timedelta(days=days)):
        answer = send_webhook(client, second, body, query=query)
        expected = (FieldRefusal("/X-Platform-Topic", "body_of_other_topic"),)
        assert_is_error(answer, 422, "VALIDATION_FAILED", expected)
    assert [line.topic for line in compliance_requests.list_all()] == [first]


# --- the signature


def digest(body: bytes, secret: str = SECRET) -> bytes:
    return hmac.digest(secret.encode(), body, hashlib.sha256)


#: Accepted values of the header, made from the body's digest: base64 as platforms send it, with spaces, and hex.
FORMS: Final[dict[str, Callable[[bytes], str]]] = {
    "base64": lambda made: base64.b64encode(made).decode(),
    "base64 with blanks around": lambda made: f"  {base64.b64encode(made).decode()} ",
    "hex": lambda made: made.hex(),
    "upper-case hex": lambda made: made.hex().upper(),
}
#: Refused values: the same digest in other forms, and other digests.
WRONG_FORMS: Final[dict[str, Callable[[bytes], str]]] = {
    "base64 without padding": lambda made: base64.b64encode(made).decode().rstrip("="),
    "base64 of the hex": lambda made: base64.b64encode(made.hex().encode()).decode(),
    "with the scheme in front": lambda made: f"sha256={made.hex()}",
    "hex with a digit less": lambda made: made.hex()[:-1],
    "hex with a digit more": lambda made: f"{made.hex()}0",
    "half of it": lambda made: base64.b64encode(made[:16]).decode(),
    "with junk inside": lambda made: "!" + base64.b64encode(made).decode(),
    "one bit off": lambda made: base64.b64encode(bytes([made[0] ^ 1, *made[1:]])).decode(),
    "not ASCII": lambda made: "é" + base64.b64encode(made).decode(),
    "digits of another script": lambda _: "٣" * 64,
    "nothing of it": lambda _: "x",
}


def signed_with(client: TestClient, header: str | None, topic: str = Topic.SHOP_REDACT) -> Result:
    headers = {"X-Platform-Topic": topic, "X-Platform-Shop-Domain": SHOP, "Content-Type": "application/json"}
    if header is not None:
        headers["X-Platform-Hmac-Sha256"] = header.encode().decode("latin-1")
    return client.simulate_post(WEBHOOKS, body=json.dumps(shop_body()).encode(), headers=headers)


@pytest.mark.parametrize("form", FORMS)
def test_a_signature_may_be_written_in_base64_or_hex(form: str, client: TestClient) -> None:
    answer = signed_with(client, FORMS[form](digest(json.dumps(shop_body()).encode())))
    assert (answer.status_code, count()) == (204, 1)


@pytest.mark.parametrize("form", WRONG_FORMS)
def test_a_signature_in_another_form_is_refused(form: str, client: TestClient) -> None:
    answer = signed_with(client, WRONG_FORMS[form](digest(json.dumps(shop_body()).encode())))
    assert_is_error(answer, 401, "SIGNATURE_INVALID")
    assert "www-authenticate" not in answer.headers
    assert count() == 0


@pytest.mark.parametrize("header", [None, "", "  "])
def test_a_missing_signature_is_refused_under_its_own_code(header: str | None, client: TestClient) -> None:
    assert_is_error(signed_with(client, header), 401, "UNAUTHORIZED")
    assert count() == 0


def test_a_repeated_signature_is_refused_although_both_match(client: TestClient) -> None:
    good = signature(json.dumps(shop_body()).encode())
    assert_is_error(signed_with(client, f"{good},{good}"), 401, "UNAUTHORIZED")
    assert count() == 0


def test_a_tampered_body_is_refused(client: TestClient) -> None:
    raw = json.dumps(redact_body(ADA)).encode()
    for tampered in (raw + b" ", raw.replace(b"88191167", b"88191168"), raw[:-1], b""):
        answer = send_webhook(client, Topic.CUSTOMER_REDACT, tampered, X_Platform_Hmac_Sha256=signature(raw))
        assert_is_error(answer, 401, "SIGNATURE_INVALID")
    assert count() == 0


def test_no_token_and_no_other_secret_replaces_the_signature(client: TestClient, customer: Customer) -> None:
    raw = json.dumps(shop_body()).encode()
    bearer = f"Bearer {make_platform_token(customer)}"
    assert_is_error(
        client.simulate_post(
            WEBHOOKS,
            body=raw,
            headers={
                "Authorization": bearer,
                "X-Scanner-Secret": SCANNER_SECRET,
                "X-Platform-Topic": "shop/redact",
                "X-Platform-Shop-Domain": SHOP,
                "Content-Type": "application/json",
            },
        ),
        401,
        "UNAUTHORIZED",
    )
    for other in (SCANNER_SECRET, CLOUD["EMAIL_WEBHOOK_SECRET"], "webhook-secret-for-tests", ""):
        wrong = signature(raw, other) if other else SECRET
        answer = send_webhook(client, Topic.SHOP_REDACT, raw, X_Platform_Hmac_Sha256=wrong, Authorization=bearer)
        assert_is_error(answer, 401, "SIGNATURE_INVALID")
    assert count() == 0


def test_a_rotated_secret_replaces_the_old_secret_at_once(client: TestClient, tmp_path: Path, vault: Vault) -> None:
    secrets = SharedSecrets(make_settings(tmp_path, CLOUD), vault)
    assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    secrets.set(Integration.STOREFRONT, "rotated", utc_now())
    raw = json.dumps(redact_body(ADA)).encode()
    assert_is_error(send_webhook(client, Topic.CUSTOMER_REDACT, raw), 401, "SIGNATURE_INVALID")
    rotated = signature(raw, "rotated")
    assert send_webhook(client, Topic.CUSTOMER_REDACT, raw, X_Platform_Hmac_Sha256=rotated).status_code == 204
    assert count() == 2


def test_without_a_secret_every_webhook_is_refused_and_nothing_is_stored(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {**CLOUD, "STOREFRONT_WEBHOOK_SECRET": ""})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    for answer in (
        send_webhook(client, Topic.SHOP_REDACT, shop_body()),
        signed_with(client, None),
        send_webhook(client, "orders/create", b"{", X_Platform_Hmac_Sha256=signature(b"{", "")),
    ):
        assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
        assert answer.json["error"]["message"] == "Service unavailable"
        assert int(answer.headers["retry-after"]) > 0
    assert count() == 0


def test_a_request_that_cannot_be_encrypted_is_refused_and_not_stored(
    customer: Customer, tmp_path: Path, log_lines: LogLines
) -> None:
    settings = make_settings(tmp_path, {**CLOUD, "ENCRYPTION_KEYS": "", "WEBHOOK_SECRET": ""})
    wake_ups = FakeWakeUpQueue()
    client = TestClient(create_app(settings, wake_ups, FakeResolver({})))
    for topic in (Topic.CUSTOMER_REDACT, Topic.DATA_REQUEST):
        assert_is_error(send_webhook(client, topic, GOOD[topic]), 503, "SERVICE_UNAVAILABLE")
    assert (count(), wake_ups.notifications) == (0, 0)
    assert "compliance webhooks need this installation's ENCRYPTION_KEYS" in log_lines.text
    # A request about a shop names no person, so there is nothing to encrypt.
    assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204


def test_a_request_is_not_encrypted_with_a_key_of_another_installation(
    customer: Customer, tmp_path: Path, log_lines: LogLines
) -> None:
    check_keys(Vault([b"B" * 32]), NOW)
    wake_ups = FakeWakeUpQueue()
    client = TestClient(create_app(make_settings(tmp_path, CLOUD), wake_ups, FakeResolver({})))
    assert_is_error(send_webhook(client, Topic.CUSTOMER_REDACT, GOOD[Topic.CUSTOMER_REDACT]), 503, "SERVICE_UNAVAILABLE")
    assert (count(), wake_ups.notifications) == (0, 0)
    assert "compliance webhooks need this installation's ENCRYPTION_KEYS" in log_lines.text


def test_the_platforms_own_vector_matches() -> None:
    for vector in corpus("webhooks/shopify-hmac-vector.json"):
        body, secret, sent = vector["raw_body"].encode(), vector["secret"].encode(), vector["hmac_base64"]
        assert is_signed(body, sent, secret)
        assert is_signed(body, base64.b64decode(sent).hex(), secret)
        assert not is_signed(body + b"\n", sent, secret)
        assert not is_signed(body, sent, secret + b"\n")


def test_the_signatures_of_wycheproof_are_verified_as_documented() -> None:
    groups = corpus("webhooks/wycheproof_hmac_sha256.json")["testGroups"]
    judged = [(each["result"] == "valid" and group["tagSize"] == 256, each) for group in groups for each in group["tests"]]
    assert sum(is_good for is_good, _ in judged) > 20
    assert sum(not is_good for is_good, _ in judged) > 100
    for is_good, each in judged:
        key, message, tag = (bytes.fromhex(each[name]) for name in ("key", "msg", "tag"))
        for written in (base64.b64encode(tag).decode(), tag.hex()):
            assert is_signed(message, written, key) is is_good, each["tcId"]


# --- the headers


@pytest.mark.parametrize(
    "topic",
    [
        "orders/create",
        "Customers/Redact",
        "customers/redact,customers/redact",  # WSGI joins repeated headers
        "customers/redact, shop/redact",
        "shop/redact/",
        "é",
    ],
)
def test_another_topic_is_refused(topic: str, client: TestClient) -> None:
    answer = send_webhook(client, topic, redact_body(ADA))
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/X-Platform-Topic", "not_allowed"),))
    [problem] = answer.json["error"]["details"]["fields"]
    assert problem["message"].endswith(" allowed values: customers/data_request, customers/redact, shop/redact.")
    assert count() == 0


@pytest.mark.parametrize(
    "shop",
    ["shop", "https://snow.shops.example", "snow.shops.example/", "127.0.0.1", f"{SHOP},{SHOP}", "a b.example", "é@x.de"],
)
def test_a_header_that_names_no_shop_is_refused(shop: str, client: TestClient) -> None:
    answer = send_webhook(client, Topic.SHOP_REDACT, shop_body(), shop)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/X-Platform-Shop-Domain", "invalid_shop_domain"),))
    assert count() == 0


def test_both_missing_headers_are_reported_together_before_the_body_is_read(client: TestClient) -> None:
    raw = b"{not json"
    headers = {"X-Platform-Hmac-Sha256": signature(raw), "Content-Type": "application/json"}
    answer = client.simulate_post(WEBHOOKS, body=raw, headers=headers)
    refused = (FieldRefusal("/X-Platform-Topic", "required"), FieldRefusal("/X-Platform-Shop-Domain", "required"))
    assert_is_error(answer, 422, "VALIDATION_FAILED", refused)


def test_the_signature_is_checked_before_the_headers(client: TestClient) -> None:
    answer = send_webhook(client, "orders/create", shop_body(), "no shop", X_Platform_Hmac_Sha256="x")
    assert_is_error(answer, 401, "SIGNATURE_INVALID")


# --- the body


def changed(body: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {name: value for name, value in {**body, **members}.items() if value is not ...}


DATA, REDACT, SHOPS = (GOOD[topic] for topic in (Topic.DATA_REQUEST, Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT))

#: Columns: topic; body; paths and codes of the errors.
REFUSED: Final[list[tuple[str, Any, set[tuple[str, str]]]]] = [
    # A captured body is invalid for another topic.
    (Topic.CUSTOMER_REDACT, DATA, {("/orders_requested", "other_topic"), ("/data_request", "other_topic")}),
    (Topic.CUSTOMER_REDACT, changed(DATA, orders_requested=...), {("/data_request", "other_topic")}),
    (Topic.DATA_REQUEST, REDACT, {("/orders_to_redact", "other_topic")}),
    (Topic.SHOP_REDACT, REDACT, {("/customer", "other_topic"), ("/orders_to_redact", "other_topic")}),
    (Topic.SHOP_REDACT, changed(SHOPS, data_request={}), {("/data_request", "other_topic")}),
    (Topic.CUSTOMER_REDACT, SHOPS, {("/customer", "required")}),
    (Topic.DATA_REQUEST, SHOPS, {("/customer", "required")}),
    # Invalid for another shop, too.
    (Topic.SHOP_REDACT, shop_body("sun.shops.example"), {("/shop_domain", "not_the_headers_shop")}),
    (Topic.SHOP_REDACT, changed(SHOPS, shop_domain="no shop"), {("/shop_domain", "not_the_headers_shop")}),
    (Topic.SHOP_REDACT, changed(SHOPS, shop_domain=...), {("/shop_domain", "required")}),
    (Topic.SHOP_REDACT, changed(SHOPS, shop_domain=None), {("/shop_domain", "null")}),
    # No person is named.
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={}, orders_to_redact=[]), {("/customer", "required")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"email": " "}, orders_to_redact=[]), {("/customer", "required")}),
    # Members of the wrong type.
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer="Ada"), {("/customer", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": 1.5}), {("/customer/id", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": True}), {("/customer/id", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": -1}), {("/customer/id", "out_of_range")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": 2**63}), {("/customer/id", "out_of_range")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": " "}), {("/customer/id", "too_short")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": "9" * 256}), {("/customer/id", "too_long")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"email": 1}), {("/customer/email", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"phone": ["1"]}), {("/customer/phone", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, orders_to_redact=7), {("/orders_to_redact", "invalid_type")}),
    (Topic.CUSTOMER_REDACT, changed(REDACT, orders_to_redact=[7, None]), {("/orders_to_redact/1", "null")}),
    (Topic.DATA_REQUEST, changed(DATA, data_request=9999), {("/data_request", "invalid_type")}),
    (Topic.SHOP_REDACT, [], {("", "invalid_type")}),
    (Topic.SHOP_REDACT, b"{not json", {("", "malformed_json")}),
    (Topic.SHOP_REDACT, b"", {("", "malformed_json")}),
]


@pytest.mark.parametrize(("topic", "body", "refused"), REFUSED)
def test_an_invalid_body_is_refused_and_neither_stored_nor_logged(
    topic: str, body: Any, refused: set[tuple[str, str]], client: TestClient, log_lines: LogLines
) -> None:
    answer = send_webhook(client, topic, body)
    assert_is_error(answer, 422, "VALIDATION_FAILED", tuple(FieldRefusal(*each) for each in refused))
    assert count() == 0
    assert traces_of(ADA, (answer.text + log_lines.text).lower()) == []


#: Columns: topic; body; ID, email address and phone number of the person.
ACCEPTED: Final[list[tuple[str, dict[str, Any], tuple[Any, ...]]]] = [
    # Unknown members are ignored, because platforms add some.
    (
        Topic.CUSTOMER_REDACT,
        changed(REDACT, extra={"a": [1]}, customer={"email": "a@b.c", "tags": []}),
        (None, "a@b.c", None),
    ),
    (
        Topic.CUSTOMER_REDACT,
        changed(REDACT, customer={"id": "gid://x/Customer/1", "email": None}),
        ("gid://x/Customer/1", None, None),
    ),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": 0, "phone": " +1 5 "}), ("0", None, "+1 5")),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer=None), (None, None, None)),  # only orders
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": 7}, orders_to_redact=None), ("7", None, None)),
    (Topic.CUSTOMER_REDACT, changed(REDACT, customer={"id": 7}, orders_to_redact=..., data_request=None), ("7", None, None)),
    (Topic.DATA_REQUEST, changed(DATA, orders_requested=..., customer={"phone": "7"}), (None, None, "7")),
]


@pytest.mark.parametrize(("topic", "body", "subject"), ACCEPTED)
def test_a_body_may_omit_members_or_have_additional_ones(
    topic: str, body: dict[str, Any], subject: tuple[Any, ...], client: TestClient, vault: Vault
) -> None:
    answer = send_webhook(client, topic, body)
    assert answer.status_code == 204, answer.text
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    found = compliance_requests.subject_of(held, vault)
    assert (found.customer_id, found.email, found.phone) == subject


def test_a_customers_orders_and_address_are_no_forbidden_content_here(client: TestClient) -> None:
    person = {**ADA.body, "billing_address": {"zip": "1"}, "name": "Ada", "card_number": "4242424242424242"}
    body = {**redact_body(ADA), "customer": person, "line_items": [{"total": 1}]}
    assert send_webhook(client, Topic.CUSTOMER_REDACT, body).status_code == 204
    assert "4242424242424242" not in stored()


def test_a_body_without_a_content_type_is_accepted_and_one_of_another_type_is_not(client: TestClient) -> None:
    raw = json.dumps(shop_body()).encode()
    headers = {"X-Platform-Hmac-Sha256": signature(raw), "X-Platform-Topic": "shop/redact", "X-Platform-Shop-Domain": SHOP}
    assert_is_error(
        client.simulate_post(WEBHOOKS, body=raw, headers={**headers, "Content-Type": "text/plain"}),
        415,
        "UNSUPPORTED_MEDIA_TYPE",
    )
    assert client.simulate_post(WEBHOOKS, body=raw, headers=headers).status_code == 204


def test_a_body_over_the_cap_is_refused_before_it_is_hashed(client: TestClient) -> None:
    answer = send_webhook(client, Topic.SHOP_REDACT, b" " * (1024 * 1024 + 1))
    assert_is_error(answer, 413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize("mode", ["self-hosted", "webhook-only"])
def test_only_cloud_mode_has_the_compliance_route(mode: str, customer: Customer, tmp_path: Path) -> None:
    client = TestClient(
        create_app(make_settings(tmp_path, {**CLOUD, "DEPLOYMENT_MODE": mode}), FakeWakeUpQueue(), FakeResolver({}))
    )
    assert_is_error(send_webhook(client, Topic.SHOP_REDACT, shop_body()), 404, "NOT_FOUND")
    assert count() == 0


def test_a_request_is_stored_even_if_its_wake_up_fails(client: TestClient, wake_ups: FakeWakeUpQueue) -> None:
    wake_ups.is_connected = False
    assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    assert compliance_requests.count_waiting(utc_now()) == 1
