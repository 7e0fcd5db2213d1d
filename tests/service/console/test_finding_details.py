"""The page of an export shows the help link, screenshot, history and neighbors of its finding; their texts are untrusted."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import TestClient

from service.app import create_app
from service.console.triage.ticket_view import MAX_LISTED
from storage.db.engine import rows
from storage.intake import finding_history
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import indexes_read, statements
from tests.support.factories import Customer, make_settings, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import EXPORTS, JSON, RESULTS, SCANNER, Call

BASE: Final = "https://artifacts.example.com/scans"


def make_client(customer: Customer, folder: Path, base_url: str) -> TestClient:
    changes = {"DEFAULT_PROJECT_ID": str(customer.project_id), "ARTIFACTS_BASE_URL": base_url}
    return TestClient(create_app(make_settings(folder, changes), FakeWakeUpQueue(), FakeResolver({})))


def scan(client: TestClient, scan_run_id: int, screenshot: str, *issues: dict[str, Any]) -> list[str]:
    """Post the issues of one page; return the exports that were prepared."""
    body = postback(scan_run_id, issues=list(issues), artifacts={"screenshotPath": screenshot})
    answer = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(body).send(client)
    assert answer.status_code == 202, answer.text
    exports: list[str] = answer.json["ticket_exports"]
    return exports


def page_of(client: TestClient, customer: Customer, export_id: str) -> str:
    person = ConsoleBrowser(client)
    person.sign_in(make_console_token(customer))
    return person.get(f"/exports/{export_id}").text


def issue(code: str, **members: Any) -> dict[str, Any]:
    return {"code": code, "title": f"Title of {code}", "severity": "high", "location": f"#{code}", **members}


def test_with_a_base_url_the_ticket_and_the_page_link_the_screenshot(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, BASE)
    [export_id] = scan(client, 7, "7/home page.png", issue("label", helpUrl="https://rules.example.com/label"))
    record = Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items())).send(client).json
    assert record["ticket"]["evidence"]["screenshot"] == f"{BASE}/7/home%20page.png"
    assert rows("SELECT screenshot_path FROM page_results") == [("7/home page.png",)]
    page = page_of(client, customer, export_id)
    link_attributes = 'rel="noreferrer noopener nofollow" target="_blank"'
    assert f'<a href="{BASE}/7/home%20page.png" {link_attributes}>Open the screenshot at artifacts.example.com</a>' in page
    assert f'<a href="https://rules.example.com/label" {link_attributes}>About this rule at rules.example.com</a>' in page


def test_without_a_base_url_the_screenshot_is_text_and_a_later_base_url_links_it(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, "")
    [export_id] = scan(client, 7, "7/home.png", issue("label"))
    page = page_of(client, customer, export_id)
    assert "<bdi>7/home.png</bdi>" in page
    assert "Open the screenshot" not in page
    later = make_client(customer, tmp_path, f"{BASE}/")
    assert f'<a href="{BASE}/7/home.png"' in page_of(later, customer, export_id)


@pytest.mark.parametrize(
    "screenshot", ["https://evil.example/x.png", "../x.png", "javascript://x/%0aalert(1)", "//evil.example/x"]
)
def test_a_screenshot_that_leads_elsewhere_stays_text(customer: Customer, tmp_path: Path, screenshot: str) -> None:
    client = make_client(customer, tmp_path, BASE)
    [export_id] = scan(client, 7, screenshot, issue("label"))
    page = page_of(client, customer, export_id)
    assert "<dt>Screenshot</dt>" in page
    assert "Open the screenshot" not in page


def test_the_page_lists_the_scan_runs_and_the_other_findings_of_the_page(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, "")
    [first, second] = scan(client, 7, "x.png", issue("label"), issue("alt", severity="low"))
    assert scan(client, 8, "x.png", issue("label"), issue("alt", severity="low")) == []
    elsewhere = postback(8, issues=[issue("other")])
    elsewhere["page"]["url"] = elsewhere["page"]["normalizedUrl"] = "https://shop.example/elsewhere"
    Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(elsewhere).send(client)
    page = page_of(client, customer, first)
    assert "Reported by 2 scan runs" in page
    assert page.index("Scan run 8") < page.index("Scan run 7")
    assert "1 other finding on this page" in page
    assert f'<a href="/console/exports/{second}"><bdi>Title of alt</bdi></a>' in page
    assert "Title of other" not in page


def test_a_ticket_says_when_its_finding_was_reopened(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, "")
    [export_id] = scan(client, 7, "x.png", issue("label"))
    assert ", reopened " not in page_of(client, customer, export_id)
    for run, issues in ((8, []), (9, []), (10, [issue("label")]), (11, [issue("label")])):
        scan(client, run, "x.png", *issues)
    page = page_of(client, customer, export_id)
    assert re.search(r"<dt>Seen</dt><dd>in 3 scan runs, first <time.*, reopened <time", page)


@on_sqlite
def test_the_inbox_shows_the_details_beside_the_list(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, BASE)
    help_url = "https://rules.example.com/label"
    [first, _] = scan(client, 7, "7/home.png", issue("label", helpUrl=help_url), issue("alt", severity="low"))
    person = ConsoleBrowser(client)
    person.sign_in(make_console_token(customer))
    page = person.get("/inbox", f"export={first}").text
    shown = (f'href="{BASE}/7/home.png"', f'href="{help_url}"', "Reported by 1 scan run<", "1 other finding on this page")
    assert [each for each in shown if each not in page] == []


@on_sqlite
def test_lists_are_bounded_and_read_from_an_index(customer: Customer, tmp_path: Path) -> None:
    client = make_client(customer, tmp_path, "")
    exports = scan(client, 7, "x.png", *(issue(f"rule-{number}") for number in range(MAX_LISTED + 3)))
    page = page_of(client, customer, exports[0])
    assert f"More than {MAX_LISTED} other findings on this page" in page
    [(finding_id,)] = rows("SELECT source_id FROM exports WHERE id = ?", (exports[0],))
    with statements() as found:
        assert len(finding_history.list_others_of_page(finding_id, 5)) == 5
        assert len(finding_history.list_runs(finding_id, 5)) == 1
    assert "findings_page" in indexes_read(found[0])
    assert finding_history.list_others_of_page("fnd_x", 5) == []
