"""Postbacks that wait for another transaction on PostgreSQL see what it committed, and lose nothing of their own.

Each test stops one transaction in the middle, lets another one wait for its locks, and lets the first one continue.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.exports.record import Approval, ApprovalForAll
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from storage.compliance import erasure
from storage.db.engine import connection, execute, rows, transact, transaction
from storage.exports import groups_sql, transitions
from storage.exports.events import forming
from storage.intake import findings, findings_sql
from storage.intake.options import IntakeOptions
from storage.triage import splits, targeting
from tests.support.database.databases import on_postgresql
from tests.support.factories import LOOPBACK_POLICY, NOW, Customer, issue, make_customer, make_target, postback
from tests.support.processes.workers import wait_until

pytestmark = on_postgresql

PAGE = "https://shop.example/cart"
EVENTS = '["ticket.updated", "ticket.fixed", "ticket.reopened"]'


@pytest.fixture
def grouped(database: str) -> Customer:
    """A customer whose project groups findings by rule."""
    return make_customer(grouping=TicketGrouping.RULE)


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Return a function that runs work in a thread with its own connection."""
    with ThreadPoolExecutor(4) as threads:

        def connected(work: Callable[[], Any]) -> Any:
            with connection():
                return work()

        yield lambda work: threads.submit(connected, work)


class Stop:
    """A point where a thread stops until it is released."""

    def __init__(self) -> None:
        self._reached, self._may_go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._may_go_on.wait(20)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Wait until the thread has stopped; release it at the end of the block, when others wait for its locks."""
        assert self._reached.wait(20)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let the thread continue."""
        self._may_go_on.set()

    def within(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return `work` in a transaction that stops before its commit."""

        def run() -> Any:
            with transaction():
                done = work()
                self()
                return done

        return run


def until_waiting() -> None:
    """Wait until a transaction waits for a lock of another one."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    wait_until(lambda: rows(waiting))


def post(customer: Customer, run: int, *issues: Any, url: str = PAGE, at: datetime | None = None) -> PostbackResult:
    found = [issue(each) if isinstance(each, str) else each for each in issues]
    body = postback(run, found, page={"url": url}, status="completed")
    prepared = findings.prepare_postback(PostbackForm().read(body), customer.project_id)
    options = IntakeOptions(fixed_after_runs=2)
    return findings.record(prepared, customer.project_id, at or NOW + timedelta(minutes=run), "scanner", options)


def asking_target(customer: Customer) -> str:
    """Return the ID of a target that subscribes to all events."""
    target = make_target(customer, "http://127.0.0.1:9/hook")
    execute("UPDATE targets SET events = ? WHERE id = ?", (EVENTS, target.id))
    return target.id


def approve(customer: Customer, export_id: str, target_id: str, at: datetime = NOW) -> None:
    transitions.approve(export_id, customer.account_id, Approval(target_id, None), at, "user:1", LOOPBACK_POLICY)


def formed(run: int) -> list[tuple[str]]:
    """Form the events of a run; return their types."""
    while forming.form(run, utc_now()):
        continue
    return [(row[0],) for row in rows("SELECT type FROM ticket_events ORDER BY id")]


def counted() -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in rows("SELECT findings_total, findings_fixed FROM exports ORDER BY id")]


def test_a_run_reverts_a_fix_that_another_of_its_pages_commits_meanwhile(
    customer: Customer, beside: Callable[[Callable[[], Any]], Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, asset = "https://shop.example/other", {**issue("csp"), "url": "https://shop.example/app.js"}
    [export_id] = post(customer, 1, asset).ticket_exports
    approve(customer, export_id, make_target(customer).id)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, finished_at = ?", (to_ms(NOW),))
    post(customer, 2)
    post(customer, 3, url="https://shop.example/first")
    before_its_findings, before_its_commit = Stop(), Stop()
    mark_seen = findings_sql.mark_seen

    def stopping(issues: Any, *rest: Any) -> Any:
        if issues:
            before_its_findings()
        return mark_seen(issues, *rest)

    monkeypatch.setattr(findings_sql, "mark_seen", stopping)
    reports = beside(lambda: post(customer, 3, asset, url=other))
    with before_its_findings.reached():
        fixes = beside(before_its_commit.within(lambda: post(customer, 3)))
        with before_its_commit.reached():
            before_its_findings.release()
            until_waiting()
    assert (fixes.result(20).fixed, reports.result(20).reopened, reports.result().ticket_exports) == (1, 0, ())
    assert rows("SELECT fixed_at, times_reopened FROM findings") == [(None, 0)]
    assert rows("SELECT COUNT(*) FROM exports") == [(1,)]


def test_copies_created_for_further_targets_during_a_postback_are_counted(
    customer: Customer, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    targets = tuple(make_target(customer, f"http://127.0.0.1:9/{name}", name).id for name in "ab")
    post(customer, 2)
    stop = Stop()

    def for_all() -> Any:
        wanted = ApprovalForAll(targets, None)
        return targeting.approve_for_all(export_id, customer.account_id, wanted, NOW, "user:1", LOOPBACK_POLICY)

    approving = beside(stop.within(for_all))
    with stop.reached():
        fixing = beside(lambda: post(customer, 3))
        until_waiting()
    assert (len(approving.result(20)), fixing.result(20).fixed) == (2, 1)
    assert counted() == [(1, 1), (1, 1)]
    post(customer, 4, "csp")
    assert counted() == [(1, 0), (1, 0)]


@pytest.mark.parametrize("is_new_place", [False, True], ids=["fixed", "a new place"])
def test_changes_during_the_approval_of_a_ticket_become_an_event(
    grouped: Customer, beside: Callable[[Callable[[], Any]], Future[Any]], is_new_place: bool
) -> None:
    [export_id] = post(grouped, 1, "csp").ticket_exports
    post(grouped, 2)
    target_id, stop = asking_target(grouped), Stop()
    holding = beside(stop.within(lambda: groups_sql.lock_project(grouped.project_id)))
    with stop.reached():
        changes = ("csp",) if is_new_place else ()
        url = "https://shop.example/new" if is_new_place else PAGE
        posting = beside(lambda: post(grouped, 3, *changes, url=url, at=utc_now()))
        until_waiting()
        # Later than the time of the postback, and committed before the postback continues.
        approve(grouped, export_id, target_id, utc_now() + timedelta(seconds=1))
    holding.result(20)
    assert (posting.result(20).new, posting.result().fixed) == ((1, 0) if is_new_place else (0, 1))
    assert formed(3) == [("ticket.updated",) if is_new_place else ("ticket.fixed",)]


def test_a_request_that_postgresql_ends_because_of_a_deadlock_runs_again(
    grouped: Customer, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    """A split locks the export before its findings; a postback locks them in the opposite order."""
    [export_id] = post(grouped, 1, "csp").ticket_exports
    post(grouped, 1, "csp", url="https://shop.example/second")
    post(grouped, 2, url="https://shop.example/second")
    stop, locked = Stop(), threading.Event()
    attempts: list[int] = []

    def splitting() -> Any:
        attempts.append(1)
        transitions.lock(export_id, grouped.account_id)
        if not locked.is_set():
            locked.set()
            stop()
        return splits.split(export_id, grouped.account_id, NOW, "user:1")

    split = beside(lambda: transact(splitting))
    with stop.reached():
        posts: list[int] = []

        def posting() -> PostbackResult:
            posts.append(1)
            return post(grouped, 3, url="https://shop.example/second")

        fixing = beside(lambda: transact(posting))
        until_waiting()
    assert (len(split.result(20)), fixing.result(20).fixed) == (2, 1)
    assert len(attempts) + len(posts) == 3
    assert sorted(counted()) == [(1, 0), (1, 1)]


def test_an_erasure_waits_for_what_a_postback_adds_to_its_group(
    grouped: Customer, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    [export_id] = post(grouped, 1, "csp").ticket_exports
    [(finding_id,)] = rows("SELECT id FROM findings")
    stop, second = Stop(), "https://shop.example/second"
    adding = beside(stop.within(lambda: post(grouped, 2, "csp", url=second)))
    with stop.reached():
        erasing = beside(lambda: transact(lambda: erasure._erase_findings([finding_id], NOW, "user:1")))
        until_waiting()
    assert adding.result(20).ticket_exports == (export_id,)
    assert erasing.result(20)["findings"] == 2
    # Each finding gets its own ticket when it is reported again.
    assert post(grouped, 3, "csp", url=second).new == 1


def test_an_erasure_waits_for_a_postback_that_reports_the_finding_again(
    customer: Customer, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    post(customer, 1, "csp")
    [(finding_id,)] = rows("SELECT id FROM findings")
    stop = Stop()
    reporting = beside(stop.within(lambda: post(customer, 2, "csp")))
    with stop.reached():
        erasing = beside(lambda: transact(lambda: erasure._erase_findings([finding_id], NOW, "user:1")))
        until_waiting()
    assert reporting.result(20).seen == 1
    assert erasing.result(20)["findings"] == 1
    assert rows("SELECT COUNT(*) FROM finding_sightings") == [(0,)]
