"""Findings are recognized across scan runs, and each new one prepares exactly one export, however postbacks race."""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from schemas.base.errors import ValidationFailed
from schemas.base.timestamps import to_ms
from schemas.exports.record import PreparationForm, Sighting
from schemas.exports.state_machine import ExportStatus
from schemas.intake.fingerprint import PostbackResult, by_fingerprint
from schemas.intake.scanner import MAX_ISSUES, PostbackForm, ScanPostback
from schemas.triage.export_filter import ExportQuery
from storage.accounts import projects
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.exports import queries, transitions
from storage.exports.search import export_list
from tests.support.factories import NOW, Customer, issue, make_customer, postback, record_postback


def read(**changes: Any) -> ScanPostback:
    checked: ScanPostback = PostbackForm().read(postback(**changes))
    return checked


def post(customer: Customer, now: datetime = NOW, **changes: Any) -> PostbackResult:
    return record_postback(read(**changes), customer.project_id, now)


def issues(*codes: str) -> list[Mapping[str, Any]]:
    return [issue(code) for code in codes]


def later(hours: int) -> datetime:
    return NOW + timedelta(hours=hours)


def test_each_new_finding_prepares_one_export_that_names_it(customer: Customer) -> None:
    result = post(customer, scan_run_id=7, issues=issues("a", "b"))
    assert (result.scan_run_id, result.new, result.seen, len(result.ticket_exports)) == (7, 2, 0, 2)
    prepared = [queries.get(export_id, customer.account_id) for export_id in result.ticket_exports]
    assert [export.ticket["evidence"]["rule"] for export in prepared] == ["a", "b"]
    assert {export.status for export in prepared} == {ExportStatus.PREPARED}
    stored = rows("SELECT id, code FROM findings ORDER BY code")
    assert [(export.source.type, export.source.id, export.source.scan_run_id) for export in prepared] == [
        ("finding", finding_id, 7) for finding_id, _ in stored
    ]
    recorded = rows("SELECT actor, action FROM audit_entries WHERE subject_id = ?", (prepared[0].id,))
    assert recorded == [("scanner", "prepare")]


def test_a_finding_that_was_seen_before_prepares_nothing(customer: Customer) -> None:
    post(customer, scan_run_id=1, issues=issues("a", "b"))
    result = post(customer, scan_run_id=2, issues=issues("b", "c"))
    assert (result.new, result.seen, len(result.ticket_exports)) == (1, 1, 1)
    assert queries.get(result.ticket_exports[0]).ticket["evidence"]["rule"] == "c"
    assert rows("SELECT COUNT(*) FROM exports") == [(3,)]


def test_the_same_issue_twice_in_one_postback_is_one_finding(customer: Customer) -> None:
    result = post(customer, issues=[issue("a"), issue("A", title="Worded otherwise"), issue("a", location="other")])
    assert (result.new, result.seen, len(result.ticket_exports)) == (2, 0, 2)


def test_a_run_counts_once_however_often_it_posts(customer: Customer) -> None:
    for scan_run_id, hours in [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)]:
        post(customer, later(hours), scan_run_id=scan_run_id, issues=issues("a"))
    [seen] = rows("SELECT times_seen, first_scan_run_id, last_scan_run_id, last_seen_at - first_seen_at FROM findings")
    assert seen == (3, 1, 3, 4 * 3600 * 1000)


#: Columns: runs in the order of their posts; then the finding's count of runs, first run and last run.
RUNS = [
    ([1], (1, 1, 1)),
    ([1, 1, 1], (1, 1, 1)),  # one run that posts several times
    ([1, 2, 2, 3], (3, 1, 3)),
    ([1, 2, 1, 2, 1], (2, 1, 2)),  # two runs in turn
    ([1, 2, 3, 2, 3, 2], (3, 1, 2)),  # two later runs in turn
    ([2, 1], (2, 2, 1)),  # run IDs say nothing about the order of runs
]


@pytest.mark.parametrize(("runs", "seen"), RUNS)
def test_times_seen_counts_runs_not_posts(customer: Customer, runs: list[int], seen: tuple[int, ...]) -> None:
    for hours, scan_run_id in enumerate(runs):
        post(customer, later(hours), scan_run_id=scan_run_id, issues=issues("a"))
    [(*stored, lasted_ms)] = rows(
        "SELECT times_seen, first_scan_run_id, last_scan_run_id, last_seen_at - first_seen_at FROM findings"
    )
    assert (*stored, lasted_ms) == (*seen, (len(runs) - 1) * 3600 * 1000)


def test_an_export_says_when_its_finding_was_first_and_last_seen(customer: Customer) -> None:
    [export_id] = post(customer, scan_run_id=7, issues=issues("a")).ticket_exports
    [(finding_id,)] = rows("SELECT id FROM findings")
    assert queries.get(export_id).finding == Sighting(finding_id, NOW, NOW, 1, 7, 7, 0)
    post(customer, later(1), scan_run_id=8, issues=issues("a"))
    seen_again = Sighting(finding_id, NOW, later(1), 2, 7, 8, 0)
    assert [export.finding for export in export_list.list_page(ExportQuery(customer.account_id))] == [seen_again]
    assert queries.get(export_id).version == 1


def test_each_scan_run_that_saw_a_finding_is_kept_once(customer: Customer) -> None:
    for hours, scan_run_id in enumerate([1, 2, 2, 3]):
        post(customer, later(hours), scan_run_id=scan_run_id, issues=issues("a", "b"))
    sighted = rows("SELECT scan_run_id, COUNT(*), MIN(seen_at) FROM finding_sightings GROUP BY 1 ORDER BY 1")
    assert sighted == [(1, 2, to_ms(NOW)), (2, 2, to_ms(later(1))), (3, 2, to_ms(later(3)))]


def test_a_finding_keeps_its_highest_severity_and_its_first_help_link(customer: Customer) -> None:
    for severity, link in [("low", None), ("high", "https://a.example/"), ("medium", "https://b.example/"), ("low", None)]:
        post(customer, issues=[issue("a", severity=severity, **({"helpUrl": link} if link else {}))])
    assert rows("SELECT severity, help_url FROM findings") == [("high", "https://a.example/")]


@pytest.mark.parametrize(("until", "is_over"), [(None, True), (to_ms(NOW) + 10**9, False)])
def test_a_finding_that_is_seen_again_ends_a_snooze_that_waits_for_it(
    customer: Customer, until: int | None, is_over: bool
) -> None:
    [snoozed, other] = post(customer, scan_run_id=1, issues=issues("a", "b")).ticket_exports
    execute("UPDATE exports SET snoozed_at = 1, snoozed_until = ?", (until,))
    post(customer, scan_run_id=2, issues=issues("a"))
    assert (queries.get(snoozed).snooze is None) == is_over
    assert queries.get(snoozed).version == 1 + is_over
    assert queries.get(other).snooze is not None
    actions = [action for (action,) in rows("SELECT action FROM audit_entries WHERE subject_id = ?", (snoozed,))]
    assert actions == ["prepare", "seen_again"][: 1 + is_over]


def test_an_export_whose_finding_was_deleted_shows_no_finding(customer: Customer) -> None:
    [export_id] = post(customer, issues=issues("a")).ticket_exports
    execute("DELETE FROM finding_sightings")
    execute("DELETE FROM findings")
    assert queries.get(export_id).finding is None
    assert [export.id for export in export_list.list_page(ExportQuery(customer.account_id))] == [export_id]


def test_a_manual_ticket_with_the_id_of_a_finding_as_source_has_no_finding(customer: Customer) -> None:
    post(customer, issues=issues("a"))
    [(finding_id,)] = rows("SELECT id FROM findings")
    preparation = PreparationForm().read({"ticket": {"title": "x"}, "source": {"type": "manual", "id": finding_id}})
    assert transitions.prepare_by_hand(preparation, customer.account_id, NOW, "user:1").finding is None


def test_two_places_with_generated_class_names_stay_two_findings_after_a_build(customer: Customer) -> None:
    def of(*locations: str) -> list[Mapping[str, Any]]:
        return [issue("a", location=location) for location in locations]

    first = post(customer, scan_run_id=1, issues=of(".css-1q2w3e4 > a", ".css-9z8y7x6 > a"))
    second = post(customer, scan_run_id=2, issues=of(".css-0kq8b7z > a", ".css-x1x2x3x > a"))
    assert (first.new, second.new, second.seen) == (2, 0, 2)


def test_another_project_has_findings_of_its_own(customer: Customer) -> None:
    other = make_customer()
    projects.add_scan_run(other.project_id, NOW, 2)
    post(customer, scan_run_id=1, issues=issues("a"))
    result = post(customer, scan_run_id=2, issues=issues("a"))
    assert result.new == 1
    assert queries.get(result.ticket_exports[0]).account_id == other.account_id


@pytest.mark.parametrize(
    ("status", "makes"), [("completed", 1), ("partial", 1), ("running", 0), ("failed", 0), ("cancelled", 0)]
)
def test_only_completed_and_partial_runs_create_findings(customer: Customer, status: str, makes: int) -> None:
    result = post(customer, status=status)
    assert (result.new, len(result.ticket_exports)) == (makes, makes)
    assert rows("SELECT status FROM scan_runs WHERE id = 42") == [(status,)]
    assert rows("SELECT COUNT(*) FROM page_results") == [(1,)]


def test_a_page_posted_again_replaces_its_stored_result(customer: Customer) -> None:
    page = {"url": "https://shop.example/", "statusCode": 500, "responseHeaders": {"Server": "x"}, "pageType": "home"}
    post(customer, page=page)
    post(customer, later(1), page={**page, "statusCode": 200, "responseHeaders": {}}, artifacts={})
    post(customer, page={**page, "url": "https://shop.example/cart"})
    stored = rows("SELECT url, status_code, response_headers, screenshot_path FROM page_results ORDER BY url")
    assert stored == [
        ("https://shop.example/", 200, "{}", None),
        ("https://shop.example/cart", 500, '{"Server":"x"}', "artifacts/42/home.png"),
    ]


def test_a_registered_run_belongs_to_its_project_and_takes_the_status_that_is_posted(customer: Customer) -> None:
    registered = make_customer()
    projects.add_scan_run(registered.project_id, NOW, 42)
    result = post(customer)
    assert queries.get(result.ticket_exports[0]).account_id == registered.account_id
    assert rows("SELECT project_id, status FROM scan_runs") == [(registered.project_id, "completed")]


def test_an_unregistered_run_belongs_to_the_default_project(customer: Customer) -> None:
    post(customer)
    assert rows("SELECT id, project_id FROM scan_runs") == [(42, customer.project_id)]


@pytest.mark.parametrize("default", [None, 999_999])
def test_without_a_default_project_an_unknown_run_is_refused_and_stores_nothing(
    customer: Customer, default: int | None
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        record_postback(read(), default, NOW)
    assert [(problem.path, problem.code) for problem in refused.value.problems] == [("/scanRunId", "unknown_scan_run")]
    assert rows("SELECT COUNT(*) FROM scan_runs") == rows("SELECT COUNT(*) FROM page_results") == [(0,)]


def test_the_largest_allowed_number_of_issues_is_stored(customer: Customer) -> None:
    many = issues(*(f"rule-{number}" for number in range(MAX_ISSUES)))
    assert post(customer, scan_run_id=1, issues=many).new == 500
    result = post(customer, scan_run_id=2, issues=many)
    assert (result.new, result.seen) == (0, 500)
    assert rows("SELECT COUNT(*), MIN(times_seen) FROM findings") == [(500, 2)]


def test_the_longest_page_address_fits_the_indexes(customer: Customer) -> None:
    chance = random.Random(1)
    path = "".join(chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(670))
    assert post(customer, page={"url": f"https://shop.example/{path}"}).new == 1
    assert post(customer, page={"url": f"https://shop.example/{path}"}).seen == 1


def test_large_ids_of_runs_are_kept(customer: Customer) -> None:
    post(customer, scan_run_id=2**63 - 1)
    assert rows("SELECT id FROM scan_runs") == [(2**63 - 1,)]


def test_postbacks_that_race_with_the_same_new_finding_prepare_one_export(customer: Customer) -> None:
    start = threading.Barrier(8)

    def race(number: int) -> PostbackResult:
        with connection():
            start.wait()
            return post(customer, scan_run_id=1 + number % 4, issues=issues("a"))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(race, range(8)))
    assert sorted((result.new, result.seen) for result in results) == [(0, 1)] * 7 + [(1, 0)]
    assert rows("SELECT COUNT(*) FROM exports") == rows("SELECT COUNT(*) FROM findings") == [(1,)]


def sorted_issues() -> list[Mapping[str, Any]]:
    """Return three issues in the order of their fingerprints."""
    three = {each["code"]: each for each in issues("a", "b", "c")}
    found = by_fingerprint(read(issues=[*three.values()]).page, read(issues=[*three.values()]).issues)
    return [three[found[each].code] for each in sorted(found)]


def post_two_at_once(customer: Customer, url: str, lock: str, orders: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """Make two postbacks wait for the same lock, release it, and return how many new findings each of them reports."""

    def one(number: int) -> int:
        with connection():
            return post(customer, scan_run_id=10 + number, issues=orders[number]).new

    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher, ThreadPoolExecutor(2) as pool:
        holder.execute(lock.encode())
        posting = [pool.submit(one, number) for number in range(2)]
        waiting = b"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        deadline = time.monotonic() + 10
        while watcher.execute(waiting).fetchone() != (2,):
            assert time.monotonic() < deadline, "the two do not wait"
            time.sleep(0.005)
        holder.rollback()
        return [each.result(10) for each in posting]


@pytest.fixture
def postgres_customer(postgres_url: str) -> Iterator[Customer]:
    open_database(postgres_url)
    with connection():
        yield make_customer()
    close_database()


def test_a_page_does_not_wait_for_another_page_of_its_run(postgres_url: str, postgres_customer: Customer) -> None:
    post(postgres_customer, issues=issues("a"))

    def one(path: str) -> int:
        with connection():
            return post(postgres_customer, page={"url": f"https://shop.example/{path}"}, issues=issues("b")).new

    with psycopg.connect(postgres_url) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(
            b"INSERT INTO page_results (scan_run_id, url, response_headers, received_at) "
            b"SELECT MAX(id), 'https://shop.example/held', '{}', 1 FROM scan_runs"
        )
        held = pool.submit(one, "held")
        assert pool.submit(one, "free").result(10) == 1
        assert not held.done()
        holder.rollback()
        assert held.result(10) == 1


def test_two_postbacks_with_the_same_new_findings_in_opposite_orders_never_lock_each_other_out(
    postgres_url: str, postgres_customer: Customer
) -> None:
    three = sorted_issues()
    post(postgres_customer, scan_run_id=1, issues=[three[1]])
    [(middle,)] = rows("SELECT fingerprint FROM findings")
    execute("DELETE FROM exports")
    execute("DELETE FROM finding_sightings")
    execute("DELETE FROM findings")
    columns = "project_id, code, title, severity, page_url, location, first_scan_run_id, last_scan_run_id"
    lock = (
        f"INSERT INTO findings (id, fingerprint, first_seen_at, last_seen_at, times_seen, {columns}) "
        f"SELECT 'fnd_1', '{middle}', 1, 1, 1, {postgres_customer.project_id}, 'c', 't', 'low', 'u', '', 1, 1"
    )
    found = post_two_at_once(postgres_customer, postgres_url, lock, [three, three[::-1]])
    assert sorted(found) == [0, 3]
    assert rows("SELECT COUNT(*) FROM exports") == [(3,)]
