"""Trends of findings: open findings by severity, changes by day, and the time to fix."""

import re
from datetime import timedelta
from typing import Any

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.intake.scanner import PostbackForm
from storage.reporting import finding_trends
from storage.reporting.finding_trends import Change
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import indexes_read, statements
from tests.support.factories import Customer, issue, make_customer, make_project, postback, record_postback
from tests.support.http.console_user import ConsoleBrowser, page_statements

TODAY = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)


def scan(project_id: int, run: int, days_ago: int, *issues: dict[str, Any]) -> None:
    record_postback(PostbackForm().read(postback(run, list(issues))), project_id, TODAY - timedelta(days=days_ago))


@pytest.fixture
def scanned(customer: Customer) -> Customer:
    """`a` is fixed after 21 days; `b` is fixed after 4 days, reopened and fixed again; `c` stays open."""
    a, b, c = issue("a", severity="critical"), issue("b", severity="low"), issue("c", severity="high")
    project = customer.project_id
    scan(project, 1, 40, a, b)
    scan(project, 2, 37, a)
    scan(project, 3, 36, a)  # b is fixed
    scan(project, 4, 20, b)
    scan(project, 5, 19, b, c)
    scan(project, 6, 10, c)
    scan(project, 7, 5, c)  # b is fixed
    scan(make_customer().project_id, 8, 3, a)
    return customer


def read(customer: Customer, days: int, project_id: int | None = None) -> finding_trends.FindingTrend:
    return finding_trends.read_trend(customer.account_id, project_id, TODAY - timedelta(days=days - 1), days)


def test_days_have_their_changes_and_the_remaining_findings(scanned: Customer) -> None:
    trend = read(scanned, 90)
    changes = {(TODAY - day.at).days: dict(day.changes) for day in trend.days if day.changes}
    assert changes == {
        40: {Change.NEW: 2},
        36: {Change.FIXED: 1},
        20: {Change.REOPENED: 1},
        19: {Change.NEW: 1, Change.FIXED: 1},
        5: {Change.FIXED: 1},
    }
    left = {(TODAY - day.at).days: {name: number for name, number in day.unfixed.items() if number} for day in trend.days}
    assert (left[41], left[40], left[36]) == ({}, {"critical": 1, "low": 1}, {"critical": 1})
    assert (left[20], left[19], left[5]) == ({"critical": 1, "low": 1}, {"high": 1, "low": 1}, {"high": 1})
    assert left[0] == {"high": 1}
    assert trend.median_fix == timedelta(days=(21 + 35) / 2)


def test_a_short_trend_begins_with_the_existing_findings(scanned: Customer) -> None:
    trend = read(scanned, 7)
    assert [day.at for day in trend.days] == [TODAY - timedelta(days=6 - number) for number in range(7)]
    assert [sum(day.unfixed.values()) for day in trend.days] == [2, 1, 1, 1, 1, 1, 1]
    assert trend.median_fix == timedelta(days=35)
    assert read(scanned, 7, make_project(scanned)) == finding_trends.FindingTrend(
        tuple(finding_trends.FindingDay(day.at, {}, {}) for day in trend.days)
    )
    assert read(scanned, 7, scanned.project_id) == trend


def test_there_is_no_median_if_every_fixed_finding_was_reopened(customer: Customer) -> None:
    for run, reported in enumerate([[issue("a")], [], [], [issue("a")]], 1):
        scan(customer.project_id, run, 5, *reported)
    trend = read(customer, 7)
    assert trend.median_fix is None
    assert [dict(day.changes) for day in trend.days if day.changes] == [{Change.NEW: 1, Change.FIXED: 1, Change.REOPENED: 1}]


def test_a_median_ends_before_a_day(scanned: Customer) -> None:
    def between(first: int, until: int) -> timedelta | None:
        return finding_trends.median_fix(scanned.account_id, None, *(TODAY - timedelta(days=day) for day in (first, until)))

    assert (between(90, 5), between(90, 4), between(18, 5)) == (timedelta(days=21), timedelta(days=28), None)


@on_sqlite
def test_trends_are_read_from_indexes_only(scanned: Customer) -> None:
    with statements() as asked:
        read(scanned, 90, scanned.project_id)
    used = [indexes_read(each) for each in asked]
    assert [found & {"findings_new", "findings_fixes", "findings_reopened"} for found in used] == [
        {"findings_new"},
        {"findings_fixes"},
        {"findings_reopened"},
        {"findings_fixes"},
        {"findings_fixes"},
    ]
    assert "finding_sightings_changes" in used[2]


@on_sqlite
def test_the_page_has_the_numbers_and_a_table_of_each_chart(person: ConsoleBrowser, scanned: Customer) -> None:
    with page_statements() as asked:
        page = person.get("/findings/trends", f"days=30&project_id={scanned.project_id}").text
    # Session, operator's account, projects, and five for the trend.
    assert len(asked) == 8
    assert "<strong>1</strong> not fixed" in page
    numbers = re.findall(r"<strong>([^<]*)</strong> (fixed|new|reopened|median)", page)
    assert numbers == [("2", "fixed"), ("1", "new"), ("1", "reopened"), ("28 d", "median")]
    day = f"{TODAY - timedelta(days=19):%Y-%m-%d}"
    cells = '<td class="number">1</td><td class="number">1</td><td class="number">0</td>'
    assert page.count(f"<tr><td>{day}</td>{cells}</tr>") == 2
    assert page.count('<svg class="chart"') == 2
    assert 'href="/console/findings/trends?project_id=' in person.get("/findings").text


@on_sqlite
def test_other_days_and_projects_of_others_are_refused(person: ConsoleBrowser, scanned: Customer) -> None:
    assert person.get("/findings/trends", "days=8").status_code == 422
    assert person.get("/findings/trends", "project_id=x").status_code == 422
    assert person.get("/findings/trends", f"project_id={make_customer().project_id}").status_code == 404
    assert to_ms(TODAY) % 86_400_000 == 0


@on_sqlite
def test_without_a_fix_no_median_time_to_fix_is_shown(person: ConsoleBrowser) -> None:
    assert "median time to fix" not in person.get("/findings/trends").text
