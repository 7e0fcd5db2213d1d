"""The menu: what it counts, how long counts are cached, and that no page fails because of it."""

import json
import re
from pathlib import Path

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.intake.scanner import PostbackForm
from service.app import create_app
from service.console.health_cards import health_line
from service.console.layout import CONSOLE
from service.console.navigation import MENU
from storage.accounts import projects
from storage.db.engine import execute, is_sqlite
from storage.exports import worker_heartbeats
from storage.reporting import menu_counts
from tests.support.database.databases import on_sqlite
from tests.support.database.many_rows import analyze, many_finished, many_targets, many_waiting
from tests.support.database.query_plans import full_scans, statements
from tests.support.factories import (
    Customer,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_settings,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token

#: The result of the checks if everything works; tests replace some of them.
HEALTHY = dict.fromkeys(("database", "disk", "schema", "keys", "redis", "workers"), "ok")


def counts_in(html: str) -> dict[str, str]:
    return {name: text for name, text in re.findall(r'data-count="(\w+)">([^<]*)<', html) if text}


def health_in(html: str) -> tuple[str, str]:
    found = re.search(r'<a class="status (\w+)" data-health href="/console/overview#health">([^<]+)</a>', html)
    assert found is not None
    return found[1], found[2]


def test_the_menu_counts_waiting_tickets_deliveries_and_targets(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    waiting = make_exports(customer, 5)
    make_approved(customer, target.id)
    make_failed(customer, target.id, 2)
    removed = make_target(customer)
    execute("UPDATE targets SET deleted_at = 1 WHERE id = ?", (removed.id,))
    # Snoozed exports and those whose findings are all fixed do not wait; those whose snooze is over do.
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (waiting[0],))
    execute("UPDATE exports SET findings_total = 2, findings_fixed = 2 WHERE id = ?", (waiting[1],))
    execute("UPDATE exports SET snoozed_at = 1, snoozed_until = 2 WHERE id = ?", (waiting[2],))
    execute("UPDATE exports SET findings_total = 2, findings_fixed = 1 WHERE id = ?", (waiting[3],))
    other = make_customer()
    make_exports(other, 7)
    assert menu_counts.count(customer.account_id, utc_now()) == (3, 1, 0, 0, 1)
    projects.add_scan_run(customer.project_id, utc_now(), 42)
    record_postback(PostbackForm().read(postback(42)), customer.project_id, utc_now())
    assert menu_counts.count(customer.account_id, utc_now()).findings == 1
    # Fixed findings are not counted, because their number would only grow.
    execute("UPDATE findings SET fixed_at = 1")
    assert menu_counts.count(customer.account_id, utc_now()).findings == 0


def test_a_count_of_zero_is_not_shown_and_large_counts_are_shown_as_999_plus(
    person: ConsoleBrowser, customer: Customer, tmp_path: Path
) -> None:
    assert counts_in(person.get("/sessions").text) == {}
    many_targets(customer, 0, 1, "https://tracker.example.com/hook")
    many_waiting(customer, 0, 1_001, (0, 1), utc_now())
    newcomer = ConsoleBrowser(TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({}))))
    newcomer.sign_in(make_console_token(customer))
    assert counts_in(newcomer.get("/sessions").text) == {"deliveries": "999+", "targets": "1"}
    assert json.loads(newcomer.get("/counts").text)["counts"]["deliveries"] == {"number": 999, "text": "999+"}


@on_sqlite
def test_counts_are_cached_until_their_user_changes_something(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    [export_id] = make_exports(customer, 1)
    person.get("/exports")
    with statements() as ran:
        person.get("/sessions")
    assert not [statement.sql for statement in ran if "approval_rules" in statement.sql]
    assert person.post(f"/exports/{export_id}/dismiss").status_code == 303
    assert counts_in(person.get("/sessions").text) == {"targets": "1"}


@on_sqlite
def test_a_script_gets_the_counts_once_for_each_change(person: ConsoleBrowser, customer: Customer) -> None:
    first = person.get("/counts")
    assert first.headers["content-type"] == "application/json"
    assert json.loads(first.text)["health"] == {"text": "Workers unavailable", "tone": "warn"}
    headers = {"Cookie": f"riskrelay_session={person.cookie}", "User-Agent": person.browser}
    same = person.client.simulate_get("/console/counts", headers={**headers, "If-None-Match": first.headers["etag"]})
    assert (same.status_code, same.text) == (304, "")


@pytest.mark.parametrize(
    ("failed", "line"),
    [
        ({}, ("All systems ok", "good")),
        ({"workers": "unavailable"}, ("Workers unavailable", "warn")),
        ({"disk": "low"}, ("Disk low", "warn")),
        ({"redis": "unavailable", "workers": "unavailable"}, ("Redis unavailable and 1 more", "warn")),
        ({"disk": "full"}, ("Disk full", "bad")),
        ({"database": "unavailable", "schema": "unknown", "keys": "unknown"}, ("Database unavailable", "bad")),
        ({"schema": "not_current", "keys": "unknown"}, ("Schema not current", "bad")),
        ({"keys": "wrong"}, ("Encryption keys wrong", "bad")),
    ],
)
def test_health_is_one_line(failed: dict[str, str], line: tuple[str, str]) -> None:
    assert health_line({**HEALTHY, **failed}) == line


@on_sqlite
def test_every_page_shows_the_health_of_the_installation(customer: Customer, tmp_path: Path) -> None:
    worker_heartbeats.beat("worker:test", utc_now())
    person = ConsoleBrowser(TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({}))))
    person.sign_in(make_console_token(customer))
    for path in ("/overview", "/sessions", "/settings"):
        assert health_in(person.get(path).text) == ("good", "All systems ok"), path


def test_a_schema_of_another_version_leaves_the_menu_without_counts(customer: Customer, tmp_path: Path) -> None:
    make_exports(customer, 1)
    execute("INSERT INTO schema_migrations (id, name, applied) VALUES (9999, '9999_of_tomorrow', '2030-01-01')")
    try:
        person = ConsoleBrowser(TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({}))))
        person.sign_in(make_console_token(customer))
        page = person.get("/sessions")
    finally:
        execute("DELETE FROM schema_migrations WHERE id = 9999")
    assert (page.status_code, counts_in(page.text)) == (200, {})
    assert health_in(page.text) == ("bad", "Schema not current")


def test_every_menu_entry_opens_a_page(person: ConsoleBrowser) -> None:
    for item in MENU:
        answer = person.get(item.path)
        while answer.status_code == 303:
            answer = person.get(*answer.headers["location"].removeprefix(CONSOLE).split("?"))
        assert answer.status_code == 200, item


@on_sqlite
def test_only_the_operator_sees_the_installation_menu(person: ConsoleBrowser, customer: Customer) -> None:
    """A triager of the operator's account sees none of its pages."""
    assert '<p class="group">Installation</p>' in person.get("/inbox").text
    execute("UPDATE users SET role = 'triager' WHERE id = ?", (customer.user_id,))
    menu = person.get("/inbox").text
    assert ('href="/console/overview"' in menu, "Installation" in menu) == (True, False)


def test_the_root_of_the_console_redirects_to_the_inbox(person: ConsoleBrowser) -> None:
    for path in ("", "/"):
        answer = person.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/inbox")


def test_the_counts_read_a_bounded_part_of_many_rows(customer: Customer) -> None:
    now = utc_now()
    many_targets(customer, 0, 1000, "https://tracker.example.com/hook")
    many_finished(customer, 0, 20_000, (0, 1000), now)
    many_waiting(customer, 20_000, 5_000, (0, 1000), now)
    analyze()
    if not is_sqlite():
        # With one account, the planner considers a table scan as cheap.
        execute("SET enable_seqscan = off")
    with statements() as ran:
        assert menu_counts.count(customer.account_id, now).deliveries == menu_counts.MAX_IN_MENU + 1
    assert len(ran) == 1
    assert {statement.sql: steps for statement in ran if (steps := full_scans(statement))} == {}
