"""The number of statements per request: a query in a loop, or an additional one, fails here before a benchmark shows it."""

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

#: The first postback registers the run, and counts the account's rows, which the process does only now and then.
FIRST: Final = ("first", 1, "first")
#: With more than five issues, PostgreSQL looks the known findings up before the transaction; SQLite always does.
FEW: Final = 8

Send = Callable[[str], int]


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """The application with all route families."""
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id), "DEPLOYMENT_MODE": "cloud"})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({"tracker.example.com": ["93.184.215.14"]})))


def posted(client: TestClient, path: str, body: dict[str, Any], headers: dict[str, str], key: str) -> int:
    """Send a request with a key; return the number of its statements."""
    with statements() as ran:
        answer = client.simulate_post(path, json=body, headers={**headers, "Idempotency-Key": key})
    assert answer.status_code in {201, 202}, answer.text
    return len(ran)


def scanned(client: TestClient, key: str, issues: int, prefix: str = "new") -> int:
    """Post a page with so many issues; return the number of statements."""
    body = postback(issues=[issue(f"{prefix}-{number}") for number in range(issues)])
    return posted(client, "/api/scanner/results", body, {"X-Scanner-Secret": SCANNER_SECRET}, key)


def test_a_postback_of_one_issue_runs_a_few_statements(client: TestClient) -> None:
    scanned(client, *FIRST)
    # Secret, known findings (SQLite); key, page, run, finding, sighting, findings that the page no longer has, export, its
    # filter values, its words, audit entry, rules, the run's status, response. One statement each on PostgreSQL: page and
    # run; finding and sighting; export, filter values and words.
    assert scanned(client, "new", 1) == (15 if is_sqlite() else 10)
    # Instead of export, filter values, words, audit entry and rules: update of the finding (and its sighting, on SQLite).
    assert scanned(client, "seen", 1) == (11 if is_sqlite() else 8)


@pytest.mark.parametrize(("times", "more", "again"), [(32, 0, 0), (64, 1, 0), (128, 8, 3), (256, 22, 9)])
def test_a_postback_of_many_issues_runs_few_more_on_sqlite_alone(
    client: TestClient, times: int, more: int, again: int
) -> None:
    # SQLite gets lists of at most 64 rows, and each issue has two filter values.
    scanned(client, *FIRST)
    assert scanned(client, "many", times) - scanned(client, "few", FEW, prefix="other") == (more if is_sqlite() else 0)
    seen = scanned(client, "many again", times) - scanned(client, "few again", FEW, prefix="other")
    assert seen == (again if is_sqlite() else 0)


def test_an_odd_number_of_issues_runs_a_few_more_on_sqlite_alone(client: TestClient) -> None:
    scanned(client, *FIRST)
    few = scanned(client, "few", FEW, prefix="other")
    # On SQLite, each of the five lists is seven lists of 64 rows, and one of 32, 16 and 4. There are 1,000 filter values.
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
    # Approve: token; key, target, export with its lock, transition, audit entry, record, response. Create: token, earlier
    # response; key, the account's right to webhooks, target, audit entry, response. Upload: token, grant; key, grant,
    # capture, export, filter values, words, audit entry, rules, handoff, audit entry, response. On PostgreSQL, the export,
    # its filter values and its words are one statement, and the project is locked before the grant is read.
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
    # The rules, their authors, their targets, the exports; locks of the deciding rule and its target; exports, audit
    # entries.
    assert [scanned(client, f"{count}", count, prefix=f"{count}") for count in (16, 32)] == [without + 8] * 2
