"""The page of the queue: waiting exports, workers, and what keeps exports waiting."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from falcon.testing import TestClient

from runtime import wake_up_queue
from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.timestamps import to_ms
from schemas.targets.target import TargetStatus
from service.app import create_app
from storage.db.engine import execute
from storage.exports import worker_heartbeats
from storage.targets import targets
from tests.support.database.many_rows import analyze, many_finished, many_targets, many_waiting
from tests.support.database.query_plans import full_scans
from tests.support.factories import Customer, claim_due, make_approved, make_customer, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements
from tests.support.servers.redis_and_postgres import RedisServer

WORKER = "worker:test"
URL = "https://tracker.example.com/hook"
STATEMENTS = 20


def facts(html: str) -> dict[str, str]:
    """Return the facts of the page as text, by name."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]+>", " ", value).split()) for name, value in found}


def signed_in(customer: Customer, tmp_path: Path, wake_ups: WakeUpQueue) -> ConsoleBrowser:
    person = ConsoleBrowser(TestClient(create_app(make_settings(tmp_path), wake_ups, FakeResolver({}))))
    assert person.sign_in(make_console_token(customer)).status_code == 303
    return person


def test_an_idle_installation_has_an_empty_queue(person: ConsoleBrowser) -> None:
    page = person.get("/queue")
    assert page.status_code == 200
    shown = facts(page.text)
    assert shown["Due now"] == "0"
    assert shown["Oldest overdue export"] == ""
    assert shown["Last sweep"] == "None in the last 10 minutes"
    assert shown["Compliance requests"] == "0 pending , none overdue"
    assert shown["Redis"] == "ok"
    assert "No worker is running" in page.text
    assert "All targets accept deliveries." in page.text


def test_workers_are_listed_by_name_with_their_state(person: ConsoleBrowser) -> None:
    now = utc_now()
    worker_heartbeats.beat("worker:silent", now - timedelta(minutes=2))
    worker_heartbeats.beat("worker:alive", now)
    html = person.get("/queue").text
    assert re.findall(r'<code>(worker:\w+)</code></td><td><span class="status \w+">(\w+)<', html) == [
        ("worker:alive", "alive"),
        ("worker:silent", "silent"),
    ]
    assert "No worker is running" not in html
    assert facts(html)["Last sweep"].endswith(" s ago")


def test_a_worker_with_a_heartbeat_in_the_future_is_shown_as_silent(person: ConsoleBrowser) -> None:
    worker_heartbeats.beat(WORKER, utc_now() + timedelta(hours=1))
    html = person.get("/queue").text
    assert ">silent<" in html
    assert facts(html)["Last sweep"] == "0 s ago"


def test_due_and_held_back_exports_are_counted_separately(person: ConsoleBrowser, customer: Customer) -> None:
    now = utc_now()
    active, paused, held = (make_target(customer, name=name).id for name in ("active", "paused", "held"))
    for _ in range(3):
        make_approved(customer, active, now - timedelta(minutes=10))
    claim_due(1, now, 60, WORKER)
    make_approved(customer, active, now + timedelta(hours=1))
    make_approved(customer, paused, now - timedelta(days=1))
    make_approved(customer, held, now)
    targets.change_status(paused, "pause", now, "operator")
    execute(
        "UPDATE targets SET held_until = ?, held_reason = 'breaker_open' WHERE id = ?",
        (to_ms(now + timedelta(hours=1)), held),
    )
    html = person.get("/queue").text
    shown = facts(html)
    assert shown["Due now"] == "2"
    assert shown["Held back"].startswith("2 due")
    assert shown["In delivery"] == "1"
    assert shown["Oldest overdue export"].startswith("due 10 min")
    assert shown["Paused, by hand"] == "1"
    assert shown["Paused, breaker open"] == "1"


def test_targets_that_are_turned_off_are_counted_by_status(person: ConsoleBrowser, customer: Customer) -> None:
    many_targets(customer, 0, 2, URL, TargetStatus.BLOCKED)
    many_targets(make_customer(), 2, 3, URL, TargetStatus.DISABLED)
    shown = facts(person.get("/queue").text)
    assert (shown["Blocked"], shown["Disabled"]) == ("2", "3")


@pytest.mark.parametrize("state", ["overdue", "waiting"])
def test_compliance_requests_wait_or_are_overdue(state: str, person: ConsoleBrowser) -> None:
    due_at = to_ms(utc_now() + timedelta(days=-1 if state == "overdue" else 1))
    execute(
        "INSERT INTO compliance_requests (id, topic, shop_domain, body_sha256, status, counts, attempts, due_at, "
        "next_run_at, created_at) VALUES ('cpl_1', 'shop/redact', 'shop.example', 'x', 'received', '{}', 0, ?, 0, 0)",
        (due_at,),
    )
    assert facts(person.get("/queue").text)["Compliance requests"] == (
        "1 pending , 1 overdue" if state == "overdue" else "1 pending , none overdue"
    )


def test_an_unavailable_redis_affects_only_one_section(customer: Customer, tmp_path: Path, redis: RedisServer) -> None:
    with wake_up_queue.connect(redis.url) as client:
        person = signed_in(customer, tmp_path, WakeUpQueue(client))
        assert facts(person.get("/queue").text)["Redis"] == "ok"
        redis.stop()
        page = person.get("/queue")
        overview = person.get("/overview")
    assert page.status_code == overview.status_code == 200
    assert 'data-state="error"' in page.text
    assert "Redis does not respond" in page.text
    assert facts(page.text)["Due now"] == "0"
    assert "<strong>Redis</strong>" in overview.text


def test_only_the_operator_sees_the_queue(person: ConsoleBrowser) -> None:
    stranger = ConsoleBrowser(person.client)
    stranger.sign_in(make_console_token(make_customer()))
    assert stranger.get("/queue").status_code == 404


def test_the_page_takes_few_statements_however_many_exports_wait(customer: Customer, tmp_path: Path) -> None:
    person = signed_in(customer, tmp_path, FakeWakeUpQueue())
    with page_statements() as at_rest:
        assert person.get("/queue").status_code == 200
    now = utc_now()
    many_targets(customer, 0, 1000, URL)
    many_finished(customer, 0, 20_000, (0, 1000), now)
    many_waiting(customer, 20_000, 10_000, (0, 1000), now + timedelta(hours=1))
    many_waiting(customer, 30_000, 10_001, (0, 1000), now - timedelta(hours=1))
    analyze()
    with page_statements() as ran:
        page = person.get("/queue")
    assert facts(page.text)["Due now"] == "10 000+"
    assert len(ran) == len(at_rest) <= STATEMENTS
    assert {step for statement in ran for step in full_scans(statement)} == set()
