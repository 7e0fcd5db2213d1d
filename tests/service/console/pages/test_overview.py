"""The overview: what works, what is late, what failed, and how to fix it."""

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.intake.scanner import PostbackForm
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, TargetStatus
from schemas.triage.approval_rules import RuleAction, RuleActionType
from service.app import create_app
from service.console.pages import overview
from storage.db.disk_space import LAST_FULL_WRITE
from storage.db.engine import execute, is_sqlite, transaction
from storage.exports import worker_heartbeats
from storage.secrets import key_check
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.database.many_rows import analyze, many_finished, many_targets, many_waiting
from tests.support.database.query_plans import full_scans
from tests.support.factories import (
    Customer,
    issue,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_project,
    make_rule,
    make_settings,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

WORKER = "worker:test"
#: The limit, however many rows there are: session, operator's account, checks, page.
STATEMENTS = 20


@pytest.fixture(autouse=True)
def trends_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_CACHED_FOR", 0)


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def counted(target_id: str, at: datetime, delivered: int, failed: int, worker: str = WORKER) -> None:
    """Store what a worker counted in an hour."""
    with transaction():
        execute(
            "INSERT INTO delivery_hours (target_id, hour_at, worker, delivered, failed) VALUES (?, ?, ?, ?, ?)",
            (target_id, to_ms(hour_of(at)), worker, delivered, failed),
        )


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def health(html: str) -> dict[str, str]:
    found = re.search(r'<ul class="health">(.*?)</ul>', html, re.DOTALL)
    assert found is not None
    return dict(re.findall(r'<strong>([^<]+)</strong> <span class="status \w+">([^<]+)</span>', found[1]))


def days_in(html: str, heading: str = "Attempts per day (UTC)") -> list[tuple[int, ...]]:
    """Return the rows of the table beside a chart, the oldest day first."""
    part = html.partition(f">{heading}</h2>")[2].partition("</section>")[0]
    rows = re.findall(r"<tr><td>\d{4}-\d\d-\d\d</td>(.*?)</tr>", part)
    numbers = [re.findall(r'<td class="number">([^<]+)</td>', row) for row in rows]
    return [tuple(int(number.replace("\N{NARROW NO-BREAK SPACE}", "")) for number in row) for row in reversed(numbers)]


def attention(html: str) -> list[str]:
    """Return the rows of "Needs attention" as text."""
    part = html.partition(">Needs attention</h2>")[2].partition("</section>")[0]
    return [text_of(row) for row in re.findall(r"<tr>\n(.*?)</tr>", part, re.DOTALL)]


@on_sqlite
def test_an_empty_account_shows_the_first_steps(person: ConsoleBrowser) -> None:
    page = person.get("/overview")
    assert page.status_code == 200
    assert "Get started" in page.text
    assert '<svg class="chart"' not in page.text


@on_sqlite
def test_each_health_card_has_a_word_and_a_fix(person: ConsoleBrowser) -> None:
    html = person.get("/overview").text
    assert health(html) == {
        "Database": "ok",
        "Disk": "ok",
        "Schema": "ok",
        "Encryption keys": "ok",
        "Redis": "ok",
        "Workers": "unavailable",
    }
    assert "<code>bin/riskrelay work</code>" in html
    worker_heartbeats.beat(WORKER, utc_now())
    assert health(person.get("/overview").text)["Workers"] == "ok"


@on_sqlite
def test_a_full_disk_is_shown_as_a_status_and_not_as_an_error(person: ConsoleBrowser) -> None:
    LAST_FULL_WRITE.record()
    page = person.get("/overview")
    LAST_FULL_WRITE.clear()
    assert (page.status_code, health(page.text)["Disk"]) == (200, "full")
    assert "until space is free" in page.text


@on_sqlite
def test_an_unavailable_redis_is_shown_as_a_status_and_not_as_an_error(
    person: ConsoleBrowser, wake_ups: FakeWakeUpQueue, customer: Customer
) -> None:
    make_exports(customer, 1)
    wake_ups.is_connected = False
    page = person.get("/overview")
    assert page.status_code == 200
    assert health(page.text)["Redis"] == "unavailable"
    assert "waits for a decision" in page.text


@on_sqlite
def test_different_keys_are_shown_as_a_status_and_not_as_an_error(person: ConsoleBrowser, customer: Customer) -> None:
    make_exports(customer, 1)
    key_check.check_keys(Vault([b"B" * 32]), utc_now())
    page = person.get("/overview")
    assert page.status_code == 200
    assert health(page.text)["Encryption keys"] == "wrong"
    assert "waits for a decision" in page.text


def test_the_overview_shows_health_without_counts_if_the_schema_is_not_current(
    person: ConsoleBrowser, customer: Customer
) -> None:
    make_exports(customer, 1)
    execute("INSERT INTO schema_migrations (id, name, applied) VALUES (9999, '9999_of_tomorrow', '2030-01-01')")
    try:
        page = person.get("/overview")
    finally:
        execute("DELETE FROM schema_migrations WHERE id = 9999")
    assert page.status_code == 200
    assert health(page.text)["Schema"] == "not current"
    assert "for a decision" not in page.text


@on_sqlite
def test_other_users_are_referred_to_the_operator(person: ConsoleBrowser) -> None:
    other = make_customer()
    stranger = ConsoleBrowser(person.client)
    stranger.sign_in(make_console_token(other))
    html = stranger.get("/overview").text
    assert "Contact the operator of this installation." in html
    assert "bin/riskrelay work" not in html


def test_deliveries_of_all_workers_and_targets_add_up_by_the_day(person: ConsoleBrowser, customer: Customer) -> None:
    now = utc_now()
    first, second = make_target(customer).id, make_target(customer).id
    counted(first, now, 3, 1)
    counted(first, now, 4, 0, "worker:other")
    counted(second, now, 5, 2)
    counted(second, now - timedelta(days=29), 7, 0)
    counted(second, now - timedelta(days=30), 99, 99)
    # A large number is displayed like any other.
    counted(first, now - timedelta(days=5), 1_000_000, 1)
    html = person.get("/overview").text
    shown = days_in(html)
    assert len(shown) == 30
    assert (shown[0], shown[-6], shown[-1]) == ((7, 0), (1_000_000, 1), (12, 3))
    assert html.count('<rect class="bad"') == 1 + 2


def test_trends_are_cached_for_forty_times_as_long_as_their_query_took(
    person: ConsoleBrowser, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, clock, read_trends = make_target(customer).id, [1000.0], overview._read_trends
    monkeypatch.setattr(overview, "_CACHED_FOR", 40)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def slow(account_id: int, now: datetime) -> overview.Trends:
        clock[0] += 0.5
        return read_trends(account_id, now)

    monkeypatch.setattr(overview, "_read_trends", slow)
    for worker, passed_s, shown in (("a", 19.9, 1), ("b", 0.2, 1), ("c", 0.0, 3)):
        counted(target, utc_now(), 1, 0, worker)
        assert days_in(person.get("/overview").text)[-1] == (shown, 0)
        clock[0] += passed_s


def test_future_delivery_hours_are_not_shown_after_a_clock_was_set_back(person: ConsoleBrowser, customer: Customer) -> None:
    now, target = utc_now(), make_target(customer).id
    counted(target, now + timedelta(hours=3), 50, 5)
    worker_heartbeats.beat(WORKER, now + timedelta(minutes=5))
    page = person.get("/overview")
    assert page.status_code == 200
    assert [day for day in days_in(page.text) if day != (0, 0)] == []
    assert health(page.text)["Workers"] == "unavailable"


def scan(customer: Customer, run: int, days_ago: int, *severities: str) -> None:
    """Record a scan run that reports one finding of each severity."""
    found: list[Mapping[str, Any]] = [issue(f"code-{severity}", severity=severity) for severity in severities]
    record_postback(PostbackForm().read(postback(run, found)), customer.project_id, utc_now() - timedelta(days=days_ago))


def test_findings_that_are_not_fixed_are_counted_by_day_and_severity(person: ConsoleBrowser, customer: Customer) -> None:
    scan(customer, 1, 40, "critical", "high", "medium", "low", "info")
    html = person.get("/overview").text
    assert "<strong>5</strong> findings not fixed" in html
    assert "in 30 days" not in html
    assert "median time to fix" not in html
    # Not reported twice, these findings are fixed.
    for run in (2, 3):
        scan(customer, run, 0, "high", "low", "info")
    html = person.get("/overview").text
    assert days_in(html, "Findings not fixed, by severity") == [(3, 1, 1)] * 29 + [(2, 1, 0)]
    assert '<strong>3</strong> findings not fixed</a><p><span class="status good">2 fewer in 30 days</span>' in html
    assert "<strong>40 d</strong> median time to fix</a></li>" in html


def test_the_time_to_fix_is_compared_with_the_days_before(person: ConsoleBrowser, customer: Customer) -> None:
    scan(customer, 1, 50, "critical", "high", "low")
    for run, days_ago in ((2, 42), (3, 40)):
        scan(customer, run, days_ago, "critical", "high")  # low is fixed after 10 days
    for run, days_ago in ((4, 20), (5, 16)):
        scan(customer, run, days_ago, "critical")  # high is fixed after 34 days
    page = text_of(person.get("/overview").text)
    assert "34 d median time to fix 24 d slower than in the 30 days before" in page
    assert "1 finding not fixed 1 fewer in 30 days" in page


def test_the_report_of_each_project_is_offered(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    scan(customer, 1, 0, "high")
    other = make_customer()
    html = person.get("/overview").text
    assert re.findall(r"/projects/(\d+)/report/html", html) == [str(customer.project_id)] != [str(other.project_id)]
    report = person.get(f"/projects/{customer.project_id}/report/html")
    assert (report.status_code, "code-high" in report.text) == (200, True)


def test_another_accounts_rows_are_not_shown(person: ConsoleBrowser, customer: Customer) -> None:
    make_exports(customer, 1)
    other = make_customer()
    target = make_target(other, name="Theirs")
    counted(target.id, utc_now(), 77_777, 7)
    make_failed(other, target.id)
    make_approved(other, target.id)
    targets.change_status(target.id, "pause", utc_now(), "operator")
    page = text_of(person.get("/overview").text)
    assert "Theirs" not in page
    # Numbers have a narrow space as the separator of thousands.
    assert "77\N{NARROW NO-BREAK SPACE}777" not in page
    assert "0 delivered" in page
    # No worker runs in this test, and everything else is in order.
    assert [row.partition(" ")[0] for row in attention(person.get("/overview").text)] == ["Workers"]


def test_numbers_link_to_their_lists(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    make_exports(customer, 2)
    make_approved(customer, target.id)
    make_failed(customer, target.id, 3)
    make_failed(customer, target.id, 1, status="blocked")
    html = person.get("/overview").text
    assert re.findall(r'<li><a href="/console([^"]+)"><strong>(\d+)</strong> ([^<]+)</a>', html) == [
        ("/inbox", "2", "wait for a decision"),
        ("/findings/trends?days=30", "0", "findings not fixed"),
        ("/deliveries", "1", "delivery on its way"),
        ("/deliveries?view=failed", "4", "deliveries failed"),
    ]
    assert '<span class="status bad">1 blocked</span>' in html


def test_waiting_exports_are_counted_by_severity_the_worst_first(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    ids = make_exports(customer, 4)
    for export_id, rank in zip(ids, (4, 1, 4, 2), strict=True):
        execute("UPDATE exports SET severity_rank = ? WHERE id = ?", (rank, export_id))
    # A snoozed export does not wait for a decision.
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (ids[3],))
    html = person.get("/overview").text
    assert re.findall(r'<span class="sev (\w+)">([^<]+)</span>', html) == [("critical", "2 critical"), ("low", "1 low")]
    assert "<strong>3</strong> wait for a decision" in html


def test_failures_say_why_the_newest_one_failed(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    make_failed(customer, target.id, 6)
    make_failed(customer, target.id, status="blocked")
    rows = attention(person.get("/overview").text)
    assert [row.partition(" The newest")[0] for row in rows if "The newest" in row] == [
        "6 deliveries failed",
        "1 delivery blocked",
    ]
    assert all("receiver gone" in row for row in rows if "The newest" in row)


def test_a_failing_target_needs_attention(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer, name="Flaky")
    execute("UPDATE targets SET connected_status = 'failing', failures_in_row = 6 WHERE id = ?", (target.id,))
    [row] = [row for row in attention(person.get("/overview").text) if row.startswith("Flaky")]
    assert "failing Its last deliveries failed." in row
    assert "to see the receiver" in row
    # A removed target is not shown.
    execute("UPDATE targets SET deleted_at = 1 WHERE id = ?", (target.id,))
    assert "Flaky" not in person.get("/overview").text


def test_a_rule_that_stopped_says_why(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("shop",)), name="Criticals")
    execute("UPDATE approval_rules SET enabled = ?, stopped_reason = 'target_removed'", (False,))
    [row] = [row for row in attention(person.get("/overview").text) if row.startswith("Criticals")]
    assert row.startswith("Criticals Approval rule stopped Its target was removed. Edit it to choose another target")


def test_the_age_of_the_oldest_due_export_is_shown(person: ConsoleBrowser, customer: Customer) -> None:
    paused, active = make_target(customer).id, make_target(customer).id
    make_approved(customer, paused, utc_now() - timedelta(days=9))
    targets.change_status(paused, "pause", utc_now(), "operator")
    make_approved(customer, active, utc_now() - timedelta(hours=2, minutes=5))
    other = make_customer()
    make_approved(other, make_target(other).id, utc_now() - timedelta(days=9))
    page = text_of(person.get("/overview").text)
    assert "oldest due 2 h 5 min ago" in page
    assert "Check that a worker is running" in page


#: Columns: changes of a target; the explanation; a part of the fix.
PROBLEMS = {
    "blocked": (
        {"status": "blocked", "status_reason": "address_private"},
        "its IP address is not allowed",
        "Correct the URL",
    ),
    "token": ({"status": "blocked", "status_reason": "tracker_token_rejected"}, "rejects the token", "Create a new token"),
    "no secret": ({"status": "inactive", "status_reason": "no_secret"}, "has no signing secret", "Set it on"),
    "paused by hand": ({"status": "paused", "status_reason": "operator"}, "stopped the target", "Resume the target when"),
    "restored": ({"status": "paused", "status_reason": "restored"}, "restored from a backup", "Check which tickets"),
    "disabled": ({"status": "disabled", "status_reason": "receiver_gone"}, "410 Gone", "resume the target"),
    "breaker": ({"held_reason": BREAKER_OPEN}, "Too many attempts in a row failed.", "sends single test attempts"),
    "receiver asked": ({"held_reason": RATE_LIMITED}, "429 Too Many Requests.", "continues automatically"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_a_target_that_receives_no_deliveries_is_shown_with_the_reason_and_the_fix(
    case: str, person: ConsoleBrowser, customer: Customer
) -> None:
    changes, reason, to_do = PROBLEMS[case]
    target = make_target(customer, name="In trouble")
    make_target(customer, name="Well")
    held = {"held_until": to_ms(utc_now() + timedelta(hours=1))} if "held_reason" in changes else {}
    for column, value in {**changes, **held}.items():
        execute(f"UPDATE targets SET {column} = ? WHERE id = ?", (value, target.id))  # noqa: S608 - our own names
    page = person.get("/overview").text.partition(">Needs attention</h2>")[2]
    assert f"/console/targets/{target.id}" in page
    assert reason in page
    assert to_do in page
    assert "Well" not in page


def test_an_expired_hold_needs_no_attention(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET held_until = ?, held_reason = 'rate_limited'", (to_ms(utc_now() - timedelta(seconds=1)),))
    page = person.get("/overview").text
    assert target.id not in page


def test_targets_that_need_action_come_before_retrying_ones_and_those_turned_off(
    person: ConsoleBrowser, customer: Customer
) -> None:
    def shown() -> list[str]:
        page = person.get("/overview").text.partition(">Needs attention</h2>")[2]
        return re.findall(r"/console/targets/(tgt_\w+)", page)

    statuses = ("paused", "disabled", "inactive", "active", "blocked")
    ids = {
        status: many_targets(customer, number, 1, "https://tracker.example.com/hook", status)[0]
        for number, status in enumerate(statuses)
    }
    until = to_ms(utc_now() + timedelta(hours=1))
    execute("UPDATE targets SET held_until = ?, held_reason = 'rate_limited' WHERE status = 'active'", (until,))
    first = [ids["blocked"], ids["inactive"], ids["active"]]
    assert shown() == [*first, ids["paused"], ids["disabled"]]
    newer = many_targets(customer, 9, 1, "https://tracker.example.com/hook", "paused")
    assert shown() == [*first, *newer, ids["paused"]]


def test_the_overview_shows_five_targets_and_links_the_list_of_all(person: ConsoleBrowser, customer: Customer) -> None:
    many_targets(customer, 0, 6, "https://tracker.example.com/hook", TargetStatus.PAUSED)
    [blocked] = many_targets(customer, 6, 1, "https://tracker.example.com/hook", TargetStatus.BLOCKED)
    page = person.get("/overview").text.partition(">Needs attention</h2>")[2]
    shown = re.findall(r"/console/targets/(tgt_\w+)", page)
    assert len(shown) == 5
    assert shown[0] == blocked
    assert "All targets" in page


def test_the_overview_is_shown_even_if_the_database_accepts_no_writes(
    person: ConsoleBrowser, customer: Customer, database: str
) -> None:
    make_exports(customer, 1)
    if is_sqlite():
        execute("PRAGMA query_only = 1")
    else:
        execute("SET default_transaction_read_only = on")
    try:
        assert person.get("/overview").status_code == 200
    finally:
        execute("PRAGMA query_only = 0" if is_sqlite() else "SET default_transaction_read_only = off")


def test_the_page_takes_as_many_statements_for_a_thousand_targets_as_for_one(customer: Customer, tmp_path: Path) -> None:
    def newcomer() -> ConsoleBrowser:
        # A new application has an empty cache.
        client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({})))
        person = ConsoleBrowser(client)
        person.sign_in(make_console_token(customer))
        return person

    person = newcomer()
    make_target(customer)
    with page_statements() as of_one:
        assert person.get("/overview").status_code == 200
    now = datetime.now(UTC)
    many_targets(customer, 0, 1000, "https://tracker.example.com/hook")
    many_finished(customer, 0, 20_000, (0, 1000), now)
    many_waiting(customer, 20_000, 5_000, (0, 1000), now - timedelta(hours=1))
    analyze()
    person = newcomer()
    with page_statements() as ran:
        page = person.get("/overview")
    assert page.status_code == 200
    assert len(ran) == len(of_one) <= STATEMENTS
    assert {statement.sql: steps for statement in ran if (steps := full_scans(statement))} == {}


def test_a_number_beyond_the_counting_limit_has_a_plus(person: ConsoleBrowser, customer: Customer) -> None:
    many_targets(customer, 0, 10, "https://tracker.example.com/hook")
    many_waiting(customer, 0, 1_001, (0, 10), utc_now() + timedelta(hours=1))
    page = person.get("/overview").text
    assert "<strong>1\N{NARROW NO-BREAK SPACE}000+</strong> deliveries on their way" in page


@on_sqlite
@pytest.mark.parametrize("case", ["breaker", "receiver asked"])
def test_a_hold_is_shown_with_the_time_of_the_next_attempt(case: str, person: ConsoleBrowser, customer: Customer) -> None:
    changes, reason, _ = PROBLEMS[case]
    make_target(customer)
    held_until = to_ms(utc_now() + timedelta(minutes=14, seconds=30))
    execute("UPDATE targets SET held_reason = ?, held_until = ?", (changes["held_reason"], held_until))
    page = person.get("/overview").text.partition(">Needs attention</h2>")[2]
    assert re.search(rf"{reason} Next attempt <time [^>]+>in 14 min</time>", page)


@on_sqlite
def test_the_first_steps_lead_to_their_forms(person: ConsoleBrowser) -> None:
    steps = person.get("/overview").text.partition(">Get started</h2>")[2].partition("</section>")[0]
    for path in ("/targets/add", "/report-uploads", "/inbox"):
        assert f'href="/console{path}"' in steps, path


@on_sqlite
def test_without_problems_nothing_needs_attention(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    worker_heartbeats.beat(WORKER, utc_now())
    assert "Nothing needs attention: all targets accept deliveries" in person.get("/overview").text


@on_sqlite
def test_reports_of_up_to_25_projects_are_offered_sorted_by_name(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    for number in range(24, 0, -1):
        execute("UPDATE projects SET name = ? WHERE id = ?", (f"Shop {number:02}", make_project(customer)))
    execute("UPDATE projects SET name = 'a shop' WHERE id = ?", (customer.project_id,))
    names = re.findall(r'/report/html" download><bdi>([^<]*)<', person.get("/overview").text)
    assert names == ["a shop", *(f"Shop {number:02}" for number in range(1, 25))]
