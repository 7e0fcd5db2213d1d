"""What users with roles in single projects see and do: only these projects."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import PROJECT_ROLES, Ability, Role, TokenKind
from schemas.intake.scanner import PostbackForm
from schemas.triage.approval_rules import RuleAction, RuleActionType, StoppedReason
from storage.accounts import accounts, grants, tokens, users
from storage.db.engine import execute, rows
from storage.exports.rules import approval_rules
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    NOW,
    Customer,
    issue,
    make_failed,
    make_project,
    make_rule,
    make_target,
    postback,
    record_postback,
)
from tests.support.http.console_user import ConsoleBrowser
from tests.support.http.raw_http import EXPORTS, RECOVERIES, RULES, TARGETS

FINDINGS: Final = "/api/findings"
OWN, FOREIGN = "Own finding", "Foreign finding"


class ProjectScene:
    """An account with two projects, each with a finding and its ticket; a user has a role only in the first project."""

    def __init__(self, client: TestClient, customer: Customer, role: Role) -> None:
        self.client = client
        self.customer = customer
        self.own_project, self.foreign_project = customer.project_id, make_project(customer)
        execute("UPDATE projects SET name = 'The foreign one' WHERE id = ?", (self.foreign_project,))
        self.own = self._ticket(self.own_project, OWN)
        self.foreign = self._ticket(self.foreign_project, FOREIGN)
        self.target_id = make_target(customer).id
        user = accounts.add_user("limited@example.com", customer.account_id, NOW, None)
        self.email = user.email
        accounts.grant_project(user.email, self.own_project, NOW, role)
        self.token = self.make_token(tuple(Ability(each) for each in _api_abilities()))

    def _ticket(self, project_id: int, title: str) -> tuple[str, str]:
        """Store a finding of a project; return its ID and the ID of its export."""
        body = postback(project_id, issues=[issue(title=title)])
        record_postback(PostbackForm().read(body), project_id)
        [(finding_id, export_id)] = rows("SELECT id, export_id FROM findings WHERE project_id = ?", (project_id,))
        return finding_id, export_id

    def make_token(self, abilities: tuple[Ability, ...]) -> str:
        return tokens.create(self.email, TokenKind.API, utc_now(), abilities)[1]

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        path, _, query = path.partition("?")
        return self.client.simulate_request(method, path, query_string=query, headers=headers, json=body)

    def person(self) -> ConsoleBrowser:
        person = ConsoleBrowser(self.client)
        assert person.sign_in(self.make_token((Ability.CONSOLE,))).status_code == 303
        person.get("/inbox")
        return person


def _api_abilities() -> list[str]:
    return [each for each in Ability if "upload" not in each]


@pytest.fixture
def scene(client: TestClient, customer: Customer) -> Callable[[Role], ProjectScene]:
    return lambda role: ProjectScene(client, customer, role)


MakeScene = Callable[[Role], ProjectScene]


def test_lists_have_only_the_records_of_the_project(scene: MakeScene) -> None:
    at = scene(Role.VIEWER)
    exports = at.api("GET", f"{EXPORTS}?facets=true").json
    assert [each["id"] for each in exports["items"]] == [at.own[1]]
    assert exports["total"] == 1
    # The counts of the project filter include no other project.
    assert exports["facets"]["project_id"] == {str(at.own_project): 1}
    assert at.api("GET", f"{EXPORTS}?project_id={at.foreign_project}").json["items"] == []
    assert at.api("GET", f"{EXPORTS}?q=foreign").json["items"] == []
    for sort in ("created_at", "-severity", "-findings"):
        assert [each["id"] for each in at.api("GET", f"{EXPORTS}?sort={sort}").json["items"]] == [at.own[1]]
    assert [each["id"] for each in at.api("GET", FINDINGS).json["items"]] == [at.own[0]]
    assert at.api("GET", f"{FINDINGS}?project_id={at.foreign_project}").json["items"] == []
    assert [each["id"] for each in at.api("GET", "/api/projects").json["items"]] == [at.own_project]


@on_sqlite
@pytest.mark.parametrize("role", PROJECT_ROLES)
def test_a_record_of_another_project_is_not_found(role: Role, scene: MakeScene) -> None:
    at = scene(role)
    finding_id, export_id = at.foreign
    one = f"{EXPORTS}/{export_id}"
    reads = [one, f"{one}/attempts", f"{one}/events", f"{one}/receipt", f"{FINDINGS}/{finding_id}"]
    for path in (*reads, f"/api/projects/{at.foreign_project}"):
        assert at.api("GET", path).status_code == 404, path
    if role is not Role.VIEWER:
        bodies = {
            "approve": {"target_id": at.target_id},
            "dismiss": {},
            "restore": {},
            "snooze": {},
            "split": {},
            "retry": {},
        }
        for verb, body in bodies.items():
            assert at.api("POST", f"{one}/{verb}", body).status_code == 404, verb
        assert at.api("PATCH", one, {"title": "Edited"}).status_code == 404
    person = at.person()
    for path in (f"/exports/{export_id}", f"/exports/{export_id}/receipt", f"/findings/{finding_id}"):
        assert person.get(path).status_code == 404, path
    assert person.get(f"/projects/{at.foreign_project}/report/csv").status_code == 404
    for verb in ("approve", "dismiss", "restore", "snooze", "split", "retry", "edit"):
        assert person.post(f"/exports/{export_id}/{verb}").status_code == (403 if role is Role.VIEWER else 404), verb
    assert rows("SELECT status FROM exports WHERE id = ?", (export_id,)) == [("prepared",)]


def test_a_triager_decides_in_the_project(scene: MakeScene) -> None:
    at = scene(Role.TRIAGER)
    ids = [{"id": at.own[1]}, {"id": at.foreign[1]}]
    answer = at.api("POST", f"{EXPORTS}/bulk", {"action": "dismiss", "ids": ids})
    assert answer.json["results"][0] == {"id": at.own[1], "status": "dismissed"}
    assert answer.json["results"][1]["error"]["code"] == "NOT_FOUND"
    assert at.api("POST", f"{EXPORTS}/{at.own[1]}/restore").status_code == 200
    by_filter = {"action": "dismiss", "filter": {"status": "prepared"}, "expected_count": 1}
    assert at.api("POST", f"{EXPORTS}/bulk", by_filter).status_code == 403
    approval = at.api("POST", f"{EXPORTS}/{at.own[1]}/approve", {"target_id": at.target_id})
    assert approval.status_code == 202
    assert dict(rows("SELECT id, status FROM exports")) == {at.own[1]: "approved", at.foreign[1]: "prepared"}


@on_sqlite
def test_a_viewer_can_only_read(scene: MakeScene) -> None:
    at = scene(Role.VIEWER)
    assert at.api("GET", f"{EXPORTS}/{at.own[1]}").json["ticket"]["title"]
    assert at.api("POST", f"{EXPORTS}/{at.own[1]}/dismiss").status_code == 403
    person = at.person()
    page = person.get(f"/exports/{at.own[1]}").text
    assert "/dismiss" not in page
    assert person.post(f"/exports/{at.own[1]}/dismiss").status_code == 403
    assert person.post("/inbox/decide", action="dismiss", **{at.own[1]: "sha256:0"}).status_code == 403


@on_sqlite
def test_requests_for_records_of_other_projects_count_against_the_rate_limit(scene: MakeScene) -> None:
    at = scene(Role.MANAGER)
    finding_id, export_id = at.foreign
    paths = (f"{EXPORTS}/{export_id}", f"{FINDINGS}/{finding_id}", f"/api/projects/{at.foreign_project}")
    answers = [at.api("GET", path) for path in paths]
    assert {answer.status_code for answer in answers} == {404}
    remaining = [int(answer.headers["RateLimit"].partition("r=")[2].partition(";")[0]) for answer in answers]
    assert remaining == sorted({*remaining}, reverse=True)


@on_sqlite
def test_each_project_role_is_valid_only_in_its_own_project(scene: MakeScene) -> None:
    at = scene(Role.TRIAGER)
    accounts.grant_project(at.email, at.foreign_project, NOW, Role.VIEWER)
    assert len(at.api("GET", EXPORTS).json["items"]) == 2
    refused = at.api("POST", f"{EXPORTS}/{at.foreign[1]}/dismiss")
    assert refused.status_code == 403
    assert "viewer" in refused.json["error"]["message"]
    ids = [{"id": at.own[1]}, {"id": at.foreign[1]}]
    results = at.api("POST", f"{EXPORTS}/bulk", {"action": "dismiss", "ids": ids}).json["results"]
    assert [each.get("error", {}).get("code") for each in results] == [None, "FORBIDDEN"]
    page = at.person().get(f"/exports/{at.foreign[1]}").text
    assert "/restore" not in page
    assert "/dismiss" not in page


@on_sqlite
@pytest.mark.parametrize("role", PROJECT_ROLES)
def test_pages_and_routes_of_the_account_are_forbidden(role: Role, scene: MakeScene) -> None:
    at = scene(role)
    closed = [TARGETS, RULES, RECOVERIES, "/api/bulk-jobs", "/api/providers"]
    for path in closed:
        assert at.api("GET", path).status_code == 403, path
    by_hand = {"ticket": {"title": "By hand"}, "source": {"type": "manual", "id": "1"}}
    assert at.api("POST", EXPORTS, by_hand).status_code == 403
    assert at.api("PATCH", f"/api/projects/{at.own_project}", {"ticket_grouping": "rule"}).status_code == 403
    person = at.person()
    for path in ("/overview", "/targets", "/rules", "/alerts", "/recoveries", "/exports", "/audit", "/settings", "/queue"):
        assert person.get(path).status_code in {403, 404}, path
    menu = person.get("/inbox").text
    assert [path for path in ("targets", "rules", "overview", "settings") if f'href="/console/{path}"' in menu] == []


@on_sqlite
def test_the_console_shows_only_the_project(scene: MakeScene) -> None:
    at = scene(Role.TRIAGER)
    person = at.person()
    for path in ("/inbox", "/findings", "/findings/trends"):
        text = person.get(path).text
        assert FOREIGN not in text, path
        assert "The foreign one" not in text, path
    assert OWN in person.get("/inbox").text
    assert FOREIGN not in person.get("/inbox", f"export={at.foreign[1]}").text
    assert person.get("/findings/trends", f"project_id={at.foreign_project}").status_code == 404
    assert person.get("/findings", f"project_id={at.foreign_project}").status_code == 404
    # There are no menu counts, because they would cover all projects.
    assert person.get("/counts").json["counts"] == {}
    review = {"action": "dismiss", "all": "yes", "then": "/inbox"}
    assert person.post("/inbox/review", **review).status_code == 403
    assert person.post("/inbox/decide", expected_count="1", **review).status_code == 403
    digest = at.api("GET", f"{EXPORTS}/{at.own[1]}").json["ticket_digest"]
    shown = person.post("/inbox/decide", action="dismiss", **{at.own[1]: digest, at.foreign[1]: digest})
    assert shown.status_code == 200
    assert FOREIGN not in shown.text
    assert dict(rows("SELECT id, status FROM exports")) == {at.own[1]: "dismissed", at.foreign[1]: "prepared"}


def test_a_withdrawn_role_ends_with_the_next_request(scene: MakeScene) -> None:
    at = scene(Role.TRIAGER)
    person = at.person()
    assert at.api("GET", EXPORTS).status_code == 200
    [grant] = grants.list_all(at.email)
    grants.remove(grant.id, utc_now(), "operator")
    assert at.api("GET", EXPORTS).status_code == 403
    assert person.get("/inbox").status_code == 303
    users.set_role(at.email, Role.VIEWER, utc_now(), "operator")
    assert len(at.api("GET", EXPORTS).json["items"]) == 2


def test_a_rule_stops_if_its_author_has_only_project_roles_left(scene: MakeScene) -> None:
    at = scene(Role.MANAGER)
    rule = make_rule(at.customer, RuleAction(RuleActionType.APPROVE, target_id=at.target_id))
    assert approval_rules.get(rule.id, at.customer.account_id, utc_now()).stopped_reason is None
    users.set_role(at.customer.email, None, utc_now(), "operator")
    execute("UPDATE grants SET role = 'manager' WHERE user_id = ?", (at.customer.user_id,))
    stopped = approval_rules.get(rule.id, at.customer.account_id, utc_now())
    assert stopped.stopped_reason is StoppedReason.AUTHOR_LOST_ABILITY


@on_sqlite
def test_an_export_without_a_project_is_not_shown(scene: MakeScene) -> None:
    at = scene(Role.MANAGER)
    execute("UPDATE exports SET project_id = NULL WHERE id = ?", (at.own[1],))
    assert at.api("GET", EXPORTS).json["items"] == []
    assert at.api("GET", f"{EXPORTS}/{at.own[1]}").status_code == 404


@on_sqlite
def test_a_retry_does_not_resume_the_accounts_target(scene: MakeScene) -> None:
    at = scene(Role.TRIAGER)
    [failed] = make_failed(at.customer, at.target_id, 1, status="blocked")
    execute("UPDATE exports SET project_id = ? WHERE id = ?", (at.own_project, failed))
    execute("UPDATE targets SET status = 'blocked', status_reason = 'address_private' WHERE id = ?", (at.target_id,))
    answer = at.api("POST", f"{EXPORTS}/{failed}/retry")
    [field] = answer.json["error"]["details"]["fields"]
    assert (answer.status_code, field["path"], field["code"]) == (422, "/target_id", "target_not_active")
    assert rows("SELECT status FROM targets") == [("blocked",)]
    assert rows("SELECT status FROM exports WHERE id = ?", (failed,)) == [("blocked",)]
