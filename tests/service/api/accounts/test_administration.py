"""Accounts, users, grants, tokens and scan runs by the API: how a script sets up many clients, and what it may not do."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.errors import Forbidden
from schemas.base.principal import ABILITIES, OPERATOR, Ability, Role, TokenKind, TokenPrincipal
from schemas.base.timestamps import format_rfc3339, to_ms
from service.app import create_app
from service.operations.accounts import accounts as account_operations
from service.operations.accounts import tokens as token_operations
from storage.accounts import accounts, grants, tokens, users
from storage.db.engine import execute, rows
from tests.service.conftest import LogLines
from tests.support.factories import (
    NOW,
    Customer,
    make_colleague,
    make_customer,
    make_failed,
    make_project,
    make_report,
    make_settings,
    make_target,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import JSON, Call, FieldRefusal, assert_is_error

USERS, GRANTS, TOKENS, PROJECTS = "/api/users", "/api/grants", "/api/tokens", "/api/projects"
ACCOUNTS, SCAN_RUNS = "/api/accounts", "/api/scan-runs"

Send = Callable[..., Result]


def token_with(customer: Customer, *abilities: Ability) -> str:
    return tokens.create(customer.email, TokenKind.API, NOW, abilities)[1]


def sender(client: TestClient, token: str) -> Send:
    """Return a function that sends requests with this token."""

    def send(method: str, path: str, body: Any = None, key: str | None = None) -> Result:
        path, _, query = path.partition("?")
        call = Call(method, path, (("Authorization", f"Bearer {token}"),), query=query)
        if body is not None:
            call = call.plus(*JSON.items()).with_json(body)
        return (call if key is None else call.plus(("Idempotency-Key", key))).send(client)

    return send


@pytest.fixture
def other(customer: Customer) -> Customer:
    """A customer of another account, which is not the operator's."""
    return make_customer()


@pytest.fixture
def owner(client: TestClient, other: Customer) -> Send:
    """Requests of an owner with every ability, whose account is not the operator's."""
    return sender(client, token_with(other, *ABILITIES[TokenKind.API]))


@pytest.fixture
def admin(client: TestClient, customer: Customer) -> Send:
    """Requests of an administrator in the operator's account, which is the first one."""
    return sender(client, token_with(customer, *ABILITIES[TokenKind.API]))


def audited(action: str) -> list[tuple[Any, ...]]:
    return rows("SELECT actor, subject_id, reason FROM audit_entries WHERE action = ? ORDER BY id", (action,))


def test_one_script_sets_up_a_client(admin: Send, client: TestClient, customer: Customer) -> None:
    account = admin("POST", ACCOUNTS, {"name": "Client"}, "client-1").json
    assert admin("POST", ACCOUNTS, {"name": "Client"}, "client-1").json == account
    where = {"account_id": account["id"]}
    project = admin("POST", PROJECTS, {"name": "Shop", "shop_domain": "Snow.Shops.example", **where}).json
    user = admin("POST", USERS, {"email": "ada@client.example", "role": "manager", **where}).json
    grant = admin("POST", GRANTS, {"user_id": user["id"], "project_id": project["id"]}).json
    token = admin("POST", TOKENS, {"user_id": user["id"], "kind": "api", "name": "theirs"}).json
    scan_run = admin("POST", SCAN_RUNS, {"project_id": project["id"], "id": 4711}).json

    assert account["usage"]["findings"] == {"used": 0, "limit": account["usage"]["findings"]["limit"]}
    assert (project["account_id"], project["shop_domain"]) == (account["id"], "snow.shops.example")
    assert (user["account_id"], user["role"], user["state"]) == (account["id"], "manager", "active")
    assert (grant["user"], grant["project_id"], grant["report_id"]) == ("ada@client.example", project["id"], None)
    assert (scan_run["id"], scan_run["status"]) == (4711, "running")
    theirs = sender(client, token["token"])
    assert [each["id"] for each in theirs("GET", PROJECTS).json["items"]] == [project["id"]]
    assert theirs("GET", "/api/ticket-export-targets").status_code == 200
    assert_is_error(theirs("GET", USERS), 403, "FORBIDDEN")
    actor = f"user:{customer.user_id}"
    assert audited("add_account") == [(actor, f"account:{account['id']}", None)]
    assert audited("add_project") == [(actor, f"project:{project['id']}", None)]
    assert audited("add_user") == [(actor, f"user:{user['id']}", "manager")]
    assert audited("add_scan_run") == [(actor, "scan_run:4711", f"project:{project['id']}")]
    assert audited("add_grant")[-1] == (actor, f"user:{user['id']}", f"project:{project['id']}")
    assert audited("create_token")[-1] == (actor, f"token:{token['id']}", None)
    for path, record in ((f"{ACCOUNTS}/{account['id']}", account), (f"{USERS}/{user['id']}", user)):
        assert admin("GET", path).json == record
    for path, record in ((f"{GRANTS}/{grant['id']}", grant), (f"{SCAN_RUNS}/4711", scan_run)):
        assert admin("GET", path).json == record
    assert admin("GET", f"{TOKENS}/{token['id']}").json == {k: v for k, v in token.items() if k != "token"}


def test_a_removed_users_address_is_in_no_stored_response_or_key(owner: Send, other: Customer) -> None:
    user = owner("POST", USERS, {"email": "ada@client.example", "role": "manager"}, "user").json
    owner("POST", GRANTS, {"user_id": user["id"], "project_id": other.project_id}, "grant")
    owner("POST", TOKENS, {"user_id": user["id"], "kind": "api", "name": "of Ada"}, "token")
    owner("PATCH", f"{USERS}/{user['id']}", {"role": "viewer"}, "role")
    owner("POST", PROJECTS, {"name": "Store"}, "project of ada@client.example")
    owner("POST", USERS, {"email": "grace@client.example", "role": "manager"}, "another")
    assert owner("DELETE", f"{USERS}/{user['id']}").status_code == 204
    assert rows("SELECT key FROM idempotency_keys WHERE response_body IS NOT NULL") == [("another",)]


def test_the_address_of_a_removed_approver_is_in_no_response_to_others(client: TestClient, customer: Customer) -> None:
    [export_id] = make_failed(customer, make_target(customer).id, 1)
    execute("UPDATE exports SET approved_by_user_id = ? WHERE id = ?", (customer.user_id, export_id))
    colleague = sender(client, make_colleague(customer).token)
    retried = colleague("POST", f"/api/ticket-exports/{export_id}/retry", {}, "key")
    assert retried.json["approved_by"]["name"] == customer.email
    users.remove(customer.email, NOW, "operator")
    assert rows("SELECT key FROM idempotency_keys WHERE response_body LIKE ?", (f"%{customer.email}%",)) == []
    [read] = [each for each in colleague("GET", "/api/ticket-exports").json["items"] if each["id"] == export_id]
    assert read["approved_by"] == {"kind": "user", "id": customer.user_id, "name": None}


def test_responses_that_name_a_removed_user_are_deleted_even_if_stored_meanwhile(customer: Customer) -> None:
    columns = "id, principal, method, route, key, payload_sha256, response_body, response_status, created_at"
    stored = f"INSERT INTO idempotency_keys ({columns}) VALUES (?, 'user:99', 'POST', '/x', ?, '', ?, 200, ?)"  # noqa: S608 - names of our own
    named, long_ago, began = f'{{"email":"{customer.email}"}}', 0, to_ms(NOW - timedelta(minutes=1))
    for row_id, key, body in ((2, "before", named), (3, "other", "{}"), (4, "expired", "{}")):
        execute(stored, (row_id, key, body, long_ago))
    naming = users.responses_that_name(customer.email, NOW)
    # An expired key that is used again keeps its ID. A slow request that began before the search has an even lower ID.
    execute("UPDATE idempotency_keys SET response_body = ?, created_at = ? WHERE key = 'expired'", (named, to_ms(NOW)))
    execute(stored, (1, "slow", named, began))
    execute(stored, (5, "since", named, to_ms(NOW)))
    users.remove(customer.email, NOW, "operator", naming)
    assert rows("SELECT key FROM idempotency_keys") == [("other",)]


def test_an_administrator_lists_the_records_of_every_account_or_of_one(
    admin: Send, customer: Customer, other: Customer
) -> None:
    ids = {customer.account_id, other.account_id}
    assert {each["id"] for each in admin("GET", ACCOUNTS).json["items"]} == ids
    for path in (USERS, PROJECTS):
        assert {each["account_id"] for each in admin("GET", path).json["items"]} == ids
        one = admin("GET", f"{path}?account_id={other.account_id}").json["items"]
        assert {each["account_id"] for each in one} == {other.account_id}
    [grant] = admin("GET", f"{GRANTS}?account_id={other.account_id}").json["items"]
    assert (grant["user_id"], grant["project_id"]) == (other.user_id, other.project_id)
    assert [grant] == admin("GET", f"{GRANTS}?user_id={other.user_id}&project_id={other.project_id}").json["items"]
    assert admin("GET", f"{USERS}?email={other.email}").json["items"][0]["id"] == other.user_id
    refused = FieldRefusal("/email", "invalid_email")
    assert_is_error(admin("GET", f"{USERS}?email=ada"), 422, "VALIDATION_FAILED", (refused,))
    [token] = admin("GET", f"{TOKENS}?user_id={other.user_id}").json["items"]
    assert token["user"] == other.email


def test_lists_have_pages_that_keep_their_filters(admin: Send, other: Customer) -> None:
    for _ in range(3):
        make_colleague(other)
    found, path = [], f"{USERS}?account_id={other.account_id}&limit=2"
    page = admin("GET", path)
    while page.json["next_cursor"]:
        found += [each["id"] for each in page.json["items"]]
        assert f"account_id={other.account_id}" in page.headers["link"]
        page = admin("GET", f"{path}&cursor={page.json['next_cursor']}")
    found += [each["id"] for each in page.json["items"]]
    assert found == sorted(found, reverse=True)
    assert len(found) == 4


def test_an_owner_manages_only_the_own_account(owner: Send, customer: Customer, other: Customer) -> None:
    assert owner("GET", "/api/account").json["id"] == other.account_id
    renamed = owner("PATCH", "/api/account", {"name": "Renamed"}).json
    assert (renamed["name"], accounts.get_account(other.account_id).name) == ("Renamed", "Renamed")
    assert {each["account_id"] for each in owner("GET", USERS).json["items"]} == {other.account_id}
    refused = FieldRefusal("/account_id", "admin_only")
    for path in (USERS, PROJECTS, GRANTS, TOKENS, SCAN_RUNS):
        answer = owner("GET", f"{path}?account_id={other.account_id}")
        assert_is_error(answer, 422, "VALIDATION_FAILED", (refused,))
    elsewhere = {"name": "Shop", "account_id": other.account_id}
    assert_is_error(owner("POST", PROJECTS, elsewhere), 422, "VALIDATION_FAILED", (refused,))
    # The ability is valid in the operator's account only.
    assert_is_error(owner("GET", ACCOUNTS), 403, "FORBIDDEN")
    assert_is_error(owner("GET", f"{ACCOUNTS}/{other.account_id}"), 403, "FORBIDDEN")
    [grant] = grants.list_all(customer.email)
    for path in (f"{USERS}/{customer.user_id}", f"{GRANTS}/{grant.id}", f"{PROJECTS}/{customer.project_id}"):
        assert_is_error(owner("GET", path), 404, "NOT_FOUND")
        assert owner("DELETE", path).status_code in {404, 405}
    assert_is_error(owner("PATCH", f"{USERS}/{customer.user_id}", {"role": "viewer"}), 404, "NOT_FOUND")
    for name, path, body in (
        ("user_id", GRANTS, {"user_id": customer.user_id, "project_id": other.project_id}),
        ("project_id", GRANTS, {"user_id": other.user_id, "project_id": customer.project_id}),
        ("report_id", GRANTS, {"user_id": other.user_id, "report_id": make_report(customer.project_id)}),
        ("user_id", TOKENS, {"user_id": customer.user_id, "kind": "platform"}),
        ("project_id", SCAN_RUNS, {"project_id": customer.project_id}),
    ):
        unknown = FieldRefusal(f"/{name}", f"unknown_{name.removesuffix('_id')}")
        assert_is_error(owner("POST", path, body), 422, "VALIDATION_FAILED", (unknown,))


def test_a_project_is_renamed_and_its_shop_set_and_removed(owner: Send, other: Customer) -> None:
    path = f"{PROJECTS}/{other.project_id}"
    changed = owner("PATCH", path, {"name": "Shop", "shop_domain": "SNOW.shops.example", "ticket_grouping": "rule"}).json
    assert (changed["name"], changed["shop_domain"], changed["ticket_grouping"]) == ("Shop", "snow.shops.example", "rule")
    assert owner("PATCH", path, {"shop_domain": None}).json == {**changed, "shop_domain": None}
    refused = (FieldRefusal("/shop_domain", "invalid_shop_domain"),)
    assert_is_error(owner("PATCH", path, {"shop_domain": "no domain"}), 422, "VALIDATION_FAILED", refused)
    assert_is_error(owner("PATCH", path, {}), 422, "VALIDATION_FAILED", (FieldRefusal("", "no_members"),))
    assert [reason for _, _, reason in audited("change_project")] == ["name shop_domain", "shop_domain"]


def test_an_administrator_withdraws_and_restores_the_use_of_webhooks(admin: Send, other: Customer) -> None:
    target, path = make_target(other), f"{ACCOUNTS}/{other.account_id}"
    assert admin("PATCH", path, {"may_use_webhooks": False}).json["may_use_webhooks"] is False
    assert rows("SELECT status FROM targets WHERE id = ?", (target.id,)) == [("blocked",)]
    assert admin("PATCH", path, {"name": "Trial", "may_use_webhooks": True}).json["name"] == "Trial"
    assert_is_error(admin("GET", f"{ACCOUNTS}/999999"), 404, "NOT_FOUND")


# --- users and roles ----------------------------------------------------------


def test_permissions_withdrawn_by_an_owner_are_refused_from_the_next_request_on(
    owner: Send, client: TestClient, other: Customer
) -> None:
    colleague = make_colleague(other)
    theirs, path = sender(client, colleague.token), f"{USERS}/{colleague.user_id}"
    assert theirs("GET", "/api/ticket-export-targets").status_code == 200
    assert owner("PATCH", path, {"role": "viewer"}).json["role"] == "viewer"
    assert_is_error(theirs("GET", "/api/ticket-export-targets"), 403, "FORBIDDEN")
    assert theirs("GET", "/api/findings").status_code == 200
    assert owner("PATCH", path, {"state": "disabled"}).json["state"] == "disabled"
    assert_is_error(theirs("GET", "/api/findings"), 401, "UNAUTHORIZED")
    assert owner("PATCH", path, {"state": "active", "role": None}).json["role"] is None
    assert theirs("GET", PROJECTS).status_code == 200
    [token] = owner("GET", f"{TOKENS}?user_id={colleague.user_id}").json["items"]
    assert owner("DELETE", f"{TOKENS}/{token['id']}").status_code == 204
    assert owner("DELETE", f"{TOKENS}/{token['id']}").status_code == 204
    assert_is_error(theirs("GET", PROJECTS), 401, "UNAUTHORIZED")
    assert [owner("DELETE", path).status_code for _ in range(2)] == [204, 204]
    gone = owner("GET", path).json
    assert (gone["email"], gone["state"]) == (None, "removed")
    assert owner("GET", f"{TOKENS}/{token['id']}").json["user"] is None
    assert_is_error(owner("PATCH", path, {"state": "active"}), 409, "CONFLICT")
    assert {actor for actor, _, _ in audited("set_role")} == {f"user:{other.user_id}"}


@pytest.mark.parametrize("change", [{"role": "manager"}, {"role": None}, {"state": "disabled"}, None])
def test_the_last_active_owner_cannot_be_demoted_disabled_or_removed(
    owner: Send, admin: Send, other: Customer, change: Any
) -> None:
    path, disabled = f"{USERS}/{other.user_id}", make_colleague(other)
    owner("PATCH", f"{USERS}/{disabled.user_id}", {"state": "disabled"})
    for caller in (owner, admin):
        answer = caller("DELETE", path) if change is None else caller("PATCH", path, change)
        assert_is_error(answer, 409, "CONFLICT")
    # The operator may do it with a command.
    assert account_operations.disable_user(other.email, OPERATOR).state == "disabled"


def test_one_of_two_owners_may_be_removed(owner: Send, other: Customer) -> None:
    make_colleague(other)
    assert owner("PATCH", f"{USERS}/{other.user_id}", {"role": "owner"}).status_code == 200
    assert owner("DELETE", f"{USERS}/{other.user_id}").status_code == 204
    assert_is_error(owner("GET", USERS), 401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"email": "no address"}, "/email", "invalid_email"),
        ({"email": "ada@shop.example", "role": "emperor"}, "/role", "not_allowed"),
        ({"email": "ada@shop.example", "name": "Ada"}, "", "unknown_member"),
        ({}, "/email", "required"),
    ],
)
def test_an_invalid_user_is_refused_with_the_field(owner: Send, body: Any, path: str, code: str) -> None:
    assert_is_error(owner("POST", USERS, body), 422, "VALIDATION_FAILED", (FieldRefusal(path, code),))


def test_an_address_belongs_to_one_user(owner: Send, customer: Customer) -> None:
    assert_is_error(owner("POST", USERS, {"email": customer.email}), 409, "CONFLICT")


def test_a_caller_below_owner_cannot_grant_a_higher_role_than_the_own(customer: Customer) -> None:
    manager = TokenPrincipal(
        1, customer.user_id, customer.account_id, TokenKind.API, frozenset({"account:manage"}), True, Role.MANAGER
    )
    owner = accounts.get_user(customer.user_id)
    below = accounts.add_user("below@shop.example", customer.account_id, NOW, Role.VIEWER)
    for refused in (
        lambda: account_operations.add_user("ada@shop.example", customer.account_id, Role.OWNER, manager),
        lambda: account_operations.set_role(below.email, Role.OWNER, manager),
        lambda: account_operations.set_role(owner.email, Role.VIEWER, manager),
        lambda: account_operations.disable_user(owner.email, manager),
        lambda: account_operations.remove_user(owner.email, manager),
        lambda: token_operations.create(owner, TokenKind.PLATFORM, (), "", None, manager),
    ):
        with pytest.raises(Forbidden):
            refused()
    assert account_operations.set_role(below.email, Role.MANAGER, manager).role is Role.MANAGER


# --- grants -------------------------------------------------------------------


def test_a_grant_is_created_once_and_withdrawn(owner: Send, other: Customer) -> None:
    colleague, project_id = make_colleague(other), make_project(other)
    body = {"user_id": colleague.user_id, "project_id": project_id, "role": "triager"}
    made = owner("POST", GRANTS, body)
    assert (made.status_code, made.json["role"]) == (201, "triager")
    assert made.headers["location"].endswith(f"{GRANTS}/{made.json['id']}")
    assert_is_error(owner("POST", GRANTS, body), 409, "CONFLICT")
    of_report = {"user_id": colleague.user_id, "report_id": make_report(project_id)}
    assert owner("POST", GRANTS, of_report).json["report_id"] == of_report["report_id"]
    assert owner("DELETE", f"{GRANTS}/{made.json['id']}").status_code == 204
    assert_is_error(owner("DELETE", f"{GRANTS}/{made.json['id']}"), 404, "NOT_FOUND")
    for wrong in ({"user_id": 1}, {**of_report, "project_id": project_id}, {**of_report, "role": "viewer"}):
        refused = (FieldRefusal("", "project_or_report"),)
        assert_is_error(owner("POST", GRANTS, wrong), 422, "VALIDATION_FAILED", refused)


# --- tokens -------------------------------------------------------------------


def test_a_token_cannot_create_one_with_more_abilities(client: TestClient, other: Customer) -> None:
    held = (Ability.MANAGE_ACCOUNT, Ability.READ_EXPORTS, Ability.READ_FINDINGS)
    maker = sender(client, token_with(other, *held))
    refused = maker("POST", TOKENS, {"kind": "api", "abilities": ["findings:read", "ticket-exports:approve"]})
    assert_is_error(refused, 403, "FORBIDDEN")
    assert refused.json["error"]["message"].endswith("lacks ticket-exports:approve.")
    made = maker("POST", TOKENS, {"kind": "api"}).json
    assert made["abilities"] == ["ticket-exports:read", "findings:read"]
    named = maker("POST", TOKENS, {"kind": "api", "abilities": ["account:manage", "findings:read"]}).json
    assert named["abilities"] == ["account:manage", "findings:read"]
    # A token gets no more abilities than the role of the user who creates it allows.
    make_colleague(other)
    assert maker("PATCH", f"{USERS}/{other.user_id}", {"role": "viewer"}).status_code == 200
    assert_is_error(sender(client, named["token"])("POST", TOKENS, {"kind": "api"}), 403, "FORBIDDEN")


def test_a_token_without_default_abilities_must_name_the_abilities_of_a_new_token(
    client: TestClient, other: Customer
) -> None:
    maker = sender(client, token_with(other, Ability.MANAGE_ACCOUNT))
    refused = (FieldRefusal("/abilities", "required"),)
    assert_is_error(maker("POST", TOKENS, {"kind": "api"}), 422, "VALIDATION_FAILED", refused)
    # A platform token is limited by the grants of its user.
    platform = maker("POST", TOKENS, {"kind": "platform", "abilities": ["cms-plugin:diagnostics-upload"]})
    assert platform.json["abilities"] == ["cms-plugin:diagnostics-upload"]
    mixed = maker("POST", TOKENS, {"kind": "platform", "abilities": ["findings:read"]})
    assert_is_error(mixed, 422, "VALIDATION_FAILED", (FieldRefusal("/abilities", "not_allowed"),))


def test_the_text_of_a_token_is_shown_once_and_stored_nowhere(owner: Send, other: Customer, log_lines: LogLines) -> None:
    body = {"kind": "api", "abilities": ["findings:read"], "expires_at": "2999-01-01T00:00:00Z"}
    first, again = owner("POST", TOKENS, body, "key"), owner("POST", TOKENS, body, "key")
    text = first.json["token"]
    assert tokens.principal_for(text, NOW) is not None
    assert (again.status_code, again.json) == (201, {**first.json, "token": None})
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json["expires_at"] == "2999-01-01T00:00:00.000Z"
    [(stored,)] = rows("SELECT response_body FROM idempotency_keys")
    assert text not in stored
    assert text not in log_lines.text
    assert text not in owner("GET", TOKENS).text
    past = owner("POST", TOKENS, {"kind": "api", "expires_at": "2001-01-01T00:00:00Z"})
    assert_is_error(past, 422, "VALIDATION_FAILED", (FieldRefusal("/expires_at", "in_the_past"),))


def test_a_token_expires_no_later_than_the_one_that_created_it(client: TestClient, other: Customer) -> None:
    ends = utc_now() + timedelta(days=1)
    _, text = tokens.create(other.email, TokenKind.API, utc_now(), (Ability.MANAGE_ACCOUNT,), "short", timedelta(days=1))
    send, body = sender(client, text), {"kind": "api", "abilities": ["account:manage"]}
    made = send("POST", TOKENS, body).json
    assert abs(datetime.fromisoformat(made["expires_at"]) - ends) < timedelta(minutes=1)
    earlier = send("POST", TOKENS, {**body, "expires_at": format_rfc3339(ends - timedelta(hours=1))})
    assert earlier.status_code == 201
    later = send("POST", TOKENS, {**body, "expires_at": format_rfc3339(ends + timedelta(hours=1))})
    assert_is_error(later, 422, "VALIDATION_FAILED", (FieldRefusal("/expires_at", "after_own_expiry"),))


@pytest.mark.parametrize(
    ("first", "second"), [("ada@client.example", "Ada@Client.Example"), ("Zoe@a.example", "zoe@a.example")]
)
def test_an_address_has_one_user_whatever_its_letter_case(first: str, second: str, admin: Send, owner: Send) -> None:
    assert owner("POST", USERS, {"email": first}).status_code == 201
    assert_is_error(owner("POST", USERS, {"email": second}), 409, "CONFLICT")


def test_a_disabled_user_gets_no_token(owner: Send, other: Customer) -> None:
    colleague = make_colleague(other)
    owner("PATCH", f"{USERS}/{colleague.user_id}", {"state": "disabled"})
    assert_is_error(owner("POST", TOKENS, {"user_id": colleague.user_id, "kind": "api"}), 409, "CONFLICT")


# --- scan runs ----------------------------------------------------------------


def test_only_the_operators_account_chooses_the_number_of_a_scan_run(owner: Send, admin: Send, other: Customer) -> None:
    body = {"project_id": other.project_id}
    assert_is_error(owner("POST", SCAN_RUNS, {**body, "id": 7}), 403, "FORBIDDEN")
    # A random number far above those that a scanner counts up by itself.
    given = owner("POST", SCAN_RUNS, body).json["id"]
    assert 10**11 <= given < 10**12
    assert admin("POST", SCAN_RUNS, body).json["id"] == given + 1
    assert admin("POST", SCAN_RUNS, {**body, "id": 2**63 - 1}).status_code == 201
    assert_is_error(admin("POST", SCAN_RUNS, {**body, "id": given}), 409, "CONFLICT")
    # There is no larger number, so a random one is used.
    drawn = admin("POST", SCAN_RUNS, body).json["id"]
    assert 10**11 <= drawn < 10**12
    listed = owner("GET", f"{SCAN_RUNS}?project_id={other.project_id}&limit=1")
    assert [each["id"] for each in listed.json["items"]] == [2**63 - 1]
    following = owner("GET", f"{SCAN_RUNS}?cursor={listed.json['next_cursor']}")
    assert [each["id"] for each in following.json["items"]] == sorted((drawn, given + 1, given), reverse=True)
    assert owner("GET", f"{SCAN_RUNS}/{2**63 - 1}").status_code == 200
    assert_is_error(owner("GET", f"{SCAN_RUNS}/{2**63}"), 404, "NOT_FOUND")


# --- the operator's account ---------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "named", "status"),
    [("cloud", "", 403), ("cloud", "own", 200), ("self-hosted", "", 200), ("cloud", "other", 403)],
)
def test_the_admin_ability_is_valid_only_in_the_operators_account(
    customer: Customer, other: Customer, tmp_path: Path, mode: str, named: str, status: int
) -> None:
    ids = {"own": customer.account_id, "other": other.account_id}
    operator = {"OPERATOR_ACCOUNT_ID": str(ids[named])} if named else {}
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": mode, **operator})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    admin = sender(client, token_with(customer, Ability.ADMIN))
    assert admin("GET", ACCOUNTS).status_code == status
    # Where the ability admin is valid, it includes account:manage.
    assert admin("GET", USERS).status_code == status
