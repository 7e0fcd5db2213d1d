"""Findings at the console: by project, by severity, with the exports that were prepared for them."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from falcon.testing import Result

from schemas.base.principal import Ability
from schemas.exports.record import Approval
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import SEVERITIES, PostbackForm
from service.console.choices import MAX_PROJECTS
from service.console.pages import findings as findings_page
from service.operations.finding_reports import MEDIA_TYPES, ReportFormat
from storage.accounts import projects
from storage.db.engine import execute, rows
from storage.exports import transitions
from tests.service.console.form_fields import in_words
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    issue,
    make_customer,
    make_project,
    make_target,
    postback,
    record_postback,
)
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def scanned(project_id: int, scan_run_id: int, *issues: Any, minutes: int = 0) -> list[str]:
    """Store a page with these issues; return the exports that were prepared."""
    posted = PostbackForm().read(postback(scan_run_id, [*issues]))
    return list(record_postback(posted, project_id, NOW + timedelta(minutes=minutes)).ticket_exports)


#: The title of a row, in the link to its finding.
#: The page of the findings, as the table shows it: a narrow column breaks it after a slash.
BREAKABLE_URL = "https:/<wbr>/<wbr>shop.example/<wbr>"
TITLE = re.compile(r'<tr>\n<td><a href="/console/findings/fnd_[0-9A-Z]{26}"><bdi>([^<]*)</bdi>')


def titles(page: Result) -> list[str]:
    return [unescape(title) for title in TITLE.findall(page.text)]


def test_a_finding_is_listed_with_its_export(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = scanned(customer.project_id, 1, issue("img-alt", title="No alternative text", severity="critical"))
    scanned(customer.project_id, 2, issue("img-alt", title="No alternative text", severity="critical"), minutes=5)
    page = person.get("/findings")
    [row] = re.findall(r"<tr>\n<td><a href=.*?</tr>", page.text, re.DOTALL)
    for expected in (
        "No alternative text",
        "img-alt",
        "Critical",
        '<span class="status bad">open</span>',
        f"<bdi>{BREAKABLE_URL}</bdi>",
        "12:00:00 UTC",
        "12:05:00 UTC",
        ">2<",
    ):
        assert expected in row
    assert f'<a href="/console/exports/{export_id}"><span class="status calm">prepared</span></a>' in row
    execute("DELETE FROM audit_entries")
    execute("DELETE FROM exports")
    assert "<td></td>" in person.get("/findings").text


@on_sqlite
def test_a_finding_that_joined_its_ticket_after_the_approval_is_said_to_be_missing_in_it(
    person: ConsoleBrowser, customer: Customer
) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    [export_id] = scanned(customer.project_id, 1, issue("a", location="h1"))
    approval = Approval(make_target(customer).id, None)
    transitions.approve(export_id, customer.account_id, approval, NOW + timedelta(minutes=1), "user:1", LOOPBACK_POLICY)
    assert scanned(customer.project_id, 2, issue("a", location="h1"), issue("a", location="h2"), minutes=2) == []
    later, first = re.findall(r"<tr>\n<td><a href=.*?</tr>", person.get("/findings").text, re.DOTALL)
    assert ("joined later" in later, "joined later" in first) == (True, False)
    shown = [person.get(f"/findings/{finding_id}").text for (finding_id,) in rows("SELECT id FROM findings ORDER BY id")]
    assert ["the ticket that is sent lacks it" in page for page in shown] == [False, True]


def test_findings_of_all_projects_are_shown_unless_one_is_chosen(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_project(customer)
    assert 'data-state="unused"' in person.get("/findings").text
    scanned(other, 1, issue("a", title="Of the other"), minutes=1)
    scanned(customer.project_id, 2, issue("b", title="Of the first"))
    assert titles(person.get("/findings")) == ["Of the other", "Of the first"]
    page = person.get("/findings", f"project_id={other}&severity=&cursor=")
    assert titles(page) == ["Of the other"]
    assert f'<option value="{other}" selected>' in page.text


def test_findings_are_listed_by_severity(person: ConsoleBrowser, customer: Customer) -> None:
    scanned(customer.project_id, 1, *(issue(name, title=name, severity=name) for name in SEVERITIES))
    assert {*titles(person.get("/findings"))} == {*SEVERITIES}
    for severity in SEVERITIES:
        assert titles(person.get("/findings", f"severity={severity}")) == [severity]
        assert titles(person.get("/findings", f"rule={severity}&q={severity}&host=shop.example")) == [severity]
    assert titles(person.get("/findings", "state=fixed")) == titles(person.get("/findings", "host=other.example")) == []


def linked(page: Result, text: str) -> str:
    """Return the query of the link with this text."""
    [query] = {unescape(query) for query in re.findall(rf'href="/console/findings\?([^"]+)">{text}', page.text)}
    return query


def test_a_rule_and_a_page_have_their_findings_by_state(person: ConsoleBrowser, customer: Customer) -> None:
    scanned(customer.project_id, 1, issue("a", title="First"), issue("b", title="Second"))
    about = PostbackForm().read(
        postback(2, [issue("a", title="Third")], page={"url": "https://shop.example/about?utm_source=x"})
    )
    record_postback(about, customer.project_id, NOW + timedelta(minutes=2))
    for run in (3, 4):
        scanned(customer.project_id, run, issue("b", title="Second"), minutes=run)
    of_rule = person.get("/findings", linked(person.get("/findings"), "<code>a</code>"))
    assert titles(of_rule) == ["Third", "First"]
    assert "<h2>Rule <code>a</code></h2>" in of_rule.text
    assert titles(person.get("/findings", linked(of_rule, "1 fixed"))) == ["First"]
    of_page = person.get("/findings", linked(person.get("/findings"), f"<bdi>{BREAKABLE_URL}</bdi>"))
    assert titles(of_page) == ["Second", "First"]
    assert "<h2>Page <bdi>https://shop.example/</bdi></h2>" in of_page.text
    assert titles(person.get("/findings", linked(of_page, "1 open"))) == ["Second"]
    assert person.get("/findings", "page=CANARY").status_code == 422


def test_the_findings_of_a_rule_are_those_of_the_chosen_projects(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_project(customer)
    scanned(other, 1, issue("a", title="Of the other"))
    scanned(customer.project_id, 2, issue("a", title="Of the first"), minutes=1)
    for query, shown in {"": ["Of the first", "Of the other"], f"project_id={other}": ["Of the other"]}.items():
        assert titles(person.get("/findings", linked(person.get("/findings", query), "<code>a</code>"))) == shown
    offered = person.get("/findings").text.partition('name="severity"')[2].partition("</select>")[0]
    # The most urgent first, as in the inbox.
    assert re.findall(r'value="(\w+)"', offered) == ["critical", "high", "medium", "low", "info"]


def test_a_finding_is_shown_with_its_history_and_its_ticket(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = scanned(customer.project_id, 1, issue("a", title="Heading"))
    for run in (2, 3):
        scanned(customer.project_id, run, minutes=run)
    scanned(customer.project_id, 4, issue("a", title="Heading"), minutes=4)
    [finding_id] = re.findall(r"/console/findings/(fnd_[0-9A-Z]{26})", person.get("/findings").text)
    execute("UPDATE findings SET page_url = 'javascript:alert(1)'")
    page = person.get(f"/findings/{finding_id}")
    runs = re.findall(r'<tr><td>(\d)</td><td><time.*?<span class="status \w+">(\w+)</span>', page.text)
    assert runs == [("4", "reopened"), ("3", "fixed"), ("2", "missed"), ("1", "seen")]
    assert (
        f'<a href="/console/exports/{export_id}">Open the ticket</a> <span class="status calm">prepared</span>' in page.text
    )
    assert "reopened 1 time<" in page.text
    assert (page.text.count("javascript:alert(1)"), 'href="javascript' in page.text) == (1, False)
    assert person.get("/findings/fnd_1").status_code == 404


def test_the_places_of_a_ticket_lead_to_their_findings_and_say_which_are_fixed(
    person: ConsoleBrowser, customer: Customer
) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    [export_id] = scanned(customer.project_id, 1, issue("a", location="h1"), issue("a", location="h2"))
    for run in (2, 3):
        scanned(customer.project_id, run, issue("a", location="h2"), minutes=run)
    found = dict(rows("SELECT location, id FROM findings"))
    page = person.get(f"/exports/{export_id}").text
    place = r'<li><a class="page" href="/console/findings/(\w+)"><bdi>/</bdi></a><code><bdi>(h\d)</bdi></code>(.*?)</li>'
    assert re.findall(place, page) == [
        (found["h1"], "h1", ' <span class="status good">fixed</span>'),
        (found["h2"], "h2", ""),
    ]
    assert "1 of 2 fixed" in page
    assert "1 of 2 fixed" in person.get("/inbox").text


def test_the_pages_of_a_list_follow_one_another_in_their_project(person: ConsoleBrowser, customer: Customer) -> None:
    for number in range(5):
        scanned(customer.project_id, number + 1, issue(f"r{number}", title=f"No. {number}", severity="high"), minutes=number)
    query, seen = f"severity=high&limit=2&project_id={customer.project_id}", []
    while query:
        page = person.get("/findings", query)
        seen += titles(page)
        query = next(map(unescape, re.findall(r'rel="next" href="/console/findings\?([^"]+)"', page.text)), "")
        # Another project is scanned between two pages; the list continues where it was.
        scanned(make_project(customer), 100 + len(seen), issue("x", title="Elsewhere", severity="high"), minutes=60)
    assert seen == [f"No. {number}" for number in (4, 3, 2, 1, 0)]


def test_an_empty_list_says_what_to_do(person: ConsoleBrowser, customer: Customer) -> None:
    page = person.get("/findings")
    assert 'data-state="unused"' in page.text
    assert "/api/scanner/results" in page.text
    scanned(customer.project_id, 1, issue(severity="high"))
    assert 'data-state="filtered"' in person.get("/findings", "severity=low").text
    assert 'data-state="filtered"' in person.get("/findings", f"project_id={make_project(customer)}").text
    execute("DELETE FROM grants")
    for table in ("exports", "finding_sightings", "findings", "page_results", "scan_runs", "projects"):
        execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
    assert "No project yet" in person.get("/findings").text


def test_a_bad_filter_is_refused_by_its_name_and_not_repeated(person: ConsoleBrowser) -> None:
    for query, named in [
        ("severity=CANARY", "/severity"),
        ("project_id=CANARY", "/project_id"),
        ("project_id=0", "/project_id"),
        ("project_id=-1", "/project_id"),
        ("project_id=1&project_id=2", "/project_id"),
        (f"project_id={'9' * 5000}", "/project_id"),
        ("project_id=9999999999", "/project_id"),  # beyond the database's integers
        ("project_id=%D9%A1", "/project_id"),  # a digit of another script
        (f"cursor={'CANARY' * 1000}", "/cursor"),
        ("cursor=MTpleHBfMDFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE", "/cursor"),  # an export's cursor
    ]:
        page = person.get("/findings", query)
        assert (page.status_code, f">{in_words(named)}: " in page.text, "CANARY" in page.text) == (422, True, False), query


def test_another_accounts_project_is_not_found(person: ConsoleBrowser, customer: Customer) -> None:
    strange = make_customer()
    scanned(strange.project_id, 1, issue(title="Not ours"), minutes=60)
    for project_id in (strange.project_id, 999_999_999):
        page = person.get("/findings", f"project_id={project_id}")
        assert (page.status_code, "no such project" in page.text, "Not ours" in page.text) == (404, True, False)
    page = person.get("/findings")
    assert (titles(page), f'value="{strange.project_id}"' in page.text) == ([], False)


def test_a_project_that_is_not_offered_is_reached_by_its_number(person: ConsoleBrowser, customer: Customer) -> None:
    scanned(customer.project_id, 1, issue(title="Of the oldest"))
    for _ in range(MAX_PROJECTS):
        make_project(customer, is_granted=False)
    assert f'<option value="{customer.project_id}"' not in person.get("/findings").text
    page = person.get("/findings", f"project_id={customer.project_id}")
    assert titles(page) == ["Of the oldest"]
    assert f'<option value="{customer.project_id}" selected>' in page.text


@on_sqlite
def test_text_of_a_scanner_is_escaped(person: ConsoleBrowser, customer: Customer) -> None:
    scanned(
        customer.project_id,
        1,
        issue(MARKUP, title=f"{MARKUP}\u202e", url="https://shop.example/?<script>alert(1)</script>"),
        issue("C" * 100, title="W" * 500),
    )
    execute("UPDATE projects SET name = ?", (MARKUP,))
    page = person.get("/findings")
    assert page.status_code == 200
    assert "alert(1)" in page.text
    for live in ("<script>", "<img", "\u202e"):
        assert live not in page.text.partition("<main")[2]
    assert "C" * 100 in page.text
    assert "W" * 240 in page.text


@on_sqlite
@pytest.mark.parametrize("wanted", list(ReportFormat))
def test_a_report_is_downloaded(person: ConsoleBrowser, customer: Customer, wanted: ReportFormat) -> None:
    scanned(customer.project_id, 1, issue("img-alt", title=MARKUP))
    assert f'href="/console/projects/{customer.project_id}/report/{wanted}" download' in person.get("/findings").text
    answer = person.get(f"/projects/{customer.project_id}/report/{wanted}")
    assert answer.headers["content-type"] == MEDIA_TYPES[wanted]
    assert answer.headers["content-disposition"] == f'attachment; filename="findings-{customer.project_id}.{wanted}"'
    assert answer.headers["content-length"] == str(len(answer.content))
    assert "img-alt" in answer.text
    assert person.get(f"/projects/{make_customer().project_id}/report/{wanted}").status_code == 404
    assert person.get(f"/projects/{customer.project_id}/report/pdf").status_code == 404


@on_sqlite
def test_a_report_that_is_too_large_is_an_error_page(
    person: ConsoleBrowser, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_page, "MAX_DOWNLOADED", 0)
    scanned(customer.project_id, 1, issue("img-alt"))
    answer = person.get(f"/projects/{customer.project_id}/report/csv")
    assert (answer.status_code, "riskrelay report" in answer.text) == (422, True)


@on_sqlite
def test_the_grouping_of_a_project_is_set(person: ConsoleBrowser, customer: Customer) -> None:
    manager = ConsoleBrowser(person.client)
    manager.sign_in(make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_ACCOUNT))
    path, query = f"/projects/{customer.project_id}/grouping", f"project_id={customer.project_id}"
    page = manager.get("/findings", query).text
    assert f'action="/console{path}"' in page
    assert '<option value="finding" selected>one for each finding</option>' in page
    answer = manager.post(path, ticket_grouping="rule")
    assert answer.headers["location"] == f"/console/findings?{query}&done=grouping_set"
    assert '<option value="rule" selected>one for each rule</option>' in manager.get("/findings", query).text
    assert rows("SELECT actor, reason FROM audit_entries WHERE action = 'set_ticket_grouping'") == [
        (f"user:{customer.user_id}", "rule")
    ]
    assert manager.post(path, ticket_grouping="page").status_code == 422
    assert projects.get_project(customer.project_id).ticket_grouping == TicketGrouping.RULE


@on_sqlite
def test_without_the_ability_the_grouping_is_only_shown(person: ConsoleBrowser, customer: Customer) -> None:
    page = person.get("/findings").text
    assert "Tickets of new findings: one for each finding. An owner may change this" in page
    assert "/grouping" not in page
    refused = person.post(f"/projects/{customer.project_id}/grouping", ticket_grouping="rule")
    assert (refused.status_code, "account:manage" in refused.text) == (403, True)
    assert projects.get_project(customer.project_id).ticket_grouping == TicketGrouping.FINDING


@on_sqlite
def test_a_list_runs_as_many_statements_for_many_rows_as_for_one(person: ConsoleBrowser, customer: Customer) -> None:
    def asked() -> int:
        with page_statements() as ran:
            assert person.get("/findings", "limit=200").status_code == 200
        return len(ran)

    scanned(customer.project_id, 1, issue("first"))
    one = asked()
    scanned(customer.project_id, 2, *(issue(f"r{number}") for number in range(150)))
    for _ in range(20):
        make_project(customer)
    # Session, operator's account, projects, findings.
    assert asked() == one == 4
    assert rows("SELECT COUNT(*) FROM findings") == [(151,)]


@on_sqlite
def test_times_are_relative_with_the_exact_ones_on_hover(person: ConsoleBrowser, customer: Customer) -> None:
    scanned(customer.project_id, 1, issue())
    [(finding_id,)] = rows("SELECT id FROM findings")
    for path in ("/findings", f"/findings/{finding_id}"):
        times = re.findall(r"<time [^>]*>", person.get(path).text)
        assert len(times) >= 2, path
        assert all(each.startswith('<time class="ago"') and 'UTC"' in each for each in times), path
