"""Withdrawn permissions: the next request in any process is refused, and no personal data of a removed user is left."""

from collections.abc import Callable
from pathlib import Path

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.errors import Conflict, NotFound, WebhooksForbidden
from schemas.base.principal import OPERATOR, Ability, TokenKind
from schemas.settings.definitions import DeploymentMode
from service.app import create_app
from service.operations.accounts import accounts as operations
from service.operations.wiring import build_operations
from storage.accounts import accounts, grants, sessions, tokens
from storage.db.engine import execute, rows
from storage.exports import transitions
from storage.targets import targets
from tests.support.factories import (
    NOW,
    Customer,
    capture,
    make_approved,
    make_colleague,
    make_customer,
    make_exports,
    make_platform_token,
    make_report,
    make_settings,
    make_target,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import EXPORTS, JSON, TARGETS, Call, FieldRefusal, assert_is_error
from tests.support.http.storefront import stored

CAPTURES = "/api/browser-extension/evidence-captures"
HOST = "tracker.example.com"


@pytest.fixture
def clients(tmp_path: Path) -> list[TestClient]:
    """Two applications with one database, like two processes."""
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": DeploymentMode.CLOUD.value})
    resolver = FakeResolver({HOST: ["93.184.215.14"]})
    return [TestClient(create_app(settings, FakeWakeUpQueue(), resolver)) for _ in range(2)]


def statuses(clients: list[TestClient], call: Call) -> list[int]:
    return [call.send(client).status_code for client in clients]


def upload(customer: Customer, token: str, report_id: int | None = None) -> Call:
    headers = (("Authorization", f"Bearer {token}"), *JSON.items())
    return Call("POST", CAPTURES, headers).with_json(capture(customer.project_id, report_id=report_id))


def reading(customer: Customer) -> Call:
    return Call("GET", EXPORTS, tuple(customer.bearer.items()))


def polling(customer: Customer, export_id: str) -> Call:
    return Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items()))


# --- grants


def test_a_withdrawn_grant_ends_with_the_next_upload(customer: Customer, clients: list[TestClient]) -> None:
    call = upload(customer, make_platform_token(customer))
    assert statuses(clients, call) == [201, 201]
    [grant] = grants.list_all(customer.email)
    assert (grant.user, grant.project_id, grant.report_id, grant.is_disabled) == (
        customer.email,
        customer.project_id,
        None,
        False,
    )
    assert operations.remove_grant(grant.id, OPERATOR) == grant
    assert statuses(clients, call) == [403, 403]
    assert grants.list_all(customer.email) == []
    audited = rows(
        "SELECT action, actor, subject_id, reason FROM audit_entries "
        "WHERE action IN ('add_grant', 'remove_grant') ORDER BY id"
    )
    entry = ("operator", f"user:{customer.user_id}", f"project:{customer.project_id}")
    assert audited == [("add_grant", *entry), ("remove_grant", *entry)]
    with pytest.raises(NotFound, match="grant list"):
        operations.remove_grant(grant.id, OPERATOR)


def test_a_grant_on_a_report_is_withdrawn_alone(customer: Customer, clients: list[TestClient]) -> None:
    report_id = make_report(customer.project_id)
    accounts.grant_report(customer.email, report_id, NOW)
    [_, of_report] = grants.list_all()
    operations.remove_grant(of_report.id, OPERATOR)
    assert statuses(clients, upload(customer, make_platform_token(customer), report_id)) == [201, 201]
    assert rows("SELECT reason FROM audit_entries WHERE action = 'remove_grant'") == [(f"report:{report_id}",)]


# --- users


def test_a_disabled_users_tokens_and_sessions_end_with_the_next_request(
    customer: Customer, clients: list[TestClient]
) -> None:
    [export_id] = make_exports(customer, 1)
    colleague = make_colleague(customer)
    platform_token = make_platform_token(customer)
    calls = [reading(customer), polling(customer, export_id), upload(customer, platform_token)]
    browser = ConsoleBrowser(clients[0])
    browser.sign_in(make_console_token(customer))
    assert browser.get("/exports").status_code == 200

    user = operations.disable_user(customer.email, OPERATOR)

    assert user.state == "disabled"
    assert [statuses(clients, call) for call in calls] == [[401, 401]] * 3
    assert browser.get("/exports").headers["location"].endswith("why=revoked")
    assert statuses(clients, reading(colleague)) == [200, 200]
    assert sessions.list_live(utc_now(), 10) == []
    with pytest.raises(Conflict, match="user enable"):
        tokens.create(customer.email, TokenKind.API, NOW)

    assert operations.disable_user(customer.email, OPERATOR) == user
    assert operations.enable_user(customer.email, OPERATOR).state == "active"
    assert [statuses(clients, call) for call in calls] == [[200, 200], [200, 200], [201, 201]]
    # The sessions do not come back.
    assert browser.get("/exports").status_code == 303
    subject = (f"user:{customer.user_id}",)
    audited = rows("SELECT action FROM audit_entries WHERE subject_id = ? ORDER BY id", subject)
    assert audited == [("add_grant",), ("disable_user",), ("enable_user",)]


def test_a_disabled_user_cannot_begin_a_session(customer: Customer) -> None:
    principal = tokens.principal_for(make_console_token(customer), utc_now())
    assert principal is not None
    operations.disable_user(customer.email, OPERATOR)
    with pytest.raises(Conflict):
        sessions.begin(principal, "a browser", utc_now())
    assert sessions.list_live(utc_now(), 10) == []


def test_a_removed_user_leaves_an_id_and_nothing_else(customer: Customer, clients: list[TestClient]) -> None:
    token = tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.CONSOLE,), "the laptop of Ada")[1]
    browser = ConsoleBrowser(clients[0])
    browser.sign_in(token)
    call = upload(customer, make_platform_token(customer)).plus(("Idempotency-Key", "k"))
    assert statuses(clients, call) == [201, 201]
    stranger = make_customer()

    removed = operations.remove_user(customer.email, OPERATOR)

    assert (removed.state, removed.id) == ("removed", customer.user_id)
    assert [statuses(clients, each) for each in (call, reading(customer))] == [[401, 401]] * 2
    assert browser.get("/exports").headers["location"].endswith("why=revoked")
    assert [text for text in (customer.email, "laptop of ada") if text in stored()] == []
    assert rows("SELECT COUNT(*) FROM tokens WHERE revoked_at IS NULL AND user_id = ?", (customer.user_id,)) == [(0,)]
    assert [grant.user for grant in grants.list_all()] == [stranger.email]
    assert rows("SELECT COUNT(*) FROM idempotency_keys") == [(0,)]
    # The user's actions are still recorded, under the user's ID.
    assert rows("SELECT user_id FROM handoffs") == [(customer.user_id,)]
    actors = {row[0] for row in rows("SELECT actor FROM audit_entries")}
    assert f"user:{customer.user_id}" in actors
    assert accounts.emails_of([customer.user_id, stranger.user_id]) == {stranger.user_id: stranger.email}


def test_a_removed_user_cannot_be_changed_or_restored(customer: Customer, clients: list[TestClient]) -> None:
    removed = operations.remove_user(customer.email, OPERATOR)
    for email in (customer.email, removed.email):
        for change in (operations.enable_user, operations.disable_user, operations.remove_user):
            with pytest.raises(NotFound):
                change(email, OPERATOR)
        with pytest.raises(NotFound):
            accounts.grant_project(email, customer.project_id, NOW)
    # A user added later with the same address is another user.
    again = accounts.add_user(customer.email, customer.account_id, NOW)
    assert again.id != customer.user_id
    assert statuses(clients, reading(customer)) == [401, 401]


# --- webhooks


def new_target(customer: Customer) -> Call:
    body = {"provider_key": "generic_webhook", "base_url": f"https://{HOST}/hook", "name": "Tracker"}
    return Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(body)


def act(customer: Customer, path: str, client: TestClient, body: object = None) -> Result:
    return Call("POST", path, (*customer.bearer.items(), *JSON.items())).with_json(body or {}).send(client)


def test_an_account_without_webhooks_sends_nothing_from_the_next_request_on(
    customer: Customer, clients: list[TestClient]
) -> None:
    target, other = make_target(customer), make_target(make_customer())
    waiting = make_approved(customer, target.id)
    [prepared] = make_exports(customer, 1)

    account = operations.set_webhooks(customer.account_id, False, OPERATOR)

    assert account.may_use_webhooks is False
    blocked = targets.get(target.id, None)
    assert (blocked.status, blocked.status_reason) == ("blocked", "webhooks_not_allowed")
    assert targets.get(other.id, None).status == "active"
    client = clients[1]
    assert statuses(clients, new_target(customer)) == [403, 403]
    approval = act(customer, f"{EXPORTS}/{prepared}/approve", client, {"target_id": target.id})
    assert_is_error(approval, 422, "VALIDATION_FAILED", (FieldRefusal("/target_id", "target_not_active"),))
    for path in (f"{TARGETS}/{target.id}/resume", f"{TARGETS}/{target.id}/ping"):
        assert_is_error(act(customer, path, client), 403, "FORBIDDEN")
    assert statuses(clients, polling(customer, waiting)) == [200, 200]
    audited = rows("SELECT actor, action, subject_id, reason FROM audit_entries ORDER BY id DESC LIMIT 2")
    assert audited == [
        ("operator", "target_blocked", target.id, "webhooks_not_allowed"),
        ("operator", "set_webhooks", f"account:{customer.account_id}", "off"),
    ]


def test_not_even_the_operator_resumes_a_target_of_an_account_without_webhooks(customer: Customer, tmp_path: Path) -> None:
    target, inactive = make_target(customer), make_target(customer)
    execute("UPDATE targets SET status = 'inactive', status_reason = 'no_secret' WHERE id = ?", (inactive.id,))
    all_operations = build_operations(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({HOST: ["93.184.215.14"]}))
    export_id = make_approved(customer, target.id)
    operations.set_webhooks(customer.account_id, False, OPERATOR)
    assert transitions.end_waiting([target.id], utc_now(), "worker:test", 10) == 1
    with pytest.raises(WebhooksForbidden):
        all_operations.targets.check_and_resume(target.id, OPERATOR)
    validation = all_operations.exports.check_blocked_target(export_id, OPERATOR)
    with pytest.raises(WebhooksForbidden):
        all_operations.exports.retry(export_id, OPERATOR, validation)
    assert rows("SELECT DISTINCT status FROM targets") == [("blocked",)]

    operations.set_webhooks(customer.account_id, True, OPERATOR)
    assert rows("SELECT DISTINCT status FROM targets") == [("blocked",)]
    all_operations.targets.check_and_resume(target.id, OPERATOR)
    assert targets.get(target.id, None).status == "active"


def test_withdrawing_webhooks_keeps_the_reason_of_targets_that_are_already_off(customer: Customer) -> None:
    reasons: dict[str, str] = {}
    for status, reason in (("disabled", "client"), ("blocked", "address_private"), ("paused", "operator")):
        target = make_target(customer)
        execute("UPDATE targets SET status = ?, status_reason = ? WHERE id = ?", (status, reason, target.id))
        reasons[target.id] = reason if status != "paused" else "webhooks_not_allowed"
    for _ in range(2):
        operations.set_webhooks(customer.account_id, False, OPERATOR)
        assert dict(rows("SELECT id, status_reason FROM targets")) == reasons
    assert rows("SELECT COUNT(*) FROM audit_entries WHERE action = 'set_webhooks'") == [(1,)]


def test_a_target_that_is_created_while_the_right_is_withdrawn_is_refused(customer: Customer) -> None:
    operations.set_webhooks(customer.account_id, False, OPERATOR)
    with pytest.raises(WebhooksForbidden):
        make_target(customer)


@pytest.mark.parametrize("change", [operations.disable_user, operations.enable_user, operations.remove_user])
def test_an_unknown_user_is_not_found(database: str, change: Callable[..., object]) -> None:
    with pytest.raises(NotFound):
        change("nobody@example.com", OPERATOR)


def test_an_unknown_account_is_not_found(database: str) -> None:
    with pytest.raises(NotFound, match="no account 9"):
        operations.set_webhooks(9, False, OPERATOR)
