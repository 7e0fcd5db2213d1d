"""How many statements a request runs: a query in a loop, or one too many, shows here before it shows in a measurement."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from schemas.base.principal import Ability
from schemas.triage.approval_rules import RuleAction, RuleActionType, RuleMatch
from service.app import create_app
from storage.db.engine import is_sqlite
from tests.support.database.query_plans import statements
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    capture,
    issue,
    make_exports,
    make_platform_token,
    make_rule,
    make_settings,
    make_target,
    postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue

#: A process that has not counted an account's rows for a while does so: the first postback registers the run, too.
FIRST: Final = ("first", 1, "first")
#: Of more than five issues, PostgreSQL is asked before the transaction which of them are known; SQLite always is.
FEW: Final = 8

Send = Callable[[str], int]


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """The application with every family of routes."""
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id), "DEPLOYMENT_MODE": "cloud"})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({"tracker.example.com": ["93.184.215.14"]})))


def posted(client: TestClient, path: str, body: dict[str, Any], headers: dict[str, str], key: str) -> int:
    """Send a keyed request; return how many statements it ran."""
    with statements() as ran:
        answer = client.simulate_post(path, json=body, headers={**headers, "Idempotency-Key": key})
    assert answer.status_code in {201, 202}, answer.text
    return len(ran)


def scanned(client: TestClient, key: str, issues: int, prefix: str = "new") -> int:
    """Post a page with so many issues; return how many statements that took."""
    body = postback(issues=[issue(f"{prefix}-{number}") for number in range(issues)])
    return posted(client, "/api/scanner/results", body, {"X-Scanner-Secret": SCANNER_SECRET}, key)


def test_a_postback_of_one_issue_runs_a_few_statements(client: TestClient) -> None:
    scanned(client, *FIRST)
    # Which secret, which findings are known (SQLite); key, page, run, finding, sighting, what the page no longer has,
    # export, its filter values, its words, entry in the audit log, rules, the run's status, response. One on PostgreSQL:
    # page and run; finding and sighting; export, filter values and words.
    assert scanned(client, "new", 1) == (15 if is_sqlite() else 10)
    # In place of export, filter values, words, audit log and rules: seen again (and its sighting, on SQLite).
    assert scanned(client, "seen", 1) == (11 if is_sqlite() else 8)


@pytest.mark.parametrize(("times", "more", "again"), [(32, 0, 0), (64, 1, 0), (128, 8, 3), (256, 22, 9)])
def test_a_postback_of_many_issues_runs_few_more_on_sqlite_alone(
    client: TestClient, times: int, more: int, again: int
) -> None:
    # SQLite takes lists of 64 rows at most, and the filter values are two rows for each issue.
    scanned(client, *FIRST)
    assert scanned(client, "many", times) - scanned(client, "few", FEW, prefix="other") == (more if is_sqlite() else 0)
    seen = scanned(client, "many again", times) - scanned(client, "few again", FEW, prefix="other")
    assert seen == (again if is_sqlite() else 0)


def test_an_odd_number_of_issues_runs_a_few_more_on_sqlite_alone(client: TestClient) -> None:
    scanned(client, *FIRST)
    few = scanned(client, "few", FEW, prefix="other")
    # Each of the five lists is seven of 64 there, and one of 32, 16 and 4. The filter values are 1,000 rows.
    assert scanned(client, "many", 500) == few + (61 if is_sqlite() else 0)


def test_other_requests_that_write_run_a_few_statements(client: TestClient, customer: Customer) -> None:
    target = make_target(customer)
    [export_id] = make_exports(customer, 1)
    platform = {"Authorization": f"Bearer {make_platform_token(customer, Ability.UPLOAD_EVIDENCE)}"}
    hook = {"provider_key": "generic_webhook", "base_url": "https://tracker.example.com/hook", "name": "Tracker"}
    posted(client, "/api/ticket-export-targets", hook, customer.bearer, "counts targets")
    posted(client, "/api/browser-extension/evidence-captures", capture(customer.project_id), platform, "counts uploads")
    ran = {
        "approve": posted(
            client, f"/api/ticket-exports/{export_id}/approve", {"target_id": target.id}, customer.bearer, "approve"
        ),
        "create": posted(client, "/api/ticket-export-targets", hook, customer.bearer, "create"),
        "upload": posted(
            client, "/api/browser-extension/evidence-captures", capture(customer.project_id), platform, "upload"
        ),
    }
    # Approve: token; key, the target, the export with its lock, the move, the ledger, the record, the answer.
    # Create: token, whether it was done before; key, whether the account may use webhooks, target, ledger, answer.
    # Upload: token, grant; key, grant, capture, export, filter values, words, ledger, rules, handoff, ledger, answer. On
    # PostgreSQL, the export, its filter values and its words are one, and the project is held before the grant is read.
    assert ran == {"approve": 8, "create": 7, "upload": 13 if is_sqlite() else 12}


@pytest.mark.parametrize("rules", [1, 10])
def test_rules_decide_all_exports_of_a_postback_with_eight_more_statements(
    client: TestClient, customer: Customer, rules: int
) -> None:
    scanned(client, *FIRST)
    without = scanned(client, "without", FEW, prefix="other")
    action = RuleAction(RuleActionType.APPROVE, target_id=make_target(customer).id)
    for number in range(rules):
        make_rule(customer, action, RuleMatch(rule=f"*{number or ''}", page_path="/*"))
    # The rules, their authors, their targets, the exports; the rule that decides and its target are held, exports, ledger.
    assert [scanned(client, f"{count}", count, prefix=f"{count}") for count in (16, 32)] == [without + 8] * 2
