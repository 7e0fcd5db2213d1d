"""Reports of a project's findings: the contents of each format, safe handling of hostile text, and size limits."""

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any, Final

import pytest
from jsonschema_rs import Draft7Validator

from schemas.base.errors import ValidationFailed
from schemas.exports.decisions import DismissalReason
from schemas.findings.sarif import path_of
from schemas.intake.scanner import PostbackForm
from service.operations import finding_reports
from service.operations.finding_reports import ReportFormat, report
from storage.accounts import projects
from storage.db.engine import execute, rows
from storage.triage import decisions
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import full_scans, statements
from tests.support.factories import NOW, Customer, issue, make_customer, postback, record_postback
from tests.support.sarif_schema import SARIF_LOG

SARIF: Final = Draft7Validator(SARIF_LOG, validate_formats=True)
HOSTILE: Final = '=HYPERLINK("https://evil.example")<script>alert(1)</script>\u202e'


def scan(customer: Customer, run: int, *issues: dict[str, Any], url: str = "https://shop.example/") -> None:
    posted = PostbackForm().read(postback(run, list(issues), page={"url": url}))
    record_postback(posted, customer.project_id, NOW + timedelta(minutes=run))


def written(customer: Customer, wanted: ReportFormat, most: int | None = None) -> str:
    return "".join(report(projects.get_project(customer.project_id), wanted, NOW, most))


@pytest.fixture
def scanned(customer: Customer) -> Customer:
    """Two open findings (critical and low), one dismissed and one fixed finding."""
    scan(customer, 1, issue("low", severity="low", title=HOSTILE), issue("dismissed"), url="https://shop.example/?a=1&b=2")
    scan(customer, 2, issue("critical", severity="critical"), issue("fixed"))
    [(export_id,)] = rows("SELECT export_id FROM findings WHERE code = 'dismissed'")
    decisions.dismiss(export_id, None, NOW, "test", DismissalReason.WONT_FIX)
    for run in (3, 4):
        scan(customer, run, issue("critical", severity="critical"))
    scan(make_customer(), 5, issue("of another"))
    return customer


def test_json_has_all_findings_by_severity_and_their_counts(scanned: Customer) -> None:
    found = json.loads(written(scanned, ReportFormat.JSON))
    assert found["project"]["id"] == scanned.project_id
    assert found["created_at"] == "2026-03-01T12:00:00.000Z"
    assert [(each["rule"], each["state"]) for each in found["findings"]] == [
        ("critical", "open"),
        ("fixed", "fixed"),
        ("dismissed", "dismissed"),
        ("low", "open"),
    ]
    assert found["counts"] == {
        "critical": {"open": 1},
        "high": {"fixed": 1, "dismissed": 1},
        "medium": {},
        "low": {"open": 1},
        "info": {},
    }


@on_sqlite
def test_csv_has_the_members_of_json_and_no_formula(scanned: Customer) -> None:
    lines = list(csv.DictReader(io.StringIO(written(scanned, ReportFormat.CSV).removeprefix("\ufeff"), newline="")))
    found = json.loads(written(scanned, ReportFormat.JSON))["findings"]
    assert [line["id"] for line in lines] == [each["id"] for each in found]
    assert list(lines[0]) == list(found[0])
    assert lines[-1]["title"] == f"'{HOSTILE}"
    assert lines[0]["fixed_at"] == ""


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "|a", "%a", " =1", "\t1", "\r1", "\n=1", "\uff1d1"])
@on_sqlite
def test_a_cell_that_starts_like_a_formula_is_quoted(scanned: Customer, text: str) -> None:
    execute("UPDATE findings SET location = ? WHERE code = 'low'", (text,))
    *_, line = csv.DictReader(io.StringIO(written(scanned, ReportFormat.CSV), newline=""))
    assert line["location"] == f"'{text}"


@on_sqlite
def test_html_escapes_text_and_links_only_plain_addresses(scanned: Customer) -> None:
    execute("UPDATE findings SET page_url = 'javascript:alert(1)' WHERE code = 'fixed'")
    execute("UPDATE findings SET page_url = 'https://user@evil.example/' WHERE code = 'dismissed'")
    page = written(scanned, ReportFormat.HTML)
    assert "&lt;script&gt;" in page
    assert not re.search("<script|<link|<img|\u202e| on[a-z]+=", page)
    assert re.findall(r'href="([^"]*)"', page) == ["https://shop.example/", "https://shop.example/?a=1&amp;b=2"]
    assert '<th scope="row" class="high">High</th><td class="number">0</td><td class="number">1</td>' in page
    assert "4 findings, fixed ones last, the most severe first" in page
    assert "left out" not in page


@on_sqlite
def test_a_long_html_report_states_what_it_omits(scanned: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_reports, "MAX_IN_HTML", 3)
    page = written(scanned, ReportFormat.HTML)
    assert "lists the first 3; 1 that are fixed, less severe or older are left out." in page
    # Fixed findings are left out first, whatever their severity.
    assert re.findall('</bdi><br><code class="soft">([^<]*)', page) == ["critical", "dismissed", "low"]
    assert page.count("<bdi>") == 1 + 3


@on_sqlite
def test_sarif_has_open_findings_with_the_members_required_by_code_scanning(scanned: Customer) -> None:
    log = json.loads(written(scanned, ReportFormat.SARIF))
    SARIF.validate(log)
    runs = {run["automationDetails"]["id"]: run for run in log["runs"]}
    prefix = f"riskrelay/project-{scanned.project_id}"
    assert list(runs) == [f"{prefix}/{each}/" for each in ("critical", "high", "medium", "low", "info")]
    assert runs[f"{prefix}/high/"]["results"] == []
    [result] = runs[f"{prefix}/low/"]["results"]
    [rule] = runs[f"{prefix}/low/"]["tool"]["driver"]["rules"]
    [(finding_id, fingerprint)] = rows("SELECT id, fingerprint FROM findings WHERE code = 'low'")
    assert (rule["id"], rule["properties"]["security-severity"], rule["help"]["text"]) == ("low", "2.0", HOSTILE)
    assert result == {
        "ruleId": "low",
        "ruleIndex": 0,
        "level": "note",
        "message": {"text": f"{HOSTILE} at https://shop.example/?a=1&b=2"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "shop.example/?a=1&b=2"},
                    "region": {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1},
                },
                "logicalLocations": [{"fullyQualifiedName": "main > img.hero", "kind": "element"}],
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        "properties": {"id": finding_id, "state": "open", "url": "https://shop.example/?a=1&b=2"},
    }


@on_sqlite
def test_a_sarif_run_has_a_limited_number_of_results_and_each_rule_once(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding_reports, "MAX_IN_RUN", 3)
    scan(customer, 1, *(issue(f"r{number % 2}", location=f"#{number}") for number in range(5)))
    run = json.loads(written(customer, ReportFormat.SARIF))["runs"][1]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert sorted(rules) == ["r0", "r1"]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [result["ruleId"] for result in run["results"]]
    assert len(run["results"]) == 3


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://shop.example/a b?q=50%&r=[ä]", "shop.example/a%20b?q=50%25&r=%5B%C3%A4%5D"),
        ("//shop.example/", "shop.example/"),
        ("javascript:alert(1)", "alert(1)"),
        ("https://", "unknown"),
    ],
)
def test_a_url_becomes_a_path_without_its_scheme(url: str, path: str) -> None:
    assert path_of(url) == path


@on_sqlite
def test_a_download_that_would_take_too_long_is_refused(scanned: Customer) -> None:
    for whole in (ReportFormat.CSV, ReportFormat.JSON):
        with pytest.raises(ValidationFailed) as refused:
            written(scanned, whole, 3)
        assert [each.path for each in refused.value.problems] == ["/format"]
        assert written(scanned, whole, 4)
    assert written(scanned, ReportFormat.SARIF, 3)
    assert written(scanned, ReportFormat.HTML, 3)


@on_sqlite
def test_findings_are_read_in_parts_from_an_index(scanned: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written(scanned, ReportFormat.JSON)
    monkeypatch.setattr(finding_reports, "_BATCH", 1)
    with statements() as asked:
        assert written(scanned, ReportFormat.JSON) == whole
    # One statement each for the project and the counts, four for findings, and one for the end of each of five severities.
    assert len(asked) == 2 + 4 + 5
    assert not [each for each in asked if full_scans(each, frozenset({"findings"}))]
