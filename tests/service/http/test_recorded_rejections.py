"""Operators can see why a source was rejected: in fixed wording, with few writes, and without delaying requests."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from schemas.base.principal import Ability
from schemas.content_policy.field_names import FORBIDDEN_NAMES
from schemas.intake.sources import InboundSource, Rejection
from service.app import api_resources, create_app
from service.http.rejections import MAX_REPORTED_PROBLEMS, RejectionRecorder
from service.operations.wiring import build_operations
from storage.db.engine import close_database, connection, open_database
from storage.intake import rejections
from tests.support.database.query_plans import statements
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    capture,
    make_customer,
    make_platform_token,
    make_settings,
    postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import CANARY, JSON, RESULTS
from tests.support.processes.workers import wait_until

Start = Callable[[RejectionRecorder], None]

EMAIL: Final = "/api/email/webhook"
CAPTURES: Final = "/api/browser-extension/evidence-captures"
CMS: Final = "/api/cms-plugins/cms-commerce/diagnostics"
STOREFRONT: Final = "/api/storefront-app/diagnostics"
COMPLIANCE: Final = "/api/storefront-app/webhooks/compliance"
SIGNATURE: Final = "X-Platform-Hmac-Sha256"
#: The route of every source.
ROUTES: Final = {
    InboundSource.SCANNER: RESULTS,
    InboundSource.EMAIL: EMAIL,
    InboundSource.BROWSER_EXTENSION: CAPTURES,
    InboundSource.CMS_PLUGIN: CMS,
    InboundSource.STOREFRONT_APP: STOREFRONT,
    InboundSource.COMPLIANCE: COMPLIANCE,
}
SECRETS: Final = {
    "EMAIL_WEBHOOK_SECRET": "email-secret-for-tests",
    "STOREFRONT_WEBHOOK_SECRET": "storefront-secret-for-tests",
}


@pytest.fixture
def recorder() -> RejectionRecorder:
    """A recorder without a thread, which writes only when a test says so."""
    return RejectionRecorder()


@pytest.fixture
def start(customer: Customer) -> Iterator[Start]:
    """Start recorders; at the end of the test none is writing, since the database is closed afterwards."""
    at_work: list[threading.Lock] = []

    def begin(recorder: RejectionRecorder) -> None:
        mine, write = threading.Lock(), recorder.write
        at_work.append(mine)

        def guarded() -> bool:
            with mine:
                return write()

        vars(recorder)["write"] = guarded
        recorder.start()

    yield begin
    for lock in at_work:
        assert lock.acquire(timeout=10)


@pytest.fixture
def client(customer: Customer, tmp_path: Path, recorder: RejectionRecorder) -> TestClient:
    """The application with every family of routes, and with limits that no test reaches."""
    return make_client(customer, tmp_path, recorder, SECRETS)


def make_client(customer: Customer, folder: Path, recorder: RejectionRecorder, changes: Mapping[str, str]) -> TestClient:
    always = {"DEFAULT_PROJECT_ID": str(customer.project_id), "DEPLOYMENT_MODE": "cloud"}
    unlimited = {"AUTH_FAILURES_PER_MINUTE": "100000", "RATE_LIMIT_PER_MINUTE": "100000"}
    settings = make_settings(folder, {**always, **unlimited, **changes})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}), rejections=recorder))


def post(client: TestClient, path: str, headers: Mapping[str, str], body: Any = None) -> Result:
    return client.simulate_post(path, headers={**JSON, **headers}, json={} if body is None else body)


def last_rejection(recorder: RejectionRecorder, source: InboundSource) -> Rejection:
    assert recorder.write()
    return rejections.last()[source]


def test_exactly_the_routes_of_sources_have_a_source(tmp_path: Path) -> None:
    assert {each.source: each.path for each in sources(tmp_path)} == ROUTES


@pytest.mark.parametrize(
    ("path", "header", "value", "changes", "status", "code", "why"),
    [
        (RESULTS, "X-Scanner-Secret", None, {}, 401, "UNAUTHORIZED", "missing"),
        (RESULTS, "X-Scanner-Secret", "another", {}, 401, "UNAUTHORIZED", "wrong"),
        (RESULTS, "X-Scanner-Secret", f"{SCANNER_SECRET}, {SCANNER_SECRET}", {}, 401, "UNAUTHORIZED", "twice"),
        (RESULTS, "X-Scanner-Secret", "any", {"SCANNER_SHARED_SECRET": ""}, 401, "UNAUTHORIZED", "not_configured"),
        (EMAIL, "X-Email-Webhook-Secret", None, {}, 401, "UNAUTHORIZED", "missing"),
        (EMAIL, "X-Email-Webhook-Secret", "another", {"EMAIL_WEBHOOK_SECRET": ""}, 401, "UNAUTHORIZED", "not_configured"),
        (CAPTURES, "Authorization", None, {}, 401, "UNAUTHORIZED", "missing"),
        (CMS, "Authorization", "Bearer rrt_another", {}, 401, "UNAUTHORIZED", "wrong"),
        (STOREFRONT, "Authorization", "Bearer a, Bearer b", {}, 401, "UNAUTHORIZED", "twice"),
        (COMPLIANCE, SIGNATURE, None, {}, 401, "UNAUTHORIZED", "missing"),
        (COMPLIANCE, SIGNATURE, "0" * 64, {}, 401, "SIGNATURE_INVALID", "wrong"),
        (COMPLIANCE, SIGNATURE, f"{'0' * 64},{'0' * 64}", {}, 401, "UNAUTHORIZED", "twice"),
        (COMPLIANCE, SIGNATURE, "0", {"STOREFRONT_WEBHOOK_SECRET": ""}, 503, "SERVICE_UNAVAILABLE", "not_configured"),
    ],
)
def test_only_the_operator_sees_why_a_credential_was_refused(
    path: str,
    header: str,
    value: str | None,
    changes: dict[str, str],
    status: int,
    code: str,
    why: str,
    customer: Customer,
    tmp_path: Path,
    recorder: RejectionRecorder,
) -> None:
    client = make_client(customer, tmp_path, recorder, {**SECRETS, **changes})
    answer = post(client, path, {} if value is None else {header: value})
    assert (answer.status_code, answer.json["error"]["code"]) == (status, code)
    assert answer.json["error"]["details"] == {}
    [source] = [source for source, route in ROUTES.items() if route == path]
    record = last_rejection(recorder, source)
    assert (record.status, record.code, record.request_id) == (status, code, answer.headers["x-request-id"])
    assert [(field.path, field.code) for field in record.fields] == [(f"/{header}", why)]


def test_a_token_without_the_right_is_recorded_in_the_same_way(
    client: TestClient, customer: Customer, recorder: RejectionRecorder
) -> None:
    other = make_platform_token(customer, Ability.UPLOAD_CMS_DIAGNOSTICS)
    for bearer, why in ((customer.token, "wrong_kind"), (other, "lacks_ability")):
        assert post(client, CAPTURES, {"Authorization": f"Bearer {bearer}"}).status_code == 403
        record = last_rejection(recorder, InboundSource.BROWSER_EXTENSION)
        assert (record.status, record.code, [field.code for field in record.fields]) == (403, "FORBIDDEN", [why])


def test_a_project_that_a_token_may_not_manage_is_a_refusal_without_details(
    client: TestClient, customer: Customer, recorder: RejectionRecorder
) -> None:
    bearer = {"Authorization": f"Bearer {make_platform_token(customer)}"}
    assert post(client, CAPTURES, bearer, capture(customer.project_id + 1000)).status_code == 403
    record = last_rejection(recorder, InboundSource.BROWSER_EXTENSION)
    assert (record.code, record.fields) == ("FORBIDDEN", ())


def test_the_first_problems_of_a_body_are_stored_with_paths_and_codes(
    client: TestClient, recorder: RejectionRecorder
) -> None:
    issues: list[Mapping[str, Any]] = [{"severity": "high"} for _ in range(50)]
    assert post(client, RESULTS, {"X-Scanner-Secret": SCANNER_SECRET}, postback(issues=issues)).status_code == 422
    record = last_rejection(recorder, InboundSource.SCANNER)
    assert (record.status, record.code) == (422, "VALIDATION_FAILED")
    assert len(record.fields) == MAX_REPORTED_PROBLEMS
    assert (record.fields[0].path, record.fields[0].code) == ("/issues/0/title", "required")


def test_nothing_of_a_request_is_stored_whatever_its_names_are(
    client: TestClient, customer: Customer, recorder: RejectionRecorder, tmp_path: Path
) -> None:
    """No path contains a name from the request: only our own names, numbers, and forbidden names."""
    hostile = [CANARY, f"/{CANARY}/~1~0", "<script>alert(1)</script>", "a/b", "", "🦊", "\u202e", "'; DROP TABLE exports --"]
    nested: Any = {name: {name: "4242 4242 4242 4242", "password": CANARY} for name in hostile}
    issues: list[Mapping[str, Any]] = [{"code": "x", "evidence": nested, "password": CANARY, **nested}]
    assert post(client, RESULTS, {"X-Scanner-Secret": SCANNER_SECRET}, postback(issues=issues)).status_code == 422
    bearer = {"Authorization": f"Bearer {make_platform_token(customer)}"}
    for path in (CAPTURES, CMS, STOREFRONT):
        assert post(client, path, bearer, {**nested, "diagnostics": nested, "heading_outline": [nested]}).status_code == 422
    assert post(client, EMAIL, {"X-Email-Webhook-Secret": SECRETS["EMAIL_WEBHOOK_SECRET"]}, nested).status_code == 422
    assert post(client, COMPLIANCE, {SIGNATURE: CANARY}, nested).status_code == 401
    assert recorder.write()
    kept = rejections.last()
    assert set(kept) == set(ROUTES)
    own = known_names(tmp_path)
    for refusal in kept.values():
        assert CANARY not in repr(refusal)
        steps = {step for field in refusal.fields for step in field.path.split("/")[1:]}
        assert {step for step in steps if not step.isdecimal()} <= own
    problems = {field.path for refusal in kept.values() for field in refusal.fields}
    assert any(path.endswith("/password") for path in problems), "no path was made of a forbidden name"


def known_names(folder: Path) -> set[str]:
    """Return every member of every form, every forbidden name, and the headers that carry credentials."""
    operations = [each for resource in sources(folder) for each in resource.operations.values()]
    members = {name for operation in operations if operation.form for name in operation.form.member_names()}
    return members | set(FORBIDDEN_NAMES) | {"X-Scanner-Secret", "X-Email-Webhook-Secret", "Authorization", SIGNATURE}


def sources(folder: Path) -> list[Any]:
    """Return the resources that have a source."""
    settings, wake_ups = make_settings(folder, {"DEPLOYMENT_MODE": "cloud"}), FakeWakeUpQueue()
    resources = api_resources(settings, wake_ups, build_operations(settings, wake_ups, FakeResolver({})))
    return [each for each in resources if getattr(each, "source", None)]


@pytest.mark.parametrize("send", ["a method", "a path", "what is accepted"])
def test_requests_without_a_source_and_accepted_requests_are_not_recorded(
    send: str, client: TestClient, recorder: RejectionRecorder
) -> None:
    calls: dict[str, Callable[[], Result]] = {
        "a method": lambda: client.simulate_get(RESULTS),
        "a path": lambda: client.simulate_post(f"{RESULTS}/nothing"),
        "what is accepted": lambda: post(client, RESULTS, {"X-Scanner-Secret": SCANNER_SECRET}, postback()),
    }
    assert calls[send]().status_code in {202, 404, 405}
    with statements() as ran:
        assert recorder.write()
    assert (ran, rejections.last()) == ([], {})


def test_a_rejection_by_another_route_is_not_recorded(client: TestClient, recorder: RejectionRecorder) -> None:
    assert client.simulate_get("/api/ticket-exports").status_code == 401
    assert recorder.write()
    assert rejections.last() == {}


def test_a_refused_request_runs_no_statement_for_it(client: TestClient, recorder: RejectionRecorder) -> None:
    with statements() as ran:
        assert post(client, RESULTS, {"X-Scanner-Secret": "another"}).status_code == 401
    assert not [each for each in ran if "inbound_refusals" in each.sql]


def test_many_rejections_are_written_as_the_newest_one_with_one_statement(
    client: TestClient, recorder: RejectionRecorder
) -> None:
    with statements() as ran:
        for _ in range(499):
            assert post(client, RESULTS, {"X-Scanner-Secret": "another"}).status_code == 401
        newest = post(client, RESULTS, {}).headers["x-request-id"]
        assert recorder.write()
    assert len([each for each in ran if "inbound_refusals" in each.sql]) == 1
    assert rejections.last()[InboundSource.SCANNER].request_id == newest


def test_the_first_rejection_is_written_at_once_and_the_rest_of_a_flood_later(
    customer: Customer, tmp_path: Path, start: Start
) -> None:
    """A pause of one hour stands for a pause that has not ended."""
    recorder = RejectionRecorder(pause_s=3600)
    client = make_client(customer, tmp_path, recorder, SECRETS)
    start(recorder)
    first = post(client, RESULTS, {}).headers["x-request-id"]
    wait_until(lambda: InboundSource.SCANNER in rejections.last())
    with statements() as ran:
        for _ in range(50):
            assert post(client, RESULTS, {}).status_code == 401
    assert not [each for each in ran if "inbound_refusals" in each.sql]
    assert rejections.last()[InboundSource.SCANNER].request_id == first


def test_the_newest_rejection_is_written_after_the_pause(customer: Customer, tmp_path: Path, start: Start) -> None:
    recorder = RejectionRecorder(pause_s=0.05)
    client = make_client(customer, tmp_path, recorder, SECRETS)
    start(recorder)
    for _ in range(20):
        newest = post(client, RESULTS, {}).headers["x-request-id"]
    wait_until(lambda: InboundSource.SCANNER in (kept := rejections.last()) and stored_request_id(kept) == newest)


class FailingRecorder(RejectionRecorder):
    """Raises an unexpected exception on the first write."""

    has_failed = False

    def write(self) -> bool:
        if not self.has_failed:
            self.has_failed = True
            raise ValueError
        return super().write()


def test_rejections_are_written_again_after_an_unexpected_error(customer: Customer, tmp_path: Path, start: Start) -> None:
    recorder = FailingRecorder(pause_s=0.05)
    client = make_client(customer, tmp_path, recorder, SECRETS)
    start(recorder)
    post(client, RESULTS, {})
    wait_until(lambda: recorder.has_failed)
    newest = post(client, RESULTS, {}).headers["x-request-id"]
    wait_until(lambda: InboundSource.SCANNER in (kept := rejections.last()) and stored_request_id(kept) == newest)


def stored_request_id(kept: Mapping[InboundSource, Rejection]) -> str:
    return kept[InboundSource.SCANNER].request_id


def test_while_sqlite_is_locked_rejections_are_answered_and_written_later(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url)
    customer = make_customer()
    recorder = RejectionRecorder()
    client = make_client(customer, tmp_path, recorder, SECRETS)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tried = threading.Thread(target=recorder.write)
    answered: list[int] = []

    def send() -> None:
        answered.extend(post(client, RESULTS, {"X-Scanner-Secret": "another"}).status_code for _ in range(20))

    send()
    tried.start()
    # Writers wait for the lock the whole time; a rejected request does not.
    sender = threading.Thread(target=send)
    sender.start()
    sender.join(30)
    assert answered == [401] * 40
    assert other.in_transaction
    other.execute("ROLLBACK")
    other.close()
    tried.join(30)
    assert not tried.is_alive()
    assert recorder.write()
    with connection():
        assert rejections.last()[InboundSource.SCANNER].code == "UNAUTHORIZED"
    close_database()


def test_a_rejection_that_could_not_be_written_waits_unless_there_is_a_newer_one(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url)
    customer = make_customer()
    recorder = RejectionRecorder()
    client = make_client(customer, tmp_path, recorder, SECRETS)
    email = post(client, EMAIL, {}).headers["x-request-id"]
    post(client, RESULTS, {})
    open_database(f"sqlite:///{tmp_path / 'gone' / 'riskrelay.db'}")
    assert not recorder.write()
    unavailable = post(client, RESULTS, {"X-Scanner-Secret": "any"})
    assert unavailable.status_code == 503
    assert not recorder.write()
    open_database(sqlite_url)
    assert recorder.write()
    with connection():
        kept = rejections.last()
    assert kept[InboundSource.EMAIL].request_id == email
    assert (stored_request_id(kept), kept[InboundSource.SCANNER].code) == (
        unavailable.headers["x-request-id"],
        "SERVICE_UNAVAILABLE",
    )
    close_database()
