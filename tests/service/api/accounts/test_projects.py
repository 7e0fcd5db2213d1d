"""Projects are listed and read with any API token; their grouping is set with the ability to manage the account."""

from typing import Any

from falcon.testing import Result, TestClient

from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from storage.db.engine import rows
from tests.support.factories import NOW, Customer, make_customer, make_project
from tests.support.http.raw_http import JSON, Call, FieldRefusal, assert_is_error

PROJECTS = "/api/projects"


def read(client: TestClient, customer: Customer, path: str = "") -> Result:
    return Call("GET", f"{PROJECTS}{path}", tuple(customer.bearer.items())).send(client)


def patch(client: TestClient, bearer: str, project_id: object, body: Any) -> Result:
    headers = (("Authorization", f"Bearer {bearer}"), *JSON.items())
    return Call("PATCH", f"{PROJECTS}/{project_id}", headers).with_json(body).send(client)


def manager(customer: Customer) -> str:
    return tokens.create(customer.email, TokenKind.API, NOW, (Ability.MANAGE_ACCOUNT,))[1]


def test_an_accounts_projects_are_listed_page_by_page(client: TestClient, customer: Customer) -> None:
    second = make_project(customer, "snow.shops.example")
    make_customer()
    first_page = read(client, customer, "?limit=1").json
    assert [(each["id"], each["shop_domain"]) for each in first_page["items"]] == [(second, "snow.shops.example")]
    rest = read(client, customer, f"?limit=1&cursor={first_page['next_cursor']}").json
    assert ([each["id"] for each in rest["items"]], rest["next_cursor"]) == ([customer.project_id], None)
    assert read(client, customer, f"/{second}").json == first_page["items"][0]


def test_the_grouping_of_a_project_is_set_and_audited(client: TestClient, customer: Customer) -> None:
    answer = patch(client, manager(customer), customer.project_id, {"ticket_grouping": "rule"})
    assert (answer.status_code, answer.json["ticket_grouping"]) == (200, "rule")
    assert patch(client, manager(customer), customer.project_id, {"ticket_grouping": "rule"}).json == answer.json
    assert read(client, customer, f"/{customer.project_id}").json == answer.json
    audited = rows("SELECT actor, subject_id, reason FROM audit_entries WHERE action = 'set_ticket_grouping'")
    assert audited == [(f"user:{customer.user_id}", f"project:{customer.project_id}", "rule")]


def test_a_grouping_that_does_not_exist_is_refused_with_the_allowed_ones(client: TestClient, customer: Customer) -> None:
    refused = patch(client, manager(customer), customer.project_id, {"ticket_grouping": "page"})
    assert_is_error(refused, 422, "VALIDATION_FAILED", (FieldRefusal("/ticket_grouping", "not_allowed"),))
    [field] = refused.json["error"]["details"]["fields"]
    assert "rule, finding" in field["message"]


def test_a_token_without_the_ability_changes_nothing(client: TestClient, customer: Customer) -> None:
    assert_is_error(patch(client, customer.token, customer.project_id, {"ticket_grouping": "rule"}), 403, "FORBIDDEN")


def test_another_accounts_project_is_not_found(client: TestClient, customer: Customer) -> None:
    other = make_customer()
    for project_id in (other.project_id, 999_999, "0", "1x", "9" * 30):
        assert_is_error(read(client, customer, f"/{project_id}"), 404, "NOT_FOUND")
        refused = patch(client, manager(customer), project_id, {"ticket_grouping": "rule"})
        assert_is_error(refused, 404, "NOT_FOUND")
