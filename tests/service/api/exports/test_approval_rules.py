"""Approval rules by the API: created, tested, changed and deleted within one account, and applied to every source."""

from typing import Any, Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.targets.target import Target
from schemas.triage.approval_rules import MAX_RULES, RuleAction, RuleActionType
from service.http.limits import large_body_limiter
from service.http.limits.large_body_limiter import LargeBodyQueue
from storage.accounts import tokens
from storage.db.engine import execute, rows
from storage.exports import recoveries
from storage.exports.rules import approval_rules
from storage.targets import targets
from tests.support.factories import (
    DEFAULT_SECRET,
    SCANNER_SECRET,
    Customer,
    issue,
    make_customer,
    make_exports,
    make_rule,
    make_target,
    postback,
)
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.raw_http import BASE, EXPORTS, JSON, RULES, Call, assert_is_error

UNKNOWN_ID: Final = "rul_01AAAAAAAAAAAAAAAAAAAAAAAA"
LABEL: Final = {"type": "label", "labels": ["later"]}


def call(method: str, customer: Customer, path: str = RULES, token: str = "", **body: Any) -> Call:
    """Return a request with a body, with the customer's token or with another one."""
    headers = {"Authorization": f"Bearer {token or customer.token}", **JSON}
    return Call(method, path, tuple(headers.items())).with_json(body)


def get(customer: Customer, path: str = RULES, query: str = "") -> Call:
    return Call("GET", path, tuple(customer.bearer.items()), query=query)


def rule(target: Target, **changes: Any) -> dict[str, Any]:
    """Return the body of a rule that approves severe findings; `changes` replace members."""
    match = {"severity_at_least": "high", "rule": "new-*"}
    return {"name": "Severe", "match": match, "action": {"type": "approve", "target_id": target.id}, **changes}


def scan(client: TestClient, *issues: dict[str, Any]) -> list[str]:
    """Post a page with issues; return the IDs of the prepared exports."""
    body = postback(issues=list(issues))
    answer = client.simulate_post("/api/scanner/results", json=body, headers={"X-Scanner-Secret": SCANNER_SECRET})
    assert answer.status_code == 202, answer.text
    ids: list[str] = answer.json["ticket_exports"]
    return ids


def poll(client: TestClient, customer: Customer, export_id: str) -> dict[str, Any]:
    record: dict[str, Any] = get(customer, f"{EXPORTS}/{export_id}").send(client).json
    return record


def test_a_rule_is_created_read_listed_changed_and_deleted(client: TestClient, customer: Customer, target: Target) -> None:
    created = call("POST", customer, **rule(target)).send(client)
    record = created.json
    assert (created.status_code, created.headers["location"]) == (201, f"{BASE}{RULES}/{record['id']}")
    assert record == {
        **rule(target),
        "id": record["id"],
        "enabled": True,
        "author": {"id": customer.user_id, "email": customer.email},
        "stopped_reason": None,
        "created_at": record["created_at"],
        "updated_at": record["created_at"],
    }
    path = f"{RULES}/{record['id']}"
    assert get(customer, path).send(client).json == record
    assert get(customer).send(client).json == {"items": [record], "next_cursor": None}
    changed = call("PATCH", customer, path, enabled=False, match={"page_path": "/a/*"}).send(client)
    assert (changed.status_code, changed.json["enabled"], changed.json["match"]) == (200, False, {"page_path": "/a/*"})
    deleted = Call("DELETE", path, tuple(customer.bearer.items())).send(client)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert_is_error(get(customer, path).send(client), 404, "NOT_FOUND")
    actions = rows("SELECT action, actor FROM audit_entries WHERE subject_id = ? ORDER BY id", (record["id"],))
    assert actions == [(each, f"user:{customer.user_id}") for each in ("create_rule", "change_rule", "delete_rule")]


def test_a_rule_approves_what_a_scan_prepares_and_the_workers_are_woken(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    [before] = scan(client, issue("old"))
    created = call("POST", customer, **rule(target)).send(client).json
    [other] = scan(client, issue("other"))
    assert wake_ups.notifications == 0
    [export_id] = scan(client, {**issue("new-1"), "severity": "critical"})
    assert wake_ups.notifications == 1
    record = poll(client, customer, export_id)
    assert (record["status"], record["target_id"]) == ("approved", target.id)
    assert record["approved_by"] == {"kind": "rule", "id": created["id"], "name": "Severe"}
    assert [poll(client, customer, each)["status"] for each in (before, other)] == ["prepared", "prepared"]


def test_the_response_to_a_manual_ticket_shows_its_approval_by_a_rule(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    body = rule(target, match={"sources": ["manual"]})
    call("POST", customer, **body).send(client)
    made = call("POST", customer, EXPORTS, ticket={"title": "By hand"}).send(client)
    assert (made.status_code, made.json["status"], wake_ups.notifications) == (201, "approved", 1)


def test_a_rule_for_a_paused_target_is_created_and_its_exports_wait(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    targets.change_status(target.id, "pause", utc_now(), "user:1")
    assert call("POST", customer, **rule(target)).send(client).status_code == 201
    [export_id] = scan(client, {**issue("new-1"), "severity": "high"})
    waiting = poll(client, customer, export_id)
    assert (waiting["status"], "approved_by" in waiting, wake_ups.notifications) == ("prepared", False, 0)
    targets.change_status(target.id, "resume", utc_now(), "user:1", default=DEFAULT_SECRET)
    by_hand = call("POST", customer, f"{EXPORTS}/{export_id}/approve", target_id=target.id).send(client)
    assert by_hand.json["approved_by"]["kind"] == "user"


def test_a_rule_that_acts_needs_the_ability_to_approve(client: TestClient, customer: Customer, target: Target) -> None:
    token = tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.MANAGE_RULES,))[1]
    own = call("POST", customer, **rule(target)).send(client).json["id"]
    refused = [
        call("POST", customer, token=token, **rule(target)),
        call("POST", customer, token=token, **rule(target, action={"type": "dismiss", "reason": "test"})),
        call("PATCH", customer, f"{RULES}/{own}", token=token, enabled=False),
    ]
    for each in refused:
        answer = each.send(client)
        assert_is_error(answer, 403, "FORBIDDEN")
        assert "ticket-exports:approve" in answer.json["error"]["message"]
    labels = call("POST", customer, token=token, **rule(target, action=LABEL)).send(client)
    assert labels.status_code == 201
    widened = call("PATCH", customer, f"{RULES}/{labels.json['id']}", token=token, action=rule(target)["action"])
    assert_is_error(widened.send(client), 403, "FORBIDDEN")


@pytest.mark.parametrize(
    ("changes", "path", "code"),
    [
        ({"match": {}}, "/match", "empty_match"),
        ({"match": {"project_id": 999_999}}, "/match/project_id", "unknown_project"),
        ({"action": {"type": "approve", "target_id": "tgt_none"}}, "/action/target_id", "unknown_target"),
        ({"action": {"type": "approve"}}, "/action/target_id", "required"),
        ({"name": "Card 4111 1111 1111 1111"}, "/name", "card"),
    ],
)
def test_an_invalid_rule_is_not_stored(
    client: TestClient, customer: Customer, target: Target, changes: dict[str, Any], path: str, code: str
) -> None:
    stored = call("POST", customer, **rule(target)).send(client).json
    for each in (
        call("POST", customer, **rule(target, **changes)),
        call("PATCH", customer, f"{RULES}/{stored['id']}", **changes),
    ):
        answer = each.send(client)
        assert answer.status_code == 422, answer.text
        problems = [(each["path"], each["code"]) for each in answer.json["error"]["details"]["fields"]]
        assert any(at == path and found.startswith(code) for at, found in problems), problems
    assert get(customer).send(client).json["items"] == [stored]


def test_another_accounts_rules_projects_and_targets_are_not_found(client: TestClient, customer: Customer) -> None:
    other = make_customer()
    theirs = make_rule(other, RuleAction(RuleActionType.LABEL, labels=("x",))).id
    for rule_id in (theirs, UNKNOWN_ID, "rul_1"):
        path = f"{RULES}/{rule_id}"
        assert_is_error(get(customer, path).send(client), 404, "NOT_FOUND")
        assert_is_error(call("PATCH", customer, path, enabled=False).send(client), 404, "NOT_FOUND")
        assert_is_error(Call("DELETE", path, tuple(customer.bearer.items())).send(client), 404, "NOT_FOUND")
        assert_is_error(call("POST", customer, f"{path}/test").send(client), 404, "NOT_FOUND")
    refused = call("POST", customer, **rule(make_target(other), match={"project_id": other.project_id})).send(client)
    codes = {each["code"] for each in refused.json["error"]["details"]["fields"]}
    assert codes == {"unknown_project", "unknown_target"}
    assert get(customer).send(client).json["items"] == []


def test_a_stopped_rule_is_shown_and_enabled_by_another_user(client: TestClient, customer: Customer, target: Target) -> None:
    record = call("POST", customer, **rule(target)).send(client).json
    path = f"{RULES}/{record['id']}"
    tokens.revoke_all(customer.email, utc_now())
    token = tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.MANAGE_RULES,))[1]
    shown = call("GET", customer, path, token=token).send(client).json
    assert (shown["enabled"], shown["stopped_reason"]) == (False, "author_lost_ability")
    assert_is_error(call("PATCH", customer, path, token=token, enabled=True).send(client), 403, "FORBIDDEN")
    able = tokens.create(customer.email, TokenKind.API, utc_now())[1]
    enabled = call("PATCH", customer, path, token=able, enabled=True).send(client).json
    assert (enabled["enabled"], enabled["stopped_reason"]) == (True, None)


def test_requests_with_the_same_key_create_one_rule_and_rules_beyond_the_limit_are_refused(
    client: TestClient, customer: Customer, target: Target
) -> None:
    keyed = call("POST", customer, **rule(target)).plus(("Idempotency-Key", "once"))
    first, again = keyed.send(client), keyed.send(client)
    assert (again.status_code, again.json, again.headers["idempotency-replayed"]) == (201, first.json, "true")
    for _ in range(MAX_RULES - 1):
        make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("x",)))
    refused = call("POST", customer, **rule(target)).send(client)
    assert [each["code"] for each in refused.json["error"]["details"]["fields"]] == ["limit_reached"]
    first_page = get(customer, query="limit=60").send(client).json
    rest = get(customer, query=f"limit=60&cursor={first_page['next_cursor']}").send(client).json
    assert (len(first_page["items"]), len(rest["items"]), rest["next_cursor"]) == (60, 40, None)


def test_a_test_shows_what_a_rule_would_have_matched_and_changes_nothing(
    client: TestClient, customer: Customer, target: Target
) -> None:
    ids = make_exports(customer, 30, utc_now())
    make_exports(make_customer(), 3, utc_now())
    scan(client, issue("new-1"))
    # Tests use data from March 2026, so without recent exports none would be within 30 days.
    record = call("POST", customer, **rule(target, enabled=False, match={"sources": ["manual"], "page_path": "/?"})).send(
        client
    )
    before = rows("SELECT id, version, status FROM exports ORDER BY id")
    tested = call("POST", customer, f"{RULES}/{record.json['id']}/test").send(client)
    assert (tested.status_code, tested.json) == (
        200,
        {"matched": 30, "examined": 31, "examples": sorted(ids, reverse=True)[:20]},
    )
    call("PATCH", customer, f"{RULES}/{record.json['id']}", match={"rule": "new-*"}).send(client)
    assert call("POST", customer, f"{RULES}/{record.json['id']}/test").send(client).json["matched"] == 1
    assert rows("SELECT id, version, status FROM exports ORDER BY id") == before


def test_tests_of_rules_run_one_at_a_time_in_batches_with_yields_between_them(
    client: TestClient, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise forty tests of one account delay the polls of another one by 45 seconds."""
    make_exports(customer, 5, utc_now())
    rule_id = make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("a",))).id
    queues: list[LargeBodyQueue] = []
    acquire = LargeBodyQueue._acquire

    def recorded(queue: LargeBodyQueue, sender: str) -> None:
        queues.append(queue)
        acquire(queue, sender)

    monkeypatch.setattr(LargeBodyQueue, "_acquire", recorded)
    yields: list[bool] = []
    monkeypatch.setattr(approval_rules, "_TEST_BATCH", 2)
    monkeypatch.setattr(large_body_limiter._YieldPoint, "__call__", lambda _: yields.append(queues[0]._is_busy))
    assert call("POST", customer, f"{RULES}/{rule_id}/test").send(client).json["matched"] == 5
    assert yields == [True] * 3
    assert queues[0]._is_busy is False


def test_a_fresh_installation_has_no_rules(client: TestClient, customer: Customer) -> None:
    assert get(customer).send(client).json == {"items": [], "next_cursor": None}
    assert recoveries.list_page() == []


def test_a_group_that_grows_keeps_the_labels_of_a_rule_and_is_evaluated_again(
    client: TestClient, customer: Customer, target: Target
) -> None:
    execute("UPDATE projects SET ticket_grouping = 'rule' WHERE id = ?", (customer.project_id,))
    labels = call("POST", customer, **rule(target, match={"rule": "csp", "page_path": "/a/*"}, action=LABEL)).send(client)
    call("POST", customer, **rule(target, match={"severity_at_least": "critical"})).send(client)
    one, two, out = (
        {**issue("csp"), "severity": "low", "url": f"https://shop.example/{path}"} for path in ("a/1", "a/2", "b")
    )
    [export_id] = scan(client, one)
    assert "later" in poll(client, customer, export_id)["ticket"]["labels"]
    call("PATCH", customer, f"{RULES}/{labels.json['id']}", enabled=False).send(client)
    assert scan(client, two) == [export_id]
    grown = poll(client, customer, export_id)
    assert (grown["status"], grown["findings"]["total"]) == ("prepared", 2)
    assert grown["ticket"]["labels"].count("later") == 1
    assert scan(client, {**out, "severity": "critical"}) == [export_id]
    approved = poll(client, customer, export_id)
    assert (approved["status"], approved["findings"]["total"]) == ("approved", 3)
    assert "later" in approved["ticket"]["labels"]
