"""Findings are listed by filters and pages, and one is read with its history; other accounts' findings are not found."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.exports.decisions import DismissalReason
from schemas.intake.scanner import PostbackForm
from schemas.triage.finding_filter import FindingQuery
from service.app import create_app
from storage.db.engine import execute, rows
from storage.intake import finding_list
from storage.triage import decisions
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import full_scans, indexes_read, statements
from tests.support.factories import (
    NOW,
    Customer,
    issue,
    make_customer,
    make_project,
    make_settings,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import RESULTS, SCANNER, Call, assert_is_error

FINDINGS = "/api/findings"


def read(client: TestClient, customer: Customer, path: str = "") -> Result:
    return Call("GET", f"{FINDINGS}{path}", tuple(customer.bearer.items())).send(client)


def scan(project_id: int, run: int, *issues: dict[str, Any], url: str = "https://shop.example/") -> None:
    body = postback(run, list(issues), page={"url": url})
    record_postback(PostbackForm().read(body), project_id, NOW + timedelta(minutes=run))


def codes(client: TestClient, customer: Customer, query: str = "") -> list[str]:
    answer = read(client, customer, query)
    assert answer.status_code == 200, answer.text
    return [each["rule"] for each in answer.json["items"]]


@pytest.mark.parametrize("grouping", ["finding", "rule"])
def test_a_rule_that_was_posted_with_white_space_is_found_without(
    client: TestClient, customer: Customer, grouping: str
) -> None:
    execute("UPDATE projects SET ticket_grouping = ?", (grouping,))
    scan(customer.project_id, 1, issue("csp \t"), issue(" img-alt"))
    assert codes(client, customer, "?rule=csp") == ["csp"]
    assert codes(client, customer, "?rule=img-alt") == ["img-alt"]
    assert sorted(rows("SELECT code, rule FROM findings f JOIN exports e ON e.id = f.export_id")) == [
        ("csp", "csp"),
        ("img-alt", "img-alt"),
    ]


@on_sqlite
@pytest.mark.parametrize(("runs", "fixed"), [("1", 1), ("3", 0)])
def test_a_finding_is_fixed_after_as_many_runs_as_the_setting_says(
    customer: Customer, tmp_path: Path, runs: str, fixed: int
) -> None:
    changes = {"DEFAULT_PROJECT_ID": str(customer.project_id), "FIXED_AFTER_RUNS": runs}
    client = TestClient(create_app(make_settings(tmp_path, changes), FakeWakeUpQueue(), FakeResolver({})))
    posts = [client.simulate_post(RESULTS, json=body, headers=SCANNER) for body in (postback(1), postback(2, []))]
    assert posts[1].json["findings"]["fixed"] == fixed


@pytest.fixture
def scanned(customer: Customer) -> Customer:
    """Findings of every state: open, fixed, dismissed, snoozed."""
    scan(customer.project_id, 1, issue("open", severity="critical", title="Überschrift fehlt"))
    scan(customer.project_id, 2, issue("fixed"), url="https://shop.example/fixed")
    scan(customer.project_id, 3, issue("dismissed"), url="https://blog.example/dismissed")
    scan(customer.project_id, 4, issue("snoozed", severity="low"), url="https://shop.example/snoozed")
    exports = dict(rows("SELECT code, export_id FROM findings"))
    decisions.dismiss(exports["dismissed"], None, NOW, "test", DismissalReason.WONT_FIX)
    decisions.snooze(exports["snoozed"], None, NOW, "test", None)
    for run in (5, 6):
        scan(customer.project_id, run, url="https://shop.example/fixed")
    return customer


def test_findings_are_listed_newest_first_with_their_states(client: TestClient, scanned: Customer) -> None:
    answer = read(client, scanned).json
    assert [(each["rule"], each["state"]) for each in answer["items"]] == [
        (state, state) for state in ("snoozed", "dismissed", "fixed", "open")
    ]
    [(finding_id, export_id)] = rows("SELECT id, export_id FROM findings WHERE code = 'fixed'")
    assert answer["items"][2] == {
        "id": finding_id,
        "project_id": scanned.project_id,
        "rule": "fixed",
        "title": "Image without alternative text",
        "severity": "high",
        "state": "fixed",
        "url": "https://shop.example/fixed",
        "location": "main > img.hero",
        "first_seen_at": "2026-03-01T12:02:00.000Z",
        "last_seen_at": "2026-03-01T12:02:00.000Z",
        "fixed_at": "2026-03-01T12:06:00.000Z",
        "times_reopened": 0,
        "scan_runs": 1,
        "ticket_export_id": export_id,
    }
    assert answer["next_cursor"] is None


#: Filters, and the findings that match.
FILTERS = {
    "state=open": ["open"],
    "state=fixed": ["fixed"],
    "state=dismissed": ["dismissed"],
    "state=snoozed": ["snoozed"],
    "state=open,fixed": ["fixed", "open"],
    "state=dismissed,open,snoozed": ["snoozed", "dismissed", "open"],
    "severity=critical,low": ["snoozed", "open"],
    "rule=fixed,open": ["fixed", "open"],
    "rule=FIXED": [],
    "host=blog.example": ["dismissed"],
    "host=SHOP.example&state=open": ["open"],
    "q=fehlt": ["open"],
    "q=%C3%BCberschrift": ["open"],
    "q=image%20SNOOZED": ["snoozed"],
    "project_id=999999": [],
}


@pytest.mark.parametrize("query", FILTERS)
def test_filters_narrow_the_list_of_findings(client: TestClient, scanned: Customer, query: str) -> None:
    assert codes(client, scanned, f"?{query}") == FILTERS[query]


@pytest.mark.parametrize(
    ("word", "title"), [("straße", "Große Straße"), ("Grün", "GRÜN"), ("GRÜN", "grün"), ("ΟΔΟΣ", "οδος")]
)
def test_words_are_found_in_any_case_and_script(client: TestClient, customer: Customer, word: str, title: str) -> None:
    scan(customer.project_id, 1, issue("named", title=title))
    assert codes(client, customer, f"?q={quote(word)}") == ["named"]


@pytest.mark.parametrize(
    ("word", "title"),
    [("ﬁx", "ﬁx"), ("fix", "fix"), ("x²", "x²"), ("Acme™", "Acme™ banner"), ("\uff21\uff22", "ab")]
    + [(word, title) for word in ("café", "cafe\u0301") for title in ("Café", "Cafe\u0301")],
)
def test_a_search_finds_words_with_ligatures_and_symbols_as_shown(
    client: TestClient, customer: Customer, word: str, title: str
) -> None:
    scan(customer.project_id, 1, issue("named", title=title))
    assert codes(client, customer, f"?q={quote(word)}") == ["named"]


def test_a_finding_is_open_after_its_snooze_expired(client: TestClient, scanned: Customer) -> None:
    execute("UPDATE exports SET snoozed_until = 1 WHERE snoozed_at IS NOT NULL")
    assert codes(client, scanned, "?state=open") == ["snoozed", "open"]
    assert codes(client, scanned, "?state=snoozed") == []
    execute("DELETE FROM exports")
    assert codes(client, scanned, "?state=open") == ["snoozed", "dismissed", "open"]
    assert {each["ticket_export_id"] for each in read(client, scanned).json["items"]} == {None}


def test_pages_follow_each_other_and_a_cursor_belongs_to_its_filters(client: TestClient, scanned: Customer) -> None:
    first = read(client, scanned, "?limit=3&severity=high,low,critical")
    cursor = first.json["next_cursor"]
    assert first.headers["link"].startswith(
        f"<http://127.0.0.1:8000{FINDINGS}?severity=high%2Clow%2Ccritical&limit=3&cursor="
    )
    assert [each["rule"] for each in first.json["items"]] == ["snoozed", "dismissed", "fixed"]
    assert codes(client, scanned, f"?limit=3&severity=high,low,critical&cursor={cursor}") == ["open"]
    for other in (f"?limit=3&cursor={cursor}", "?cursor=x", "?limit=0", "?state=closed", "?severity=bad", "?project_id=x"):
        assert read(client, scanned, other).status_code == 422, other


def test_a_finding_has_the_outcome_of_each_scan_run_in_its_history(client: TestClient, scanned: Customer) -> None:
    [(finding_id,)] = rows("SELECT id FROM findings WHERE code = 'fixed'")
    scan(scanned.project_id, 7, issue("fixed"), url="https://shop.example/fixed")
    found = read(client, scanned, f"/{finding_id}").json
    assert (found["state"], found["fixed_at"], found["times_reopened"], found["scan_runs"]) == ("open", None, 1, 2)
    assert found["history"] == [
        {"scan_run_id": 7, "at": "2026-03-01T12:07:00.000Z", "outcome": "reopened"},
        {"scan_run_id": 6, "at": "2026-03-01T12:06:00.000Z", "outcome": "fixed"},
        {"scan_run_id": 5, "at": "2026-03-01T12:05:00.000Z", "outcome": "missed"},
        {"scan_run_id": 2, "at": "2026-03-01T12:02:00.000Z", "outcome": "seen"},
    ]


def test_another_accounts_findings_are_not_found(client: TestClient, scanned: Customer) -> None:
    other = make_customer()
    [(finding_id,)] = rows("SELECT id FROM findings WHERE code = 'open'")
    assert codes(client, other) == []
    assert codes(client, other, f"?project_id={scanned.project_id}") == []
    for path in (f"/{finding_id}", "/fnd_1", "/x"):
        assert_is_error(read(client, other, path), 404, "NOT_FOUND")
    assert codes(client, scanned, f"?project_id={make_project(scanned)}") == []


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (FindingQuery(1), {"findings_open", "findings_fixed"}),
        (FindingQuery(1, states=("fixed",)), {"findings_fixed"}),
        (FindingQuery(1, states=("open",)), {"findings_open"}),
        (FindingQuery(1, rules=("rule",)), {"findings_rule"}),
        (FindingQuery(1, hosts=("shop.example",)), {"findings_host"}),
        (FindingQuery(1, project_ids=(1,), pages=("0",)), {"findings_page", "findings_page_fixed"}),
    ],
)
@on_sqlite
def test_lists_are_read_from_an_index(customer: Customer, query: FindingQuery, index: set[str]) -> None:
    scan(customer.project_id, 1, issue("rule"))
    now: datetime = utc_now()
    with statements() as asked:
        finding_list.list_page(query, now, 51)
        finding_list.count_by_state(query, now)
    listed, counted = asked
    assert index <= set(indexes_read(listed))
    assert not full_scans(listed)
    assert not full_scans(counted)
