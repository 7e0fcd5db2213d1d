"""The interface specification, statement by statement: sections 2 to 8, one row each, on both databases.

A row quotes a statement of the specification, and fails if it is not true. Statements about deliveries are tested with the
real dispatcher and a receiver on loopback.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.settings.definitions import Settings
from service.app import create_app
from storage.accounts import accounts, projects, tokens
from storage.db.engine import execute, rows
from storage.db.shared_clock import SharedClock
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.support.factories import LOOPBACK, SCANNER_SECRET, WEBHOOK_SECRET, Customer, issue, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue, LoopbackServer, Peer, ReceivedRequest
from tests.support.http.raw_http import TARGETS, assert_is_error, everything_stored, schedule_retry
from tests.support.http.specification import (
    ABSENT,
    CAPTURES,
    CMS,
    COMPLIANCE,
    EMAIL_SECRET,
    SHOP,
    STOREFRONT,
    CloudInstallation,
    everything,
    make_world,
    signed,
    with_header,
)
from tests.support.processes.workers import wait_until
from worker.composition import compose_client, compose_dispatcher
from worker.delivery.dispatcher import Dispatcher
from worker.metrics import Attempts

Check = Callable[[CloudInstallation], None]


@dataclass(frozen=True, slots=True)
class SpecificationStatement:
    """A statement of the specification, and its check."""

    section: str
    says: str
    check: Check


@pytest.fixture
def world(customer: Customer, tmp_path: Path) -> CloudInstallation:
    """An installation with every feature enabled and every secret set."""
    settings = make_settings(tmp_path, {**everything(customer), **LOOPBACK})
    wake_ups = FakeWakeUpQueue()
    resolver = FakeResolver({"tracker.example.com": ["93.184.215.14"], "inside.example.com": ["10.0.0.1"]})
    return make_world(settings, TestClient(create_app(settings, wake_ups, resolver)), wake_ups, customer)


# --- checks of rows


def composed(settings: Settings) -> Dispatcher:
    client = compose_client(settings, settings.worker_concurrency)
    return compose_dispatcher(settings, SharedClock(utc_now), client, Attempts())


def takes(endpoint: int, expected: int, /, **members: Any) -> Check:
    """Check that the request is accepted with these members."""

    def check(world: CloudInstallation) -> None:
        answer = world.send(endpoint, **members)
        assert answer.status_code == expected, answer.text

    return check


def refuses(endpoint: int, at: str, /, **members: Any) -> Check:
    """Check that the request with these members is refused at `at`, and nothing is stored."""

    def check(world: CloudInstallation) -> None:
        call, before = world.changed(endpoint, **members), everything_stored()
        answer = call.send(world.client)
        assert answer.status_code == 422, answer.text
        assert answer.json["error"]["code"] == "VALIDATION_FAILED"
        assert answer.json["error"]["message"] == "Validation failed"
        assert at in [each["path"] for each in answer.json["error"]["details"]["fields"]]
        assert everything_stored() == before

    return check


def fails(endpoint: int, status: int, code: str, *, without: str = "", **headers: str) -> Check:
    """Check that the request fails with other headers, and nothing is stored."""

    def check(world: CloudInstallation) -> None:
        call, before = world.call(endpoint), everything_stored()
        call = call.without(without) if without else call
        for name, value in headers.items():
            call = with_header(call, name.replace("_", "-"), value)
        assert_is_error(call.send(world.client), status, code)
        assert everything_stored() == before

    return check


def keeps(endpoint: int, record: str, *names: str) -> Check:
    """Check that these members are returned in the record of the response."""

    def check(world: CloudInstallation) -> None:
        sent = json.loads(world.call(endpoint).body)
        kept = world.send(endpoint).json[record]
        for name in names:
            there, here = _at(kept, name), _at(sent, name)
            if isinstance(here, str) and here.endswith("Z"):
                there, here = there.rstrip("Z").split(".")[0], here.rstrip("Z")
            assert there == here, name

    return check


def all_of(*checks: Check) -> Check:
    """Check all of these, one after the other."""

    def check(world: CloudInstallation) -> None:
        for each in checks:
            each(world)

    return check


def lacks_ability(endpoint: int, needed: Ability, other: Ability) -> Check:
    """Check that a token without the route's ability is FORBIDDEN."""

    def check(world: CloudInstallation) -> None:
        kind = TokenKind.PLATFORM if endpoint in {6, 7, 8} else TokenKind.API
        poor = tokens.create(world.customer.email, kind, utc_now(), [other])[1]
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {poor}")
        answer = call.send(world.client)
        assert_is_error(answer, 403, "FORBIDDEN")
        assert needed.value in answer.json["error"]["message"]

    return check


def _at(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = record[name]
    return record


def _stored_once(table: str) -> Callable[[CloudInstallation], int]:
    return lambda _world: int(rows(f"SELECT COUNT(*) FROM {table}")[0][0])  # noqa: S608 - our own names


def repeats(endpoint: int, table: str) -> Check:
    """Check that a repeat with the same key does no work and gets the first response."""

    def check(world: CloudInstallation) -> None:
        count = _stored_once(table)
        keyed = world.call(endpoint).plus(("Idempotency-Key", "one-logical-request"))
        first = keyed.send(world.client)
        assert first.status_code < 300, first.text
        after = count(world)
        again = keyed.send(world.client)
        assert (again.status_code, again.json) == (first.status_code, first.json)
        assert again.headers["idempotency-replayed"] == "true"
        assert count(world) == after

    return check


def conflicts(endpoint: int, /, **members: Any) -> Check:
    """Check that the same key with another payload is a conflict."""

    def check(world: CloudInstallation) -> None:
        key = ("Idempotency-Key", "one-logical-request")
        assert world.call(endpoint).plus(key).send(world.client).status_code < 300
        assert_is_error(world.changed(endpoint, **members).plus(key).send(world.client), 409, "IDEMPOTENCY_CONFLICT")

    return check


# --- deliveries


class RecordingReceiver:
    """A receiver on loopback that stores its requests and responds as configured."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers) or [(202, b"{}")]
        self.got: list[ReceivedRequest] = []

    def behave(self, peer: Peer) -> None:
        while request := peer.read():
            self.got.append(request)
            status, body = self.answers[min(len(self.got), len(self.answers)) - 1]
            peer.answer(status, body)


@contextmanager
def delivering(world: CloudInstallation, receiver: RecordingReceiver) -> Iterator[str]:
    """Approve the world's export for the receiver and deliver it; yield the export's ID."""
    dispatcher = composed(world.settings)
    with LoopbackServer(receiver.behave) as server:
        target = world.send(3, base_url=server.url()).json["id"]
        dispatcher.start()
        try:
            answer = world.send(4, target_id=target)
            assert answer.status_code == 202, answer.text
            dispatcher.deliver_due()
            wait_until(lambda: world.status()["status"] not in {"approved", "delivering"})
            yield world.export_id
        finally:
            dispatcher.stop()
            assert dispatcher.join(10)


def ends_as(status: str, *answers: tuple[int, bytes], error_code: str | None = None) -> Check:
    """Check that a delivery with these responses ends with this status."""

    def check(world: CloudInstallation) -> None:
        with delivering(world, RecordingReceiver(*answers)):
            record = world.status()
            assert record["status"] == status
            assert record["last_attempt"]["error_code"] == error_code

    return check


def signs_what_it_sends(world: CloudInstallation) -> None:
    receiver = RecordingReceiver()
    with delivering(world, receiver):
        [request] = receiver.got
    timestamp, nonce = request.headers["x-service-timestamp"], request.headers["x-service-nonce"]
    message = f"{timestamp}.{nonce}.".encode() + request.body
    expected = "sha256=" + hmac.new(WEBHOOK_SECRET.encode(), message, hashlib.sha256).hexdigest()
    assert request.headers["x-service-signature"] == expected


def emits_only_after_approval(world: CloudInstallation) -> None:
    receiver, dispatcher = RecordingReceiver(), composed(world.settings)
    with LoopbackServer(receiver.behave) as server:
        world.send(3, base_url=server.url())
        dispatcher.start()
        dispatcher.deliver_due()
        dispatcher.stop()
        assert dispatcher.join(10)
    assert receiver.got == []
    signs_what_it_sends(world)


def polling_creates_nothing(world: CloudInstallation) -> None:
    receiver = RecordingReceiver((503, b"{}"))
    with delivering(world, receiver):
        before = everything_stored()
        assert [world.status()["status"] for _ in range(5)] == ["retry_scheduled"] * 5
        assert len(receiver.got) == 1
        assert everything_stored() == before


# --- rows that need more than one line


def retry_after_seconds(world: CloudInstallation) -> None:
    assert "retry_after_seconds" not in world.status()
    world.send(4)
    schedule_retry(world.export_id, 30)
    record = world.status()
    assert record["status"] == "retry_scheduled"
    assert 28 <= record["retry_after_seconds"] <= 30


def approval_needs_an_active_target(world: CloudInstallation) -> None:
    turned = world.client.simulate_post(f"{TARGETS}/{world.target_id}/disable", headers=world.customer.bearer)
    assert turned.status_code == 200, turned.text
    refuses(4, "/target_id")(world)


def approval_needs_a_safe_preview(world: CloudInstallation) -> None:
    planted = '[{"path": "/description", "code": "card_number", "message": "m"}]'
    assert execute("UPDATE exports SET preview_problems = ? WHERE id = ?", (planted, world.export_id)) == 1
    assert world.status()["preview"] == {"safe": False, "problems": json.loads(planted)}
    refuses(4, "")(world)


def account_must_be_allowed(world: CloudInstallation) -> None:
    poor = make_customer(may_use_webhooks=False)
    call = with_header(world.call(3), "Authorization", f"Bearer {poor.token}")
    assert_is_error(call.send(world.client), 403, "FORBIDDEN")


def others_ids_are_not_found(world: CloudInstallation) -> None:
    for endpoint in (4, 5):
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {world.other.token}")
        assert_is_error(call.send(world.client), 404, "NOT_FOUND")
    refuses(4, "/target_id", target_id="tgt_01J00000000000000000000000")(world)


def only_what_the_user_manages(world: CloudInstallation) -> None:
    abilities = (Ability.UPLOAD_EVIDENCE, Ability.UPLOAD_CMS_DIAGNOSTICS, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS)
    colleague = accounts.add_user("colleague@example.com", world.customer.account_id, utc_now())
    token = tokens.create(colleague.email, TokenKind.PLATFORM, utc_now(), abilities)[1]
    for endpoint in (6, 7, 8):
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {token}")
        assert_is_error(call.send(world.client), 403, "FORBIDDEN")
        assert_is_error(world.send(endpoint, project_id=world.other.project_id, report_id=ABSENT), 403, "FORBIDDEN")
    accounts.grant_report(colleague.email, world.report_id, utc_now())
    for endpoint in (6, 7, 8):
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {token}")
        assert call.send(world.client).status_code == 201
        no_report = with_header(world.changed(endpoint, report_id=ABSENT), "Authorization", f"Bearer {token}")
        assert_is_error(no_report.send(world.client), 403, "FORBIDDEN")


def uploads_name_their_project(world: CloudInstallation) -> None:
    for endpoint in (6, 7, 8):
        refuses(endpoint, "/project_id", project_id=ABSENT)(world)
        assert world.send(endpoint, report_id=ABSENT).status_code == 201
        refuses(endpoint, "/report_id", report_id=world.other_report_id)(world)


def kinds_do_not_stand_in(world: CloudInstallation) -> None:
    for endpoint in (3, 4, 5):
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {world.platform_token}")
        assert_is_error(call.send(world.client), 403, "FORBIDDEN")
    for endpoint in (6, 7, 8):
        call = with_header(world.call(endpoint), "Authorization", f"Bearer {world.customer.token}")
        assert_is_error(call.send(world.client), 403, "FORBIDDEN")


def secrets_do_not_stand_in(world: CloudInstallation) -> None:
    shared = {"X-Scanner-Secret": SCANNER_SECRET, "X-Email-Webhook-Secret": EMAIL_SECRET}
    for endpoint, name, wrong in ((1, "X-Scanner-Secret", EMAIL_SECRET), (2, "X-Email-Webhook-Secret", SCANNER_SECRET)):
        assert_is_error(with_header(world.call(endpoint), name, wrong).send(world.client), 401, "UNAUTHORIZED")
        bearer = world.call(endpoint).without(name).plus(*world.customer.bearer.items())
        assert_is_error(bearer.send(world.client), 401, "UNAUTHORIZED")
    for endpoint in range(3, 9):
        call = world.call(endpoint).without("Authorization").plus(*shared.items())
        assert_is_error(call.send(world.client), 401, "UNAUTHORIZED")
    unsigned = world.call(9).without("X-Platform-Hmac-Sha256").plus(("Authorization", f"Bearer {world.platform_token}"))
    assert_is_error(unsigned.send(world.client), 401, "UNAUTHORIZED")


def tokens_count_in_their_header_alone(world: CloudInstallation) -> None:
    for endpoint in (3, 4, 5, 6, 7, 8):
        call = world.call(endpoint).without("Authorization")
        asked = world.client.simulate_request(
            call.method,
            call.path,
            headers=dict(call.headers),
            body=call.body or None,
            query_string=f"token={world.customer.token}&access_token={world.customer.token}",
        )
        assert_is_error(asked, 401, "UNAUTHORIZED")


def rotation_stops_the_old_secret(world: CloudInstallation) -> None:
    shared = SharedSecrets(world.settings, Vault(world.settings.encryption_keys))
    for endpoint, integration, name in (
        (1, Integration.SCANNER, "X-Scanner-Secret"),
        (2, Integration.EMAIL, "X-Email-Webhook-Secret"),
    ):
        assert world.send(endpoint).status_code == 202
        shared.set(integration, "rotated", utc_now())
        assert_is_error(world.send(endpoint), 401, "UNAUTHORIZED")
        assert with_header(world.call(endpoint), name, "rotated").send(world.client).status_code == 202
    assert world.send(9).status_code == 204
    shared.set(Integration.STOREFRONT, "rotated", utc_now())
    assert_is_error(world.send(9), 401, "SIGNATURE_INVALID")
    assert signed(world.call(9), "rotated").send(world.client).status_code == 204


def not_configured_is_unauthorized(world: CloudInstallation) -> None:
    bare = make_settings(world.settings.data_dir, {"DEPLOYMENT_MODE": "cloud", "SCANNER_SHARED_SECRET": ""})
    client = TestClient(create_app(bare, FakeWakeUpQueue(), FakeResolver({})))
    for endpoint in (1, 2):
        assert_is_error(world.call(endpoint).send(client), 401, "UNAUTHORIZED")
        empty = {1: "X-Scanner-Secret", 2: "X-Email-Webhook-Secret"}[endpoint]
        assert_is_error(with_header(world.call(endpoint), empty, "").send(client), 401, "UNAUTHORIZED")


def compliance_fails_closed(world: CloudInstallation) -> None:
    bare = make_settings(world.settings.data_dir, {"DEPLOYMENT_MODE": "cloud"})
    client = TestClient(create_app(bare, FakeWakeUpQueue(), FakeResolver({})))
    before = everything_stored()
    answer = world.call(9).send(client)
    assert_is_error(answer, 503, "SERVICE_UNAVAILABLE")
    assert answer.json["error"]["message"] == "Service unavailable"
    assert everything_stored() == before


def signature_comes_before_everything(world: CloudInstallation) -> None:
    before = everything_stored()
    tampered = world.call(9)
    for call in (
        tampered.with_json({**json.loads(tampered.body), "shop_id": 1}),
        with_header(tampered, "X-Platform-Hmac-Sha256", "bm90IHRoZSBzaWduYXR1cmU="),
        with_header(with_header(tampered, "X-Platform-Hmac-Sha256", "x"), "X-Platform-Topic", "orders/create"),
        tampered.with_json({}).without("Content-Type"),
    ):
        assert_is_error(call.send(world.client), 401, "SIGNATURE_INVALID")
    assert everything_stored() == before


def compliance_topics(world: CloudInstallation) -> None:
    before = everything_stored()
    for topic in ("orders/create", "customers/Redact", "customers/redact/", ""):
        answer = with_header(world.call(9), "X-Platform-Topic", topic).send(world.client)
        assert answer.status_code == 422, topic
        assert answer.json["error"]["code"] == "VALIDATION_FAILED"
    assert everything_stored() == before


def every_compliance_topic_is_taken(world: CloudInstallation) -> None:
    shop = {"shop_id": 1, "shop_domain": SHOP}
    person = {**shop, "customer": {"id": 1, "email": "john@mail.example", "phone": "555-625-1199"}}
    bodies = {
        "customers/data_request": {**person, "orders_requested": [1], "data_request": {"id": 9}},
        "customers/redact": {**person, "orders_to_redact": [1]},
        "shop/redact": shop,
    }
    for topic, body in bodies.items():
        answer = with_header(signed(world.call(9).with_json(body)), "X-Platform-Topic", topic).send(world.client)
        assert (answer.status_code, answer.content) == (204, b""), topic
    assert sorted(rows("SELECT topic FROM compliance_requests")) == sorted((topic,) for topic in bodies)


def compliance_needs_its_headers(world: CloudInstallation) -> None:
    for name in ("X-Platform-Topic", "X-Platform-Shop-Domain"):
        answer = world.call(9).without(name).send(world.client)
        assert answer.status_code == 422
        assert answer.json["error"]["details"]["fields"][0]["path"] == f"/{name}"
    answer = with_header(world.call(9), "X-Platform-Shop-Domain", "not a shop").send(world.client)
    assert answer.status_code == 422


def forbidden_payloads(world: CloudInstallation) -> None:
    for endpoint, where in ((6, "page_title"), (6, "selected_text"), (7, "diagnostics"), (8, "diagnostics")):
        for name, value in FORBIDDEN.items():
            before = everything_stored()
            call = world.call(endpoint)
            body = json.loads(call.body)
            if where == "diagnostics":
                body["diagnostics"]["active_theme" if endpoint == 7 else "published_theme_name"] = value
            else:
                body[where] = value
            answer = call.with_json(body).send(world.client)
            assert answer.status_code == 422, (endpoint, name, answer.text)
            assert answer.json["error"]["code"] == "VALIDATION_FAILED"
            assert value[:40] not in answer.text
            assert everything_stored() == before


def forbidden_members(world: CloudInstallation) -> None:
    for endpoint in (1, 6, 7, 8):
        for name in ("cookies", "local_storage", "password", "card_number", "line_items", "full_html", "database_dump"):
            before, call = everything_stored(), world.call(endpoint)
            answer = call.with_json({**json.loads(call.body), name: "x"}).send(world.client)
            assert answer.status_code == 422, (endpoint, name, answer.text)
            assert everything_stored() == before


#: One example of each kind that must be rejected: credentials, payment details, cookies, local storage, HTML, database
#: content.
FORBIDDEN: Final = {
    "credentials": "Authorization: Bearer 3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gun\n",
    "payment details": "Paid with 4111 1111 1111 1111 yesterday",
    "cookies": "Cookie: sessionid=3f9a8b7c6d5e4f3a2b1c; csrftoken=0d9e8f7a6b5c",
    "full HTML export": "<!DOCTYPE html><html><head><title>Cart</title></head><body><p>All of it</p></body></html>",
    "database content": "INSERT INTO `customers` (`id`, `email`) VALUES (1, 'a@example.com'), (2, 'b@example.com');",
}


def secrets_are_not_echoed(world: CloudInstallation) -> None:
    canary = "cAnArY-4f1d9b"
    for endpoint, name in ((1, "X-Scanner-Secret"), (2, "X-Email-Webhook-Secret"), (9, "X-Platform-Hmac-Sha256")):
        answer = with_header(world.call(endpoint), name, canary).send(world.client)
        assert answer.status_code == 401
        assert canary not in answer.text + str(answer.headers)
    for endpoint in range(3, 9):
        answer = with_header(world.call(endpoint), "Authorization", f"Bearer {canary}").send(world.client)
        assert answer.status_code == 401
        assert canary not in answer.text + str(answer.headers)


def only_fingerprints_are_shown(world: CloudInstallation) -> None:
    created = world.send(3)
    listed = world.client.simulate_get(TARGETS, headers=world.customer.bearer)
    for answer in (created, listed):
        assert WEBHOOK_SECRET not in answer.text
    assert re.fullmatch("fp:[0-9a-f]{12}", created.json["secret"]["fingerprint"])
    assert created.json["connected"]["status"] == "unknown"
    assert created.json["last_validation"]["status"] == "passed"


def limits_requests(world: CloudInstallation) -> None:
    settings = make_settings(
        world.settings.data_dir, {"DEFAULT_PROJECT_ID": str(world.customer.project_id), "RATE_LIMIT_PER_MINUTE": "3"}
    )
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    assert [world.call(5).send(client).status_code for _ in range(3)] == [200] * 3
    answer = world.call(5).send(client)
    assert_is_error(answer, 429, "RATE_LIMITED")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def a_refusal_is_not_remembered(world: CloudInstallation) -> None:
    key = ("Idempotency-Key", "changed-after-a-refusal")
    assert world.changed(1, status="no such status").plus(key).send(world.client).status_code == 422
    assert world.call(1).plus(key).send(world.client).status_code == 202


def expired_tokens_stop(world: CloudInstallation) -> None:
    now = utc_now()
    expired = tokens.create(world.customer.email, TokenKind.API, now - timedelta(days=2), expires=timedelta(days=1))[1]
    row, revoked = tokens.create(world.customer.email, TokenKind.API, now)
    assert with_header(world.call(5), "Authorization", f"Bearer {revoked}").send(world.client).status_code == 200
    tokens.revoke(row.id, now)
    for token in (expired, revoked):
        call = with_header(world.call(5), "Authorization", f"Bearer {token}")
        assert_is_error(call.send(world.client), 401, "UNAUTHORIZED")


def route_names(world: CloudInstallation) -> None:
    described = world.client.simulate_get("/openapi.json").json["paths"]
    assert {path: described[path]["post"]["operationId"] for path in ROUTE_NAMES} == ROUTE_NAMES


ROUTE_NAMES: Final = {
    CAPTURES: "browser-extension.evidence-captures.store",
    CMS: "cms-plugins.cms-commerce.diagnostics.store",
    STOREFRONT: "storefront-app.diagnostics.store",
    COMPLIANCE: "storefront-app.webhooks.compliance",
}


def modes(world: CloudInstallation) -> None:
    everywhere, handoffs = {1, 2, 3, 4, 5}, {6, 7, 8, 9}
    for mode, there in (("cloud", everywhere | handoffs), ("self-hosted", everywhere), ("webhook-only", {3, 4, 5})):
        settings = make_settings(world.settings.data_dir, {"DEPLOYMENT_MODE": mode})
        client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
        for endpoint in everywhere | handoffs:
            answer = client.simulate_post(world.call(endpoint).path.replace(world.export_id, "exp_x"))
            found = answer.status_code != 404 if endpoint != 5 else answer.status_code in {401, 405}
            assert found == (endpoint in there), (mode, endpoint, answer.status_code)


def webhook_only_takes_named_families(world: CloudInstallation) -> None:
    settings = make_settings(
        world.settings.data_dir, {"DEPLOYMENT_MODE": "webhook-only", "EXTRA_ROUTE_FAMILIES": "scanner,email"}
    )
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    for endpoint in (1, 2):
        assert client.simulate_post(world.call(endpoint).path).status_code == 401


def a_201_carries_record_and_handoff(world: CloudInstallation) -> None:
    for endpoint, record in ((6, "evidence_capture"), (7, "diagnostic"), (8, "diagnostic")):
        answer = world.send(endpoint)
        assert answer.status_code == 201, answer.text
        assert set(answer.json) == {record, "handoff"}
        handoff = answer.json["handoff"]
        assert handoff["source"]["id"] == answer.json[record]["id"]
        assert (handoff["project_id"], handoff["report_id"]) == (world.customer.project_id, world.report_id)
        assert handoff["status"] == "received"
        assert world.status(handoff["ticket_export_id"])["source"]["id"] == answer.json[record]["id"]


def the_body_is_read_before_a_header_is_believed(world: CloudInstallation) -> None:
    assert_is_error(world.call(1).without("Content-Type").send(world.client), 415, "UNSUPPORTED_MEDIA_TYPE")
    assert_is_error(with_header(world.call(1), "Accept", "text/html").send(world.client), 406, "NOT_ACCEPTABLE")
    assert world.call(1).without("Accept").send(world.client).status_code == 202


def stored_texts_are_no_larger_than_allowed(world: CloudInstallation) -> None:
    takes(6, 201, selected_text="x" * 20_000)(world)
    refuses(6, "/selected_text", selected_text="x" * 20_001)(world)
    refuses(6, "/heading_outline", heading_outline=[{"level": "h1", "text": "x"}] * 201)(world)
    refuses(1, "/issues", issues=[issue(f"rule-{number}") for number in range(501)])(world)
    call = world.call(1)
    huge = call.with_json({**json.loads(call.body), "extra": "x" * 1_048_576})
    assert_is_error(huge.send(world.client), 413, "PAYLOAD_TOO_LARGE")


def an_unsafe_target_blocks(world: CloudInstallation) -> None:
    strict = make_settings(world.settings.data_dir, {"DEFAULT_PROJECT_ID": str(world.customer.project_id)})
    world.send(4)
    dispatcher = composed(strict)
    # In this test, the host of the world's target does not resolve to an allowed address.
    assert rows("SELECT 1 FROM targets WHERE id = ?", (world.target_id,))
    execute("UPDATE targets SET base_url = 'https://127.0.0.1/hook' WHERE id = ?", (world.target_id,))
    dispatcher.start()
    dispatcher.deliver_due()
    wait_until(lambda: world.status()["status"] != "approved")
    dispatcher.stop()
    assert dispatcher.join(10)
    assert (world.status()["status"], world.status()["status_reason"]) == ("blocked", "address_loopback")


def keys_are_remembered_for_their_time(world: CloudInstallation) -> None:
    keyed = world.call(3).plus(("Idempotency-Key", "for-a-while"))
    first = keyed.send(world.client).json["id"]
    assert keyed.send(world.client).json["id"] == first
    day_ms = 24 * 3600 * 1000
    execute("UPDATE idempotency_keys SET created_at = created_at - ?", (3 * day_ms - 60_000,))
    assert keyed.send(world.client).json["id"] == first
    execute("UPDATE idempotency_keys SET created_at = created_at - ?", (120_000,))
    assert keyed.send(world.client).json["id"] != first


def an_approved_export_is_approved_once(world: CloudInstallation) -> None:
    assert world.send(4).status_code == 202
    again = world.send(4)
    assert (again.status_code, again.json["status"]) == (202, "approved")
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'approve'") == [(1,)]


def a_shop_of_another_project(world: CloudInstallation) -> None:
    project = projects.add_project("Shop", world.customer.account_id, utc_now(), SHOP)
    accounts.grant_project(world.customer.email, project.id, utc_now())
    takes(8, 201, project_id=project.id, report_id=ABSENT)(world)
    refuses(8, "/shop_domain", project_id=project.id, report_id=ABSENT, shop_domain="other.example.com")(world)


BAD_URL: Final = "not a url"
EXTENSION, PLUGIN, APP = Ability.UPLOAD_EVIDENCE, Ability.UPLOAD_CMS_DIAGNOSTICS, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS

STATEMENTS: Final = (
    # 2.1
    SpecificationStatement("2.1", "scanRunId is an integer", refuses(1, "/scanRunId", scanRunId="42")),
    SpecificationStatement("2.1", "scanRunId identifies the scan run", refuses(1, "/scanRunId", scanRunId=ABSENT)),
    SpecificationStatement("2.1", "status is a string", refuses(1, "/status", status=1)),
    SpecificationStatement("2.1", "page is an object", refuses(1, "/page", page="https://shop.example/")),
    SpecificationStatement("2.1", "page.url is a URL", refuses(1, "/page/url", page__url=BAD_URL)),
    SpecificationStatement(
        "2.1", "page.normalizedUrl is a URL", refuses(1, "/page/normalizedUrl", page__normalizedUrl=BAD_URL)
    ),
    SpecificationStatement("2.1", "page.statusCode is an integer", refuses(1, "/page/statusCode", page__statusCode="200")),
    SpecificationStatement("2.1", "page.pageType is a string", refuses(1, "/page/pageType", page__pageType=["home"])),
    SpecificationStatement(
        "2.1", "page.responseHeaders is an object", refuses(1, "/page/responseHeaders", page__responseHeaders=[])
    ),
    SpecificationStatement("2.1", "page.responseHeaders may be empty", takes(1, 202, page__responseHeaders={})),
    SpecificationStatement(
        "2.1", "page.responseHeaders holds headers", takes(1, 202, page__responseHeaders={"server": "nginx"})
    ),
    SpecificationStatement("2.1", "artifacts is an object", refuses(1, "/artifacts", artifacts="a.png")),
    SpecificationStatement(
        "2.1", "artifacts.screenshotPath is a string", refuses(1, "/artifacts/screenshotPath", artifacts__screenshotPath=1)
    ),
    SpecificationStatement("2.1", "issues is an array", refuses(1, "/issues", issues={})),
    SpecificationStatement("2.1", "issues may be empty", takes(1, 202, issues=[])),
    # 2.2
    SpecificationStatement(
        "2.2", "provider_key is generic_webhook or a tracker", refuses(3, "/provider_key", provider_key="no_tracker")
    ),
    SpecificationStatement("2.2", "base_url is a URL", refuses(3, "/base_url", base_url=BAD_URL)),
    SpecificationStatement(
        "2.2", "an unsafe base_url is rejected", refuses(3, "/base_url", base_url="https://inside.example.com/")
    ),
    SpecificationStatement(
        "2.2", "an unavailable base_url is rejected", refuses(3, "/base_url", base_url="https://gone.example.com/")
    ),
    SpecificationStatement(
        "2.2", "deployment_mode is one of three", refuses(3, "/deployment_mode", deployment_mode="desktop")
    ),
    SpecificationStatement("2.2", "deployment_mode may be cloud", takes(3, 201, deployment_mode="cloud")),
    SpecificationStatement("2.2", "deployment_mode may be self-hosted", takes(3, 201, deployment_mode="self-hosted")),
    SpecificationStatement("2.2", "deployment_mode may be webhook-only", takes(3, 201, deployment_mode="webhook-only")),
    SpecificationStatement("2.2", "name is a string", refuses(3, "/name", name=7)),
    SpecificationStatement("2.2", "receiver secrets are not placed in the payload", refuses(3, "", secret="s3cret")),
    # 2.3
    SpecificationStatement("2.3", "target_id is a string", refuses(4, "/target_id", target_id=7)),
    SpecificationStatement("2.3", "target_id is that of an active target", approval_needs_an_active_target),
    # 2.4
    SpecificationStatement("2.4", "retry_after_seconds is there while retry_scheduled", retry_after_seconds),
    # 2.5
    SpecificationStatement("2.5", "project_id is a required integer", refuses(6, "/project_id", project_id="1")),
    SpecificationStatement("2.5", "report_id is an integer", refuses(6, "/report_id", report_id="1")),
    SpecificationStatement("2.5", "page_url is required", refuses(6, "/page_url", page_url=ABSENT)),
    SpecificationStatement("2.5", "page_url is a URL", refuses(6, "/page_url", page_url=BAD_URL)),
    SpecificationStatement(
        "2.5",
        "page_title is an optional string",
        all_of(takes(6, 201, page_title=ABSENT), refuses(6, "/page_title", page_title=1)),
    ),
    SpecificationStatement(
        "2.5",
        "selected_text is an optional string",
        all_of(takes(6, 201, selected_text=ABSENT), refuses(6, "/selected_text", selected_text=[])),
    ),
    SpecificationStatement(
        "2.5",
        "meta_description is an optional string",
        all_of(takes(6, 201, meta_description=ABSENT), refuses(6, "/meta_description", meta_description={})),
    ),
    SpecificationStatement(
        "2.5",
        "canonical_url is an optional URL",
        all_of(takes(6, 201, canonical_url=ABSENT), refuses(6, "/canonical_url", canonical_url=BAD_URL)),
    ),
    SpecificationStatement(
        "2.5",
        "heading_outline is an optional array of level and text",
        all_of(
            takes(6, 201, heading_outline=ABSENT),
            takes(6, 201, heading_outline=[{"level": "h2", "text": "A"}]),
            refuses(6, "/heading_outline", heading_outline="h1"),
            refuses(6, "/heading_outline/0/level", heading_outline=[{"level": 1, "text": "A"}]),
            refuses(6, "/heading_outline/0/text", heading_outline=[{"level": "h1", "text": 1}]),
        ),
    ),
    SpecificationStatement(
        "2.5",
        "captured_at is an optional timestamp",
        all_of(takes(6, 201, captured_at=ABSENT), refuses(6, "/captured_at", captured_at="yesterday")),
    ),
    SpecificationStatement(
        "2.5",
        "extension_version is an optional string",
        all_of(takes(6, 201, extension_version=ABSENT), refuses(6, "/extension_version", extension_version=1)),
    ),
    SpecificationStatement(
        "2.5",
        "what was captured is kept",
        keeps(
            6,
            "evidence_capture",
            "project_id",
            "report_id",
            "page_url",
            "page_title",
            "selected_text",
            "meta_description",
            "canonical_url",
            "heading_outline",
            "captured_at",
            "extension_version",
        ),
    ),
    # 2.6
    SpecificationStatement("2.6", "project_id is a required integer", refuses(7, "/project_id", project_id=None)),
    SpecificationStatement("2.6", "report_id is optional", takes(7, 201, report_id=ABSENT)),
    SpecificationStatement("2.6", "platform is required", refuses(7, "/platform", platform=ABSENT)),
    SpecificationStatement("2.6", "only cms_commerce is accepted", refuses(7, "/platform", platform="other_cms")),
    SpecificationStatement("2.6", "site_url is required", refuses(7, "/site_url", site_url=ABSENT)),
    SpecificationStatement("2.6", "site_url is a URL", refuses(7, "/site_url", site_url=BAD_URL)),
    SpecificationStatement("2.6", "plugin_version is optional", takes(7, 201, plugin_version=ABSENT)),
    SpecificationStatement(
        "2.6", "the diagnostics group is part of the payload", refuses(7, "/diagnostics", diagnostics=ABSENT)
    ),
    SpecificationStatement("2.6", "no member of diagnostics is required", takes(7, 201, diagnostics={})),
    SpecificationStatement(
        "2.6",
        "active_plugin_names is an array",
        refuses(7, "/diagnostics/active_plugin_names", diagnostics__active_plugin_names="A"),
    ),
    SpecificationStatement(
        "2.6",
        "checkout_page_url is a URL",
        refuses(7, "/diagnostics/checkout_page_url", diagnostics__checkout_page_url=BAD_URL),
    ),
    SpecificationStatement(
        "2.6", "visible_browser_symptoms may be text", takes(7, 201, diagnostics__visible_browser_symptoms="It blinks.")
    ),
    SpecificationStatement(
        "2.6",
        "visible_browser_symptoms may be an array",
        takes(7, 201, diagnostics__visible_browser_symptoms=["It blinks."]),
    ),
    SpecificationStatement(
        "2.6",
        "what was reported is kept",
        keeps(
            7,
            "diagnostic",
            "project_id",
            "report_id",
            "platform",
            "site_url",
            "plugin_version",
            "diagnostics.cms_version",
            "diagnostics.commerce_plugin_version",
            "diagnostics.active_theme",
            "diagnostics.active_plugin_names",
            "diagnostics.checkout_page_url",
            "diagnostics.commerce_plugin_status",
            "diagnostics.visible_browser_symptoms",
        ),
    ),
    # 2.7
    SpecificationStatement("2.7", "project_id is a required integer", refuses(8, "/project_id", project_id=1.5)),
    SpecificationStatement("2.7", "report_id is optional", takes(8, 201, report_id=ABSENT)),
    SpecificationStatement("2.7", "shop_domain is required", refuses(8, "/shop_domain", shop_domain=ABSENT)),
    SpecificationStatement(
        "2.7", "shop_domain is a valid shop domain", refuses(8, "/shop_domain", shop_domain="https://shop.example/")
    ),
    SpecificationStatement("2.7", "shop_name is optional", takes(8, 201, shop_name=ABSENT)),
    SpecificationStatement("2.7", "granted_scopes is required", refuses(8, "/granted_scopes", granted_scopes=ABSENT)),
    SpecificationStatement("2.7", "granted_scopes holds one or more", refuses(8, "/granted_scopes", granted_scopes=[])),
    SpecificationStatement(
        "2.7",
        "any other scope is rejected",
        refuses(8, "/granted_scopes/1", granted_scopes=["read_content", "write_themes"]),
    ),
    SpecificationStatement("2.7", "one safe scope will do", takes(8, 201, granted_scopes=["read_themes"])),
    SpecificationStatement("2.7", "app_version is optional", takes(8, 201, app_version=ABSENT)),
    SpecificationStatement(
        "2.7", "theme_count is an integer", refuses(8, "/diagnostics/theme_count", diagnostics__theme_count="3")
    ),
    SpecificationStatement(
        "2.7",
        "product_count_bucket is a string",
        refuses(8, "/diagnostics/product_count_bucket", diagnostics__product_count_bucket=100),
    ),
    SpecificationStatement(
        "2.7",
        "visible_storefront_symptoms may be text",
        takes(8, 201, diagnostics__visible_storefront_symptoms="It blinks."),
    ),
    SpecificationStatement(
        "2.7",
        "what was reported is kept",
        keeps(
            8,
            "diagnostic",
            "project_id",
            "report_id",
            "shop_domain",
            "shop_name",
            "granted_scopes",
            "app_version",
            "diagnostics.primary_domain",
            "diagnostics.published_theme_name",
            "diagnostics.theme_count",
            "diagnostics.product_count_bucket",
            "diagnostics.checkout_profile_status",
            "diagnostics.app_embed_status",
            "diagnostics.visible_storefront_symptoms",
        ),
    ),
    # 2.8
    SpecificationStatement(
        "2.8", "the raw body is signed; topic and shop domain come from headers", every_compliance_topic_is_taken
    ),
    SpecificationStatement("2.8", "a 201 carries the stored record and a handoff", a_201_carries_record_and_handoff),
    # 3
    SpecificationStatement("3.1", "exported: delivered", ends_as("exported", (202, b"{}"))),
    SpecificationStatement("3.1", "blocked: unsafe target URL", an_unsafe_target_blocks),
    SpecificationStatement("3.1", "failed", ends_as("failed", (404, b"{}"), error_code="receiver_rejected")),
    SpecificationStatement(
        "3.1",
        "retry_scheduled: a retry is scheduled",
        ends_as("retry_scheduled", (503, b"{}"), error_code="receiver_unavailable"),
    ),
    SpecificationStatement("3.1", "polling makes no work", polling_creates_nothing),
    SpecificationStatement("3.2", "a run can be completed", takes(1, 202, status="completed")),
    SpecificationStatement("3.3", "a bearer token counts in its header alone", tokens_count_in_their_header_alone),
    SpecificationStatement(
        "3.3", "the scanner's secret must be the configured one", fails(1, 401, "UNAUTHORIZED", X_Scanner_Secret="other")
    ),
    SpecificationStatement(
        "3.3", "the email secret must be the configured one", fails(2, 401, "UNAUTHORIZED", X_Email_Webhook_Secret="other")
    ),
    SpecificationStatement("3.3", "a key maps to one logical request", repeats(1, "exports")),
    SpecificationStatement("3.3", "Content-Type and Accept are JSON", the_body_is_read_before_a_header_is_believed),
    SpecificationStatement("3.3", "a user must manage the project or report", only_what_the_user_manages),
    # 4
    SpecificationStatement("4", "1 answers 202", takes(1, 202)),
    SpecificationStatement("4", "2 takes an inbound email event", takes(2, 202)),
    SpecificationStatement("4", "3 makes a target", takes(3, 201)),
    SpecificationStatement("4", "4 approves", takes(4, 202)),
    SpecificationStatement("4", "5 answers with the record", takes(5, 200)),
    SpecificationStatement("4", "6 answers 201", takes(6, 201)),
    SpecificationStatement("4", "7 answers 201", takes(7, 201)),
    SpecificationStatement("4", "8 answers 201", takes(8, 201)),
    SpecificationStatement("4", "9 answers 204", takes(9, 204)),
    SpecificationStatement("4", "routes have their names", route_names),
    SpecificationStatement(
        "4.1", "a missing scanner secret is UNAUTHORIZED", fails(1, 401, "UNAUTHORIZED", without="X-Scanner-Secret")
    ),
    SpecificationStatement("4.1", "a malformed payload is VALIDATION_FAILED", refuses(1, "/page", page=None)),
    SpecificationStatement("4.2", "a preview that is not safe is not approved", approval_needs_a_safe_preview),
    SpecificationStatement("4.2", "an approval holds no provider secrets", refuses(4, "", secret="s3cret")),
    SpecificationStatement("4.3", "an account must be allowed generic_webhook targets", account_must_be_allowed),
    SpecificationStatement("4.4", "every upload names its project; a foreign report is 422", uploads_name_their_project),
    SpecificationStatement("4.4", "6 to 8 take platform tokens, 3 to 5 do not", kinds_do_not_stand_in),
    SpecificationStatement("4.5", "another topic is 422", compliance_topics),
    SpecificationStatement("4.5", "a bearer token is no substitute for the signature", secrets_do_not_stand_in),
    SpecificationStatement("4.6", "forbidden content is rejected", forbidden_payloads),
    SpecificationStatement("4.6", "forbidden members are rejected", forbidden_members),
    SpecificationStatement("4.7", "any 2xx of a receiver is accepted", ends_as("exported", (299, b"whatever"))),
    SpecificationStatement(
        "4.8", "nothing is stored of what is not valid", refuses(8, "/granted_scopes/0", granted_scopes=["read_orders"])
    ),
    SpecificationStatement("4.8", "a shop of another project is rejected", a_shop_of_another_project),
    # 5
    SpecificationStatement("5", "deliveries are signed over timestamp, nonce and raw body", signs_what_it_sends),
    SpecificationStatement("5", "the storefront's signature is over the raw body", signature_comes_before_everything),
    SpecificationStatement("5", "keys make retries safe: targets", repeats(3, "targets")),
    SpecificationStatement("5", "keys make retries safe: approvals", repeats(4, "audit_entries")),
    SpecificationStatement("5", "keys make retries safe: captures", repeats(6, "evidence_captures")),
    SpecificationStatement("5.1", "one secret or signature does not stand in for another", secrets_do_not_stand_in),
    SpecificationStatement("5.2", "6 needs its ability", lacks_ability(6, EXTENSION, PLUGIN)),
    SpecificationStatement("5.2", "7 needs its ability", lacks_ability(7, PLUGIN, APP)),
    SpecificationStatement("5.2", "8 needs its ability", lacks_ability(8, APP, EXTENSION)),
    SpecificationStatement("5.2", "3 needs its ability", lacks_ability(3, Ability.MANAGE_TARGETS, Ability.READ_EXPORTS)),
    SpecificationStatement("5.2", "4 needs its ability", lacks_ability(4, Ability.APPROVE_EXPORTS, Ability.READ_EXPORTS)),
    SpecificationStatement("5.2", "5 needs its ability", lacks_ability(5, Ability.READ_EXPORTS, Ability.APPROVE_EXPORTS)),
    SpecificationStatement("5.3", "old secrets stop authorizing", rotation_stops_the_old_secret),
    SpecificationStatement("5.5", "expired and revoked tokens stop", expired_tokens_stop),
    # 6
    SpecificationStatement("6", "a wrong signature stops the webhook before records", signature_comes_before_everything),
    SpecificationStatement("6", "a delivery is emitted after an approval alone", emits_only_after_approval),
    SpecificationStatement(
        "6",
        "WEBHOOK_SIGNATURE_INVALID of a receiver is understood",
        ends_as("failed", (401, b'{"code": "WEBHOOK_SIGNATURE_INVALID"}'), error_code="WEBHOOK_SIGNATURE_INVALID"),
    ),
    SpecificationStatement(
        "6",
        "WEBHOOK_VALIDATION_FAILED of a receiver is understood",
        ends_as(
            "failed", (422, b'{"error": {"code": "WEBHOOK_VALIDATION_FAILED"}}'), error_code="WEBHOOK_VALIDATION_FAILED"
        ),
    ),
    SpecificationStatement(
        "6",
        "WEBHOOK_RATE_LIMITED of a receiver is understood",
        ends_as("retry_scheduled", (429, b'{"code": "WEBHOOK_RATE_LIMITED"}'), error_code="WEBHOOK_RATE_LIMITED"),
    ),
    # 7
    SpecificationStatement("7", "UNAUTHORIZED: bearer missing", fails(5, 401, "UNAUTHORIZED", without="Authorization")),
    SpecificationStatement(
        "7", "UNAUTHORIZED: bearer invalid", fails(3, 401, "UNAUTHORIZED", Authorization="Bearer nonsense")
    ),
    SpecificationStatement("7", "UNAUTHORIZED: shared secret not configured", not_configured_is_unauthorized),
    SpecificationStatement(
        "7", "UNAUTHORIZED: storefront signature missing", fails(9, 401, "UNAUTHORIZED", without="X-Platform-Hmac-Sha256")
    ),
    SpecificationStatement("7", "FORBIDDEN: an ability is missing", lacks_ability(6, EXTENSION, APP)),
    SpecificationStatement("7", "VALIDATION_FAILED: topic or shop-domain header", compliance_needs_its_headers),
    SpecificationStatement("7", "IDEMPOTENCY_CONFLICT: postback", conflicts(1, scanRunId=43)),
    SpecificationStatement("7", "IDEMPOTENCY_CONFLICT: target", conflicts(3, name="Another")),
    SpecificationStatement("7", "IDEMPOTENCY_CONFLICT: capture", conflicts(6, page_title="Another")),
    SpecificationStatement("7", "RATE_LIMITED", limits_requests),
    SpecificationStatement("7", "503: the storefront secret is not configured", compliance_fails_closed),
    SpecificationStatement("7.1", "a refused payload can be corrected under its key", a_refusal_is_not_remembered),
    SpecificationStatement("7.3", "a repeat does no work twice: an approval", an_approved_export_is_approved_once),
    SpecificationStatement("7.3", "a repeat does no work twice: an email", repeats(2, "inbound_emails")),
    SpecificationStatement("7.3", "a repeat does no work twice: diagnostics", all_of(repeats(7, "diagnostics"))),
    SpecificationStatement("7.4", "submitted secrets are not echoed", secrets_are_not_echoed),
    # 8
    SpecificationStatement("8.1", "requests are limited", limits_requests),
    SpecificationStatement("8.2", "keys are remembered for 72 hours", keys_are_remembered_for_their_time),
    SpecificationStatement("8.3", "sizes are limited", stored_texts_are_no_larger_than_allowed),
    SpecificationStatement(
        "8.4", "scopes are limited to three", refuses(8, "/granted_scopes/0", granted_scopes=["read_all_orders"])
    ),
    SpecificationStatement("8.4", "uploads are limited to what the user manages", only_what_the_user_manages),
    # 1, as far as it is a rule
    SpecificationStatement("1.7", "each mode serves its route families", modes),
    SpecificationStatement("1.7", "webhook-only serves what is named beside", webhook_only_takes_named_families),
    SpecificationStatement(
        "1.8", "fingerprints, connection and validation are shown, secrets never", only_fingerprints_are_shown
    ),
    SpecificationStatement("3.3", "ids of another account are not found", others_ids_are_not_found),
)


def test_every_section_has_its_rows() -> None:
    covered = {statement.section.partition(".")[0] for statement in STATEMENTS}
    assert {"2", "3", "4", "5", "6", "7", "8"} <= covered
    named = [(statement.section, statement.says) for statement in STATEMENTS]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: f"{each.section} {each.says}")
def test_the_service_satisfies_each_statement_of_the_specification(
    statement: SpecificationStatement, world: CloudInstallation
) -> None:
    statement.check(world)
