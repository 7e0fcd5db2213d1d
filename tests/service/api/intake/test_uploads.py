"""Uploads of the extension, the plugin and the storefront app: who may upload, the responses, and what is never stored."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from service.app import create_app
from storage.accounts import accounts, tokens
from storage.db.engine import execute, rows
from storage.exports import queries
from tests.service.conftest import LogLines
from tests.support.corpora import naughty_strings
from tests.support.database.databases import on_postgresql
from tests.support.factories import (
    NOW,
    SCANNER_SECRET,
    Customer,
    capture,
    cms_diagnostics,
    make_colleague,
    make_customer,
    make_platform_token,
    make_project,
    make_report,
    make_settings,
    storefront_diagnostics,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    CANARY,
    EXPORTS,
    JSON,
    SCANNER,
    TARGETS,
    Call,
    FieldRefusal,
    assert_has_standard_headers,
    assert_is_error,
    everything_stored,
)

# The content of uploads does not depend on the database; PostgreSQL is stricter about texts than SQLite.
pytestmark = on_postgresql

LIMIT_BYTES = 64 * 1024
#: The message of every 403, whether the project or report exists or not.
NOT_YOURS = "The token's user may not manage this project or report."


@dataclass(frozen=True, slots=True)
class UploadRoute:
    """One of the three upload routes."""

    path: str
    ability: Ability
    body: Callable[..., dict[str, Any]]
    record: str
    prefix: str
    source: str
    least: dict[str, Any]
    #: Members that do not change the identity of an upload, and members that do.
    varying: dict[str, Any]
    other_text: dict[str, Any]


ROUTES = {
    "capture": UploadRoute(
        "/api/browser-extension/evidence-captures",
        Ability.UPLOAD_EVIDENCE,
        capture,
        "evidence_capture",
        "evc_",
        "evidence_capture",
        {"page_url": "https://shop.example"},
        {"page_url": "https://SHOP.example/cart?step=2#top", "captured_at": None, "extension_version": "1.5"},
        {"selected_text": "Another text"},
    ),
    "plugin": UploadRoute(
        "/api/cms-plugins/cms-commerce/diagnostics",
        Ability.UPLOAD_CMS_DIAGNOSTICS,
        cms_diagnostics,
        "diagnostic",
        "dia_",
        "diagnostics",
        {"platform": "cms_commerce", "site_url": "https://shop.example", "diagnostics": {}},
        {"plugin_version": "99"},
        {"diagnostics": {"visible_browser_symptoms": "Another text"}},
    ),
    "app": UploadRoute(
        "/api/storefront-app/diagnostics",
        Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
        storefront_diagnostics,
        "diagnostic",
        "dia_",
        "diagnostics",
        {"shop_domain": "shop.example", "granted_scopes": ["read_content"], "diagnostics": {}},
        {"app_version": "99"},
        {"diagnostics": {"visible_storefront_symptoms": "Another text"}},
    ),
}


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> UploadRoute:
    """Each of the three routes in turn."""
    return ROUTES[request.param]


def cloud(folder: Path, **changes: str) -> TestClient:
    settings = make_settings(folder, {"DEPLOYMENT_MODE": "cloud", **changes})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """The application in cloud mode, which alone serves these routes."""
    return cloud(tmp_path)


def upload(route: UploadRoute, token: str, body: Any, key: str | None = None) -> Call:
    keyed = () if key is None else (("Idempotency-Key", key),)
    return Call("POST", route.path, (("Authorization", f"Bearer {token}"), *JSON.items(), *keyed)).with_json(body)


# --- what is accepted


def test_the_response_to_an_upload_has_its_record_and_its_handoff(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    report_id = make_report(customer.project_id)
    body = route.body(customer.project_id, report_id=report_id)

    answer = upload(route, make_platform_token(customer, route.ability), body).send(client)

    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    assert "location" not in answer.headers  # no route returns a single upload
    assert_has_standard_headers(answer)
    record, handoff = answer.json[route.record], answer.json["handoff"]
    assert list(answer.json) == [route.record, "handoff"]
    shown = {"captured_at": "2026-03-01T12:00:00.250Z"} if "captured_at" in body else {}
    assert record == {**body, **shown, "id": record["id"], "created_at": record["created_at"]}
    assert record["id"].startswith(route.prefix)
    assert handoff == {
        "id": handoff["id"],
        "source": {"type": route.source, "id": record["id"]},
        "project_id": customer.project_id,
        "report_id": report_id,
        "ticket_export_id": handoff["ticket_export_id"],
        "status": "received",
        "created_at": record["created_at"],
    }
    assert handoff["id"].startswith("hof_")


def test_members_that_are_not_set_are_null(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    least = {"project_id": customer.project_id, **route.least}
    record = upload(route, make_platform_token(customer), least).send(client).json[route.record]
    assert record.keys() == route.body(1).keys() | {"id", "report_id", "created_at"}
    reported = record.pop("diagnostics", {})
    assert {name: value for name, value in record.items() if value is not None}.keys() == (
        {"project_id", "id", "created_at"} | route.least.keys() - {"diagnostics"}
    )
    assert reported == dict.fromkeys(route.body(1).get("diagnostics", {}))


def test_an_upload_prepares_an_export_that_clients_can_read(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    answer = upload(route, make_platform_token(customer), route.body(customer.project_id)).send(client)
    path = f"{EXPORTS}/{answer.json['handoff']['ticket_export_id']}"
    export = Call("GET", path, tuple(customer.bearer.items())).send(client).json
    assert export["status"] == "prepared"
    assert export["source"] == answer.json["handoff"]["source"]
    assert export["preview"] == {"safe": True, "problems": []}
    assert export["ticket"]["labels"][0] == "website-risk"
    assert export["ticket"] == queries.get(export["id"], customer.account_id).ticket


def test_an_upload_does_not_reveal_the_shop_of_a_project(client: TestClient, customer: Customer) -> None:
    token = make_platform_token(customer)
    body = storefront_diagnostics(customer.project_id)
    assert upload(ROUTES["app"], token, body).send(client).status_code == 201
    assert upload(ROUTES["app"], token, {**body, "shop_domain": "ice.example"}).send(client).status_code == 201
    assert rows("SELECT DISTINCT shop_domain FROM projects") == [(None,)]


def test_a_shop_is_known_however_it_is_written(client: TestClient, customer: Customer) -> None:
    project_id = make_project(customer, "bücher.example")
    body = storefront_diagnostics(project_id, shop_domain="XN--Bcher-KVA.Example.")
    answer = upload(ROUTES["app"], make_platform_token(customer), body).send(client)
    assert answer.status_code == 201
    assert answer.json["diagnostic"]["shop_domain"] == "xn--bcher-kva.example"


@pytest.mark.parametrize("mode", ["self-hosted", "webhook-only"])
def test_other_modes_do_not_have_these_routes(customer: Customer, tmp_path: Path, route: UploadRoute, mode: str) -> None:
    client = cloud(tmp_path, DEPLOYMENT_MODE=mode)
    answer = upload(route, make_platform_token(customer), route.body(customer.project_id)).send(client)
    assert_is_error(answer, 404, "NOT_FOUND")


# --- repeats


def test_a_repeated_request_gets_the_first_response_and_does_nothing(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    body = route.body(customer.project_id)
    first = upload(route, make_platform_token(customer), body, "k").send(client)
    stored = everything_stored()

    again = upload(route, make_platform_token(customer), body, "k").send(client)

    assert (again.status_code, again.text) == (first.status_code, first.text) == (201, first.text)
    assert again.headers["idempotency-replayed"] == "true"
    assert {**everything_stored(), "tokens": [], "audit_entries": []} == {**stored, "tokens": [], "audit_entries": []}


def test_without_a_key_a_repeated_upload_gets_the_first_response_for_a_day(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    token, rotated, body = make_platform_token(customer), make_platform_token(customer), route.body(customer.project_id)
    first = upload(route, token, body).send(client)
    assert (first.status_code, first.headers.get("idempotency-replayed")) == (201, None)
    stored = everything_stored()

    again = upload(route, rotated, {**body, **route.varying}).send(client)

    assert (again.status_code, again.text, again.headers["idempotency-replayed"]) == (201, first.text, "true")
    assert {**everything_stored(), "tokens": []} == {**stored, "tokens": []}
    almost_a_day, rest = 24 * 3600 * 1000 - 60_000, 61_000
    execute("UPDATE idempotency_keys SET created_at = created_at - ?", (almost_a_day,))
    assert upload(route, token, body).send(client).text == first.text
    execute("UPDATE idempotency_keys SET created_at = created_at - ?", (rest,))
    later = upload(route, token, body).send(client)
    assert (later.status_code, later.headers.get("idempotency-replayed")) == (201, None)
    assert len(rows("SELECT id FROM exports")) == 2


def test_without_a_key_different_uploads_are_separate(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    token, project_id, colleague = make_platform_token(customer), customer.project_id, make_colleague(customer)
    accounts.grant_project(colleague.email, project_id, NOW)
    body = route.body(project_id)
    others = [
        upload(route, token, body),
        upload(route, make_platform_token(colleague), body),
        upload(route, token, {**body, "report_id": make_report(project_id)}),
        upload(route, token, {**body, "project_id": make_project(customer)}),
        upload(route, token, {**body, **route.other_text}),
        # With keys, the keys decide.
        upload(route, token, body, "k"),
        upload(route, token, body, "l"),
    ]
    answers = [call.send(client) for call in others]
    assert [(each.status_code, each.headers.get("idempotency-replayed")) for each in answers] == [(201, None)] * len(others)
    assert len(rows("SELECT id FROM exports")) == len(others)


def test_uploads_of_the_same_thing_at_the_same_time_make_one_ticket(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    call, start = upload(route, make_platform_token(customer), route.body(customer.project_id)), threading.Barrier(8)

    def send(_: int) -> tuple[int, str]:
        start.wait()
        answer = call.send(client)
        return answer.status_code, answer.text

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(send, range(8)))
    [(status, _)] = answers
    assert status == 201
    assert len(rows("SELECT id FROM exports")) == len(rows("SELECT id FROM handoffs")) == 1


def test_a_refused_upload_stores_no_response(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    call = upload(route, make_platform_token(customer), route.body(customer.project_id))
    execute("DELETE FROM grants WHERE user_id = ?", (customer.user_id,))
    assert_is_error(call.send(client), 403, "FORBIDDEN")
    grant = "INSERT INTO grants (user_id, project_id, created_at) VALUES (?, ?, 0)"
    execute(grant, (customer.user_id, customer.project_id))
    assert call.send(client).status_code == 201
    # A user whose grant was removed does not get the stored response either.
    execute("DELETE FROM grants WHERE user_id = ?", (customer.user_id,))
    assert_is_error(call.send(client), 403, "FORBIDDEN")


def test_a_key_reused_with_another_payload_is_a_conflict(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    token = make_platform_token(customer)
    assert upload(route, token, route.body(customer.project_id), "k").send(client).status_code == 201
    report_id = make_report(customer.project_id)
    other = upload(route, token, route.body(customer.project_id, report_id=report_id), "k").send(client)
    assert_is_error(other, 409, "IDEMPOTENCY_CONFLICT")
    assert len(rows("SELECT id FROM handoffs")) == 1


def test_the_same_key_of_another_user_or_route_is_a_separate_request(client: TestClient, customer: Customer) -> None:
    stranger = make_customer()
    for each in ROUTES.values():
        for who in (customer, stranger):
            answer = upload(each, make_platform_token(who), each.body(who.project_id), "k").send(client)
            assert (answer.status_code, answer.headers.get("idempotency-replayed")) == (201, None)
    assert len(rows("SELECT id FROM handoffs")) == 6


def test_a_repeated_upload_is_refused_after_the_grant_was_withdrawn(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    call = upload(route, make_platform_token(customer), route.body(customer.project_id), "k")
    first = call.send(client)
    execute("DELETE FROM grants WHERE user_id = ?", (customer.user_id,))
    assert_is_error(call.send(client), 403, "FORBIDDEN")
    execute("INSERT INTO grants (user_id, project_id, created_at) VALUES (?, ?, 0)", (customer.user_id, customer.project_id))
    assert call.send(client).text == first.text


def test_a_repeat_with_a_revoked_token_is_unauthorized(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    row, token = tokens.create(customer.email, TokenKind.PLATFORM, NOW)
    call = upload(route, token, route.body(customer.project_id), "k")
    assert call.send(client).status_code == 201
    tokens.revoke(row.id, utc_now())
    assert_is_error(call.send(client), 401, "UNAUTHORIZED")


def test_a_refused_upload_stores_no_key(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    token, project_id = make_platform_token(customer), make_project(customer, is_granted=False)
    assert upload(route, token, route.body(project_id), "k").send(client).status_code == 403
    answer = upload(route, token, route.body(customer.project_id), "k").send(client)
    assert (answer.status_code, answer.headers.get("idempotency-replayed")) == (201, None)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_dry_run_returns_the_record_that_would_be_stored_and_stores_nothing(
    client: TestClient, customer: Customer, route: UploadRoute, key: str | None
) -> None:
    call = upload(route, make_platform_token(customer), route.body(customer.project_id), key)
    stored = everything_stored()

    answer = Call(call.method, call.path, call.headers, call.body, query="dry_run=true").send(client)

    assert answer.status_code == 200
    assert everything_stored() == stored
    real = call.send(client)
    assert real.status_code == 201
    assert without_new_values(answer.json) == without_new_values(real.json)


def test_a_dry_run_refuses_an_invalid_upload(client: TestClient, customer: Customer, route: UploadRoute) -> None:
    call = upload(route, make_platform_token(customer), route.body(make_project(customer, is_granted=False)))
    assert_is_error(Call(call.method, call.path, call.headers, call.body, "dry_run=1").send(client), 403, "FORBIDDEN")


def without_new_values(value: Any) -> Any:
    """Return a response without the members that are always new: IDs and times."""
    if not isinstance(value, dict):
        return value
    return {
        name: without_new_values(inner)
        for name, inner in value.items()
        if name not in {"id", "ticket_export_id", "created_at"}
    }


# --- what is refused: one scene for all rows, which none of them changes


@dataclass
class UploadScene:
    """A customer with two projects and reports, a guest with access to one report, another account, and tokens."""

    client: TestClient
    customer: Customer
    stranger: Customer
    report: int
    sibling: int
    second: int
    seconds_report: int
    ungranted: int
    ungranted_report: int
    strange_report: int
    shop: int
    token: str
    guest_token: str
    tokens: dict[str, str]
    stored: dict[str, list[tuple[Any, ...]]]

    def call(self, route: UploadRoute, **changes: Any) -> Call:
        """Return a valid upload with some members changed."""
        return upload(route, self.token, {**route.body(self.customer.project_id), **changes})


@pytest.fixture(scope="module")
def scene(module_database: Path) -> UploadScene:
    """The scene, once for each database."""
    return _set_scene(module_database)


def _set_scene(folder: Path) -> UploadScene:
    customer, stranger = make_customer(), make_customer()
    guest = make_colleague(customer)
    second, ungranted = make_project(customer), make_project(customer, is_granted=False)
    many = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000", "MAX_BODY_BYTES": str(LIMIT_BYTES)}
    made = UploadScene(
        client=cloud(folder, **many),
        customer=customer,
        stranger=stranger,
        report=make_report(customer.project_id, guest),
        sibling=make_report(customer.project_id),
        second=second,
        seconds_report=make_report(second),
        ungranted=ungranted,
        ungranted_report=make_report(ungranted),
        strange_report=make_report(stranger.project_id),
        shop=make_project(customer, "ice.shops.example"),
        token=make_platform_token(customer),
        guest_token=make_platform_token(guest),
        tokens=_bad_tokens(customer),
        stored={},
    )
    made.stored = everything_stored()
    return made


def _bad_tokens(customer: Customer) -> dict[str, str]:
    now = utc_now()
    expired = tokens.create(customer.email, TokenKind.PLATFORM, now - timedelta(days=2), expires=timedelta(days=1))
    revoked = tokens.create(customer.email, TokenKind.PLATFORM, now)
    tokens.revoke(revoked[0].id, now)
    return {"expired": expired[1], "revoked": revoked[1]}


def with_token(call: Call, token: str, scheme: str = "Bearer") -> Call:
    return call.without("Authorization").plus(("Authorization", f"{scheme} {token}"))


UNAUTHORIZED: dict[str, Callable[[UploadScene, Call], Call]] = {
    "no token": lambda _, call: call.without("Authorization"),
    "an empty header": lambda _, call: call.without("Authorization").plus(("Authorization", "")),
    "another scheme": lambda scene, call: with_token(call, scene.token, "Basic"),
    "a made-up token": lambda _, call: with_token(call, CANARY),
    "a token and more": lambda scene, call: with_token(call, f"{scene.token}{CANARY}"),
    "an expired token": lambda scene, call: with_token(call, scene.tokens["expired"]),
    "a revoked token": lambda scene, call: with_token(call, scene.tokens["revoked"]),
    "the header twice": lambda scene, call: call.plus(("Authorization", f"Bearer {scene.token}")),
    "a token in the query": lambda scene, call: Call(
        call.method, call.path, call.without("Authorization").headers, call.body, query=f"token={scene.token}"
    ),
    "a token in the body": lambda scene, call: call.without("Authorization").with_json({"token": scene.token}),
    "the scanner's header": lambda _, call: call.without("Authorization").plus(*SCANNER.items()),
    "the scanner's secret as a token": lambda _, call: with_token(call, SCANNER_SECRET),
    "a storefront's signature": lambda _, call: call.without("Authorization").plus(("X-Platform-Hmac-Sha256", "0" * 64)),
}


@pytest.mark.parametrize("case", UNAUTHORIZED)
def test_an_upload_without_a_credential_is_unauthorized(
    scene: UploadScene, route: UploadRoute, case: str, log_lines: LogLines
) -> None:
    answer = UNAUTHORIZED[case](scene, scene.call(route)).send(scene.client)
    assert_is_error(answer, 401, "UNAUTHORIZED")
    assert answer.headers["www-authenticate"] == 'Bearer realm="riskrelay"'
    for secret in (CANARY, scene.token, SCANNER_SECRET):
        assert secret not in answer.text
        assert secret not in log_lines.text
    assert everything_stored() == scene.stored


@pytest.mark.parametrize(
    "ability", [ability for ability in Ability if ability not in {each.ability for each in ROUTES.values()}]
)
def test_an_api_token_cannot_upload(client: TestClient, customer: Customer, route: UploadRoute, ability: Ability) -> None:
    token = tokens.create(customer.email, TokenKind.API, NOW, [ability])[1]
    answer = upload(route, token, route.body(customer.project_id)).send(client)
    assert_is_error(answer, 403, "FORBIDDEN")
    assert rows("SELECT id FROM handoffs") == []


def test_each_route_needs_its_own_ability(client: TestClient, customer: Customer) -> None:
    statuses = {
        (name, ability): upload(each, make_platform_token(customer, ability), each.body(customer.project_id))
        .send(client)
        .status_code
        for name, each in ROUTES.items()
        for ability in (other.ability for other in ROUTES.values())
    }
    assert statuses == {(name, ability): 201 if ability is ROUTES[name].ability else 403 for name, ability in statuses}
    assert len(rows("SELECT id FROM handoffs")) == 3


def test_a_platform_token_opens_no_other_route(client: TestClient, customer: Customer) -> None:
    token = make_platform_token(customer)
    for method, path in (("POST", TARGETS), ("GET", f"{EXPORTS}/exp_1"), ("POST", f"{EXPORTS}/exp_1/approve")):
        call = Call(method, path, (("Authorization", f"Bearer {token}"), *JSON.items())).with_json({})
        assert_is_error(call.send(client), 403, "FORBIDDEN")


#: Columns: token; project and report that its user may not manage.
NOT_MANAGED: dict[str, Callable[[UploadScene], tuple[str, int, int | None]]] = {
    "a project that was not granted": lambda s: (s.token, s.ungranted, None),
    "its report": lambda s: (s.token, s.ungranted, s.ungranted_report),
    "one's own report there": lambda s: (s.token, s.ungranted, s.report),
    "another account's project": lambda s: (s.token, s.stranger.project_id, None),
    "another account's project and report": lambda s: (s.token, s.stranger.project_id, s.strange_report),
    "no such project": lambda s: (s.token, 4711, None),
    "no such project, with a report": lambda s: (s.token, 4711, s.report),
    "a project beyond the database's integers": lambda s: (s.token, 2**31, None),
    "the largest project": lambda s: (s.token, 2**63 - 1, None),
    "a guest without the report": lambda s: (s.guest_token, s.customer.project_id, None),
    "a guest with another report": lambda s: (s.guest_token, s.customer.project_id, s.sibling),
    "a guest with the report in another project": lambda s: (s.guest_token, s.second, s.report),
}


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("case", NOT_MANAGED)
def test_every_project_without_a_grant_gets_the_same_refusal(
    scene: UploadScene, route: UploadRoute, case: str, key: str | None
) -> None:
    token, project_id, report_id = NOT_MANAGED[case](scene)
    answer = upload(route, token, route.body(project_id, report_id=report_id), key).send(scene.client)
    assert_is_error(answer, 403, "FORBIDDEN")
    assert answer.json["error"]["message"] == NOT_YOURS
    assert everything_stored() == scene.stored


def test_a_user_with_a_report_grant_may_upload_only_for_that_report(
    client: TestClient, customer: Customer, route: UploadRoute
) -> None:
    guest = make_colleague(customer)
    report_id = make_report(customer.project_id, guest)
    answer = upload(route, make_platform_token(guest), route.body(customer.project_id, report_id=report_id)).send(client)
    assert answer.status_code == 201
    assert rows("SELECT user_id, report_id FROM handoffs") == [(guest.user_id, report_id)]


#: Columns: token; report that does not belong to the project.
NOT_IN_PROJECT: dict[str, Callable[[UploadScene], tuple[str, int]]] = {
    "a report of another project": lambda s: (s.token, s.seconds_report),
    "a report that was not granted": lambda s: (s.token, s.ungranted_report),
    "another account's report": lambda s: (s.token, s.strange_report),
    "no such report": lambda s: (s.token, 4711),
    "the largest report": lambda s: (s.token, 2**63 - 1),
    "a guest with a report of another project": lambda s: (s.guest_token, s.seconds_report),
    "a guest with no such report": lambda s: (s.guest_token, 4711),
}


@pytest.mark.parametrize("query", ["", "dry_run=true"])
@pytest.mark.parametrize("case", NOT_IN_PROJECT)
def test_a_report_outside_the_project_is_refused_with_the_same_error_for_every_cause(
    scene: UploadScene, route: UploadRoute, case: str, query: str
) -> None:
    token, report_id = NOT_IN_PROJECT[case](scene)
    call = upload(route, token, route.body(scene.customer.project_id, report_id=report_id))
    answer = Call(call.method, call.path, call.headers, call.body, query).send(scene.client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/report_id", "report_not_in_project"),))
    assert everything_stored() == scene.stored


def test_the_report_is_checked_before_the_shop(scene: UploadScene) -> None:
    answer = scene.call(ROUTES["app"], project_id=scene.shop, report_id=scene.report).send(scene.client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/report_id", "report_not_in_project"),))


def test_another_shop_than_the_projects_is_refused(scene: UploadScene) -> None:
    answer = scene.call(ROUTES["app"], project_id=scene.shop).send(scene.client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/shop_domain", "other_shop"),))
    assert everything_stored() == scene.stored


#: The invalid members that the specification names, and more of each kind.
INVALID: list[tuple[str, dict[str, Any], str, str]] = [
    ("capture", {"project_id": None}, "/project_id", "null"),
    ("capture", {"project_id": "1"}, "/project_id", "invalid_type"),
    ("capture", {"project_id": 2**63}, "/project_id", "out_of_range"),
    ("capture", {"project_id": 10**40}, "/project_id", "out_of_range"),
    ("capture", {"report_id": 2**63}, "/report_id", "out_of_range"),
    ("capture", {"report_id": -1}, "/report_id", "out_of_range"),
    ("capture", {"page_url": "not a url"}, "/page_url", "invalid_url"),
    ("capture", {"canonical_url": "ftp://shop.example"}, "/canonical_url", "invalid_url"),
    ("capture", {"captured_at": "2026-03-01T12:00:00"}, "/captured_at", "invalid_timestamp"),
    ("capture", {"captured_at": "0001-01-01T00:00:00+14:00"}, "/captured_at", "invalid_timestamp"),
    ("capture", {"heading_outline": [{"level": "h7", "text": "x"}]}, "/heading_outline/0/level", "not_allowed"),
    ("capture", {"heading_outline": [{"level": "h1", "text": "x"}] * 201}, "/heading_outline", "too_many"),
    ("capture", {"selected_text": "x" * 20_001}, "/selected_text", "too_long"),
    ("capture", {CANARY: CANARY}, "", "unknown_member"),
    ("plugin", {"project_id": 1.5}, "/project_id", "invalid_type"),
    ("plugin", {"report_id": "1"}, "/report_id", "invalid_type"),
    ("plugin", {"platform": CANARY}, "/platform", "not_allowed"),
    ("plugin", {"platform": None}, "/platform", "null"),
    ("plugin", {"site_url": CANARY}, "/site_url", "invalid_url"),
    ("plugin", {"diagnostics": None}, "/diagnostics", "null"),
    ("plugin", {"diagnostics": {CANARY: CANARY}}, "/diagnostics", "unknown_member"),
    ("plugin", {"diagnostics": {"checkout_page_url": CANARY}}, "/diagnostics/checkout_page_url", "invalid_url"),
    ("app", {"project_id": True}, "/project_id", "invalid_type"),
    ("app", {"report_id": {}}, "/report_id", "invalid_type"),
    ("app", {"shop_domain": f"https://{CANARY}.example"}, "/shop_domain", "invalid_shop_domain"),
    ("app", {"shop_domain": None}, "/shop_domain", "null"),
    ("app", {"granted_scopes": []}, "/granted_scopes", "too_short"),
    ("app", {"granted_scopes": ["read_content", CANARY]}, "/granted_scopes/1", "not_allowed"),
    ("app", {"granted_scopes": ["write_products"]}, "/granted_scopes/0", "not_allowed"),
    ("app", {"diagnostics": {"theme_count": -1}}, "/diagnostics/theme_count", "out_of_range"),
    ("app", {"diagnostics": {CANARY: 1}}, "/diagnostics", "unknown_member"),
]


@pytest.mark.parametrize(("name", "changes", "path", "code"), INVALID)
def test_invalid_members_are_reported_and_nothing_is_stored(
    scene: UploadScene, name: str, changes: dict[str, Any], path: str, code: str, log_lines: LogLines
) -> None:
    answer = scene.call(ROUTES[name], **changes).send(scene.client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(path, code),))
    assert CANARY not in answer.text
    assert CANARY not in log_lines.text
    assert everything_stored() == scene.stored


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("capture", ["page_url", "project_id"]),
        ("plugin", ["diagnostics", "platform", "project_id", "site_url"]),
        ("app", ["diagnostics", "granted_scopes", "project_id", "shop_domain"]),
    ],
)
def test_missing_members_are_reported(scene: UploadScene, name: str, required: list[str]) -> None:
    answer = upload(ROUTES[name], scene.token, {}).send(scene.client)
    expected = tuple(FieldRefusal(f"/{member}", "required") for member in required)
    assert_is_error(answer, 422, "VALIDATION_FAILED", expected)


def test_invalid_http_requests_are_rejected(scene: UploadScene, route: UploadRoute) -> None:
    call = scene.call(route)
    typed = call.without("Content-Type")
    assert_is_error(typed.plus(("Content-Type", "text/plain")).send(scene.client), 415, "UNSUPPORTED_MEDIA_TYPE")
    assert_is_error(call.plus(("Accept", "text/html")).send(scene.client), 406, "NOT_ACCEPTABLE")
    large = Call(call.method, call.path, call.headers, b'"' + b"x" * LIMIT_BYTES + b'"')
    assert_is_error(large.send(scene.client), 413, "PAYLOAD_TOO_LARGE")
    for method in ("GET", "PUT", "DELETE"):
        assert_is_error(Call(method, call.path, call.headers).send(scene.client), 405, "METHOD_NOT_ALLOWED")
    broken = (
        b"",
        b"{",
        b"[1,]",
        b'{"project_id":1,"project_id":1}',
        b'{"project_id":NaN}',
        b'{"page_title":"\\u0000"}',
        b"\xff",
    )
    for body in broken:
        answer = Call(call.method, call.path, call.headers, body).send(scene.client)
        assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("", "malformed_json"),))
    assert everything_stored() == scene.stored


WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    10**30,
    "",
    CANARY,
    "\ud83d\ude00" * 30,
    [],
    [CANARY],
    {},
    {CANARY: CANARY},
]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a body, beginning with the body itself."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield from places(inner, (*path, name))


def put(value: Any, path: tuple[str | int, ...], wrong: Any) -> Any:
    """Return a copy of a body with another value at `path`."""
    if not path:
        return wrong
    copy = json.loads(json.dumps(value))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = wrong
    return copy


def test_a_wrong_value_in_any_field_is_accepted_or_rejected_with_its_path(scene: UploadScene, route: UploadRoute) -> None:
    body = route.body(scene.customer.project_id, report_id=scene.report)
    known = {str(name) for path in places(body) for name in path}
    for path in places(body):
        for wrong in WRONG:
            call = upload(route, scene.token, put(body, path, wrong))
            answer = Call(call.method, call.path, call.headers, call.body, query="dry_run=true").send(scene.client)
            where = (path, wrong, answer.text)
            assert answer.status_code in {200, 403, 422}, where
            if answer.status_code == 422:
                for record in answer.json["error"]["details"]["fields"]:
                    names = record["path"].split("/")[1:]
                    # The error is at the place, above it if the place no longer exists, or below the new value.
                    assert set(names) <= known | {"0", ""}, where
                assert CANARY not in answer.text, where
    assert everything_stored() == scene.stored


# --- unusual strings


#: One text in every member that accepts any text.
FILLED: dict[str, Callable[[str], dict[str, Any]]] = {
    "capture": lambda text: {
        "page_title": text,
        "selected_text": text,
        "meta_description": text,
        "heading_outline": [{"level": "h1", "text": text}],
        "extension_version": text[:100],
    },
    "plugin": lambda text: {
        "plugin_version": text[:100],
        "diagnostics": {
            "cms_version": text[:100],
            "commerce_plugin_version": text[:100],
            "active_theme": text[:200],
            "active_plugin_names": [text[:200], text[:200]],
            "checkout_page_url": None,
            "commerce_plugin_status": text[:200],
            "visible_browser_symptoms": [text],
        },
    },
    "app": lambda text: {
        "shop_name": text[:200],
        "app_version": text[:100],
        "diagnostics": {
            "primary_domain": text,
            "published_theme_name": text[:200],
            "theme_count": 1,
            "product_count_bucket": text[:100],
            "checkout_profile_status": text[:200],
            "app_embed_status": text[:200],
            "visible_storefront_symptoms": [text],
        },
    },
}

#: The columns that store these members, in the same order; the members in IN_JSON are stored as JSON.
KEPT = {
    "capture": ("evidence_captures", "page_title, selected_text, meta_description, heading_outline, extension_version"),
    "plugin": ("diagnostics", "client_version, diagnostics"),
    "app": ("diagnostics", "shop_name, client_version, diagnostics"),
}
IN_JSON = ("heading_outline", "diagnostics")


def kept(name: str, record_id: str) -> list[Any]:
    """Return the values that the route's table stores of a record's members."""
    table, columns = KEPT[name]
    [row] = rows(f"SELECT {columns} FROM {table} WHERE id = ?", (record_id,))  # noqa: S608 - our own names
    return [
        json.loads(value) if column in IN_JSON else value for column, value in zip(columns.split(", "), row, strict=True)
    ]


@pytest.mark.parametrize("name", ROUTES)
def test_naughty_strings_are_kept_unchanged_or_refused_by_name(client: TestClient, customer: Customer, name: str) -> None:
    each, token = ROUTES[name], make_platform_token(customer)
    refused = []
    for text in naughty_strings():
        members = FILLED[name](text)
        answer = upload(each, token, {"project_id": customer.project_id, **each.least, **members}).send(client)
        if answer.status_code == 422:
            assert answer.json["error"]["details"]["fields"], text
            refused.append(text)
            continue
        assert answer.status_code == 201, (text, answer.text)
        record = answer.json[each.record]
        assert {member: record[member] for member in members} == members
        assert kept(name, record["id"]) == list(members.values())
    # Hardly any of them contains forbidden content.
    assert len(refused) <= 10, refused


# --- content that must never be stored


CARD = "4242424242424242"

WHOLE_PAGE = f"<!DOCTYPE html><html><head><title>{CANARY}</title></head><body><p>x</p></body></html>"
SYMPTOMS = "/diagnostics/visible_browser_symptoms"

#: Columns: route; members with forbidden content; path and rule of the error; text that must not be found anywhere.
FORBIDDEN_CONTENT: list[tuple[str, dict[str, Any], str, str, str]] = [
    # --- by name: the path contains the forbidden name as it is listed, without its prefix
    ("capture", {"cookies": f"sid={CANARY}"}, "/cookies", "forbidden_name", CANARY),
    ("capture", {"local_storage": {"token": CANARY}}, "/local_storage", "forbidden_name", CANARY),
    ("capture", {"localStorage": CANARY}, "/local_storage", "forbidden_name", CANARY),
    ("capture", {"full_html": f"<p>{CANARY}</p>"}, "/full_html", "forbidden_name", CANARY),
    ("plugin", {"password": CANARY}, "/password", "forbidden_name", CANARY),
    ("plugin", {"diagnostics": {"admin_password": CANARY}}, "/diagnostics/password", "forbidden_name", CANARY),
    ("plugin", {"diagnostics": {"database_dump": CANARY}}, "/diagnostics/database_dump", "forbidden_name", CANARY),
    ("app", {"api_key": CANARY}, "/api_key", "forbidden_name", CANARY),
    ("app", {"access_token": CANARY}, "/access_token", "forbidden_name", CANARY),
    ("app", {"diagnostics": {"line_items": [{"sku": CANARY}]}}, "/diagnostics/line_items", "forbidden_name", CANARY),
    ("app", {"diagnostics": {"billing_address": {"s": CANARY}}}, "/diagnostics/billing_address", "forbidden_name", CANARY),
    # --- by text
    ("capture", {"selected_text": f"Card {CARD} declined"}, "/selected_text", "card_number", CARD),
    ("capture", {"heading_outline": [{"level": "h1", "text": CARD}]}, "/heading_outline/0/text", "card_number", CARD),
    ("capture", {"page_title": "4242 4242 4242 4242"}, "/page_title", "card_number", "4242 4242"),
    ("capture", {"page_url": f"https://shop.example/?card={CARD}"}, "/page_url", "card_number", CARD),
    ("capture", {"page_url": f"https://me:{CANARY}@shop.example/"}, "/page_url", "url_credentials", CANARY),
    ("capture", {"selected_text": WHOLE_PAGE}, "/selected_text", "html_document", CANARY),
    ("capture", {"selected_text": f"Cookie: session_id={CANARY}; theme=dark"}, "/selected_text", "cookie_line", CANARY),
    (
        "capture",
        {"meta_description": f"Authorization: Bearer {CANARY}{'a1B2' * 8}"},
        "/meta_description",
        "authorization_line",
        CANARY,
    ),
    ("plugin", {"diagnostics": {"visible_browser_symptoms": ["slow", CARD]}}, f"{SYMPTOMS}/1", "card_number", CARD),
    ("plugin", {"diagnostics": {"visible_browser_symptoms": f"It says {CARD}."}}, SYMPTOMS, "card_number", CARD),
    ("plugin", {"diagnostics": {"active_plugin_names": [CARD]}}, "/diagnostics/active_plugin_names/0", "card_number", CARD),
    ("app", {"shop_name": f"Shop {CARD}"}, "/shop_name", "card_number", CARD),
    ("app", {"diagnostics": {"app_embed_status": CARD}}, "/diagnostics/app_embed_status", "card_number", CARD),
]


@pytest.mark.parametrize(("name", "members", "path", "rule", "secret"), FORBIDDEN_CONTENT)
def test_forbidden_content_is_refused_by_rule_and_stored_nowhere(
    scene: UploadScene, name: str, members: dict[str, Any], path: str, rule: str, secret: str, log_lines: LogLines
) -> None:
    answer = scene.call(ROUTES[name], **members).send(scene.client)
    # A forbidden name is also unknown to the form; both errors are reported.
    unknown = (FieldRefusal(path.rpartition("/")[0], "unknown_member"),) if rule == "forbidden_name" else ()
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(path, rule), *unknown))
    assert secret not in answer.text
    assert secret not in log_lines.text
    assert everything_stored() == scene.stored


def test_uploads_with_ordinary_text_make_safe_tickets(client: TestClient, customer: Customer) -> None:
    text = "Order 1001 shipped. Call +44 20 7946 0958 or read EAN 4006381333931. " * 20
    for name, each in ROUTES.items():
        body = {"project_id": customer.project_id, **each.least, **FILLED[name](text[:900])}
        answer = upload(each, make_platform_token(customer), body).send(client)
        assert answer.status_code == 201, answer.text
        assert queries.get(answer.json["handoff"]["ticket_export_id"]).preview_problems == ()
