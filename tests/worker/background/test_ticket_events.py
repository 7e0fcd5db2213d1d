"""Events of tickets: formed once a run is quiet, one per ticket and run, and delivered in order like exports."""

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import pytest
from peewee import OperationalError

from schemas.base.principal import OperatorPrincipal
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.base.timestamps import to_ms
from schemas.exports.delivery import Outcome, Timings
from schemas.exports.record import Approval, ApprovalForAll
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.targets.target import FAILING_AFTER, TargetEdit
from service.operations import targets as target_operations
from service.operations.targets import TargetOperations
from storage.accounts import projects
from storage.accounts.account_limits import UNLIMITED
from storage.db.engine import connection, database, execute, release, rows, transaction
from storage.exports import queries, transitions
from storage.exports.events import deliveries, forming
from storage.intake import findings, findings_sql
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, targets, throttle_state_sql
from storage.triage import targeting
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import full_scans, statements
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK_POLICY,
    NOW,
    WEBHOOK_SECRET,
    Customer,
    issue,
    make_due_events,
    make_target,
    make_tracker,
    postback,
)
from tests.support.fakes import NO_TRACKERS
from tests.support.worker.account_tasks import run_once
from worker.background.ticket_events import EventOptions, EventTask, form_events
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.outcomes import Schedule
from worker.http.deadline import Exchange
from worker.http.response_parser import ParsedResponse
from worker.http.signed_request import SignedPost
from worker.http.signing import SignatureVerdict, verify
from worker.trackers.runner import TrackerRunner

VAULT: Final = Vault([b"k" * 32])
PAGE: Final = "https://shop.example/cart"
OTHER: Final = "https://shop.example/home"
TOOK: Final = Timings(total_ms=12)
ACCEPTED: Final = Outcome(status=202, timings=TOOK)


class EventWorker:
    """Forms and sends events at `now`; each request gets the next of `outcomes`, and the last one from then on."""

    def __init__(
        self, *outcomes: Outcome, settle_s: float = 60, trackers: TrackerRunner = NO_TRACKERS, lease_s: float = 30.0
    ) -> None:
        self.now = NOW + timedelta(hours=1)
        self.outcomes = list(outcomes or [ACCEPTED])
        self.sent: list[tuple[dict[str, str], dict[str, Any]]] = []
        schedule = Schedule((5.0, 30.0), timedelta(hours=72))
        options = EventOptions(schedule, settle_s, lease_s, "worker", lambda: self.now, jitter=lambda: 0.0)
        self.form = partial(form_events, options)
        #: How far the clock was set ahead; `now` includes it.
        self.set_ahead = timedelta()
        clock = ClockGuard(lambda: self.now, lambda: None, self.monotonic)
        self.events = EventTask(SignedPost(self.post, VAULT, DefaultSecret(WEBHOOK_SECRET)), trackers, options, clock)

    def post(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        assert database.is_closed()
        verdict = verify(WEBHOOK_SECRET.encode(), headers, body, int(headers["X-Service-Timestamp"]), lambda _nonce: False)
        assert verdict is SignatureVerdict.OK
        self.sent.append((headers, json.loads(body)))
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def monotonic(self) -> float:
        """Return the seconds of a clock that nobody can set."""
        return (self.now - self.set_ahead - NOW).total_seconds()

    def set_clock(self, ahead: timedelta) -> None:
        """Set the clock ahead, or back if `ahead` is negative."""
        self.now += ahead
        self.set_ahead += ahead

    def run(self, after: timedelta = timedelta()) -> list[tuple[str, dict[str, int]]]:
        """Do everything that is due; return the type and the counts of each event that was sent."""
        self.now += after
        before = len(self.sent)
        while self.form():
            pass
        release()
        while run_once(self.events):
            pass
        return [(body["type"], _counts(body["change"])) for _, body in self.sent[before:]]


def _counts(change: Mapping[str, Any]) -> dict[str, int]:
    return {name.removeprefix("places_"): value for name, value in change.items() if name != "places"}


def counts(added: int = 0, fixed: int = 0, still_open: int = 0) -> dict[str, int]:
    return {"added": added, "fixed": fixed, "open": still_open}


def post(
    customer: Customer, run: int, *codes: str, url: str = PAGE, minutes: float | None = None, **options: Any
) -> list[str]:
    at = NOW + timedelta(minutes=run if minutes is None else minutes)
    body = postback(run, [issue(code) for code in codes], page={"url": url}, status="completed")
    prepared = findings.prepare_postback(PostbackForm().read(body), customer.project_id)
    return list(findings.record(prepared, customer.project_id, at, "scanner").ticket_exports)


@pytest.fixture
def grouped(customer: Customer) -> Customer:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    return customer


def delivered(customer: Customer, export_id: str, *events: str, target_id: str | None = None) -> str:
    """Deliver an export to a target that subscribes to `events`, by default to a new one; return the target's ID."""
    target_id = target_id or make_target(customer, "http://127.0.0.1:9/hook").id
    changes.edit(target_id, TargetEdit(events=events), DEFAULT_SECRET, NOW, "user:1")
    approval = Approval(target_id, None)
    transitions.approve(export_id, customer.account_id, approval, NOW + timedelta(minutes=1), "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, provider_ticket_id = 'T-1' WHERE id = ?", (export_id,))
    return target_id


def stored() -> list[tuple[Any, ...]]:
    return rows("SELECT type, status, error_code FROM ticket_events ORDER BY number")


def test_the_changes_of_a_ticket_are_sent_as_events(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker()
    assert worker.run() == []
    post(grouped, 2, "csp")
    post(grouped, 2, "csp", url=OTHER)
    assert worker.run() == [("ticket.updated", counts(added=1, still_open=2))]
    for run in (3, 4):
        post(grouped, run, url=PAGE)
        post(grouped, run, "csp", url=OTHER)
    assert worker.run() == [("ticket.updated", counts(fixed=1, still_open=1))]
    for run in (5, 6):
        post(grouped, run, url=OTHER)
    assert worker.run() == [("ticket.fixed", counts(fixed=1))]
    post(grouped, 7, "csp", url=OTHER)
    assert worker.run() == [("ticket.reopened", counts(added=1, still_open=1))]
    assert len(rows("SELECT id FROM exports")) == 1
    headers, body = worker.sent[-1]
    assert headers["Idempotency-Key"] == body["id"]
    assert body["export"]["id"] == export_id
    assert body["export"]["target_id"] == target_id
    assert body["provider_ticket"] == {"id": "T-1", "url": None}
    assert body["ticket"] == {
        "title": queries.get(export_id).ticket["title"],
        "digest": queries.get(export_id).ticket_digest,
    }
    assert body["change"]["places"] == [{"url": OTHER, "location": issue("csp")["location"], "state": "open"}]
    assert [status for _, status, _ in stored()] == ["delivered"] * 4


def test_changes_made_while_events_are_formed_get_an_event_too(grouped: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp")
    execute("UPDATE scan_runs SET has_changes = ? WHERE id = 2", (True,))
    release()
    has_changed, goes_on = threading.Event(), threading.Event()
    update_scan_run = findings_sql.update_scan_run

    def update(*arguments: Any) -> None:
        has_changed.set()
        assert goes_on.wait(10)
        update_scan_run(*arguments)

    def add() -> None:
        with connection():
            post(grouped, 2, "csp", url=OTHER)

    def form() -> int:
        with connection():
            return forming.form(2, NOW + timedelta(hours=1))

    monkeypatch.setattr(findings_sql, "update_scan_run", update)
    with ThreadPoolExecutor(2) as pool:
        adding = pool.submit(add)
        assert has_changed.wait(10)
        formed = pool.submit(form)
        wait([formed], timeout=0.2)
        goes_on.set()
        adding.result(10)
        formed.result(10)
    assert EventWorker().run() == [("ticket.updated", counts(added=1, still_open=2))]


def test_every_target_of_one_approval_gets_events_about_all_places(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    subscribed, silent = (make_target(grouped, "http://127.0.0.1:9/hook").id for _ in range(2))
    changes.edit(subscribed, TargetEdit(events=ALL_EVENTS), DEFAULT_SECRET, NOW, "user:1")
    both, at = ApprovalForAll((silent, subscribed), None), NOW + timedelta(minutes=1)
    approved = targeting.approve_for_all(export_id, grouped.account_id, both, at, "user:1", LOOPBACK_POLICY)
    ids = [each.id for each in approved]
    execute("UPDATE exports SET status = 'exported', due_at = NULL")
    worker = EventWorker()
    post(grouped, 2, "csp", url=OTHER)
    assert worker.run() == [("ticket.updated", counts(added=1, still_open=2))]
    # The only place of the approved ticket is fixed; the place that was added later is still open.
    for run in (3, 4):
        post(grouped, run)
    assert worker.run() == [("ticket.updated", counts(fixed=1, still_open=1))]
    for run in (5, 6):
        post(grouped, run, url=OTHER)
    assert worker.run() == [("ticket.fixed", counts(fixed=1))]
    assert [queries.get(each).findings for each in ids] == [(2, 2)] * 2
    assert {body["export"]["id"] for _, body in worker.sent} == {ids[1]}


def test_new_places_of_a_reopened_ticket_join_its_original(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_ids = [make_target(grouped, "http://127.0.0.1:9/hook").id for _ in range(2)]
    for each in target_ids:
        changes.edit(each, TargetEdit(events=ALL_EVENTS), DEFAULT_SECRET, NOW, "user:1")
    both, at = ApprovalForAll(tuple(target_ids), None), NOW + timedelta(minutes=1)
    targeting.approve_for_all(export_id, grouped.account_id, both, at, "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL")
    for run in (2, 3):
        post(grouped, run)
    post(grouped, 4, "csp")
    post(grouped, 4, "csp", url=OTHER)
    assert rows("SELECT DISTINCT export_id FROM findings") == [(export_id,)]
    assert rows("SELECT findings_total, findings_fixed FROM exports") == [(2, 0)] * 2


def test_the_audit_log_has_the_events_covered_by_an_approval(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, "ticket.fixed", "ticket.redact")
    entries = rows(
        "SELECT actor, reason FROM audit_entries WHERE subject_id = ? AND action = 'approve_events'", (export_id,)
    )
    assert entries == [("user:1", "ticket.fixed ticket.redact")]


@pytest.mark.parametrize("events", [(), ("ticket.redact",)])
def test_a_target_without_events_gets_a_new_ticket_instead(grouped: Customer, events: tuple[str, ...]) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *events)
    worker = EventWorker()
    for run in (2, 3):
        post(grouped, run)
    [renewed] = post(grouped, 4, "csp")
    assert renewed != export_id
    assert worker.run() == []


@pytest.mark.parametrize("verb", ["pause", "disable"])
def test_a_reopened_finding_gets_a_new_ticket_if_the_target_of_the_earlier_one_is_disabled(
    grouped: Customer, verb: str
) -> None:
    [export_id] = post(grouped, 1, "csp")
    targets.change_status(delivered(grouped, export_id, *ALL_EVENTS), verb, NOW, "user:1")
    for run in (2, 3):
        post(grouped, run)
    assert len(post(grouped, 4, "csp")) == (verb == "disable")


# Columns: how the events ended; whether the ticket's issue is known to be gone.
ENDS: Final = [
    ([("failed", "issue_not_found", None)], True),
    ([("failed", "issue_moved", None)], True),
    ([("failed", "issue_not_found", None), ("delivered", None, "skipped")], True),
    ([("failed", "issue_not_found", None), ("delivered", None, "commented")], False),
    ([("failed", "issue_locked", None)], False),
]


@pytest.mark.parametrize(("ends", "is_gone"), ENDS)
def test_a_reopened_finding_gets_a_new_ticket_if_the_issue_of_the_earlier_one_is_gone(
    grouped: Customer, ends: list[tuple[str, str | None, str | None]], is_gone: bool
) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker()
    for run in range(2, 2 + len(ends)):
        post(grouped, run, "csp", url=f"https://shop.example/{run}")
        worker.run()
    for run in (8, 9):
        for page in (PAGE, *(f"https://shop.example/{each}" for each in range(2, 2 + len(ends)))):
            post(grouped, run, url=page)
    for number, end in enumerate(ends, 1):
        execute("UPDATE ticket_events SET status = ?, error_code = ?, result = ? WHERE number = ?", (*end, number))
    assert len(post(grouped, 10, "csp")) == is_gone


def test_events_that_were_subscribed_to_later_are_not_covered(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id)
    changes.edit(target_id, TargetEdit(events=ALL_EVENTS), DEFAULT_SECRET, NOW, "user:1")
    post(grouped, 2, "csp", url=OTHER)
    assert EventWorker().run() == []


def test_a_target_that_no_longer_subscribes_gets_no_event(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    changes.edit(target_id, TargetEdit(events=()), DEFAULT_SECRET, NOW, "user:1")
    post(grouped, 2, "csp", url=OTHER)
    assert EventWorker().run() == []


def test_without_the_fixed_event_a_target_gets_an_updated_event(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, "ticket.updated")
    for run in (2, 3):
        post(grouped, run)
    assert EventWorker().run() == [("ticket.updated", counts(fixed=1))]


def test_events_are_formed_once_a_run_is_quiet_and_one_event_covers_all_its_pages(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker()
    worker.now = NOW + timedelta(minutes=2)
    for page in range(30):
        post(grouped, 2, "csp", url=f"https://shop.example/{page}", minutes=2)
    assert worker.run(timedelta(seconds=59)) == []
    assert worker.run(timedelta(seconds=1)) == [("ticket.updated", counts(added=30, still_open=31))]
    post(grouped, 2, "csp", url=OTHER, minutes=4)
    worker.now = NOW + timedelta(minutes=4)
    assert worker.run(timedelta(seconds=59)) == []
    assert worker.run(timedelta(seconds=1)) == [("ticket.updated", counts(added=1, still_open=32))]


def test_a_later_run_ends_the_wait_for_further_pages(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker()
    worker.now = NOW + timedelta(minutes=2)
    post(grouped, 2, "csp", url=OTHER, minutes=2)
    assert worker.run() == []
    post(grouped, 3, "csp", url=OTHER, minutes=2.1)
    assert worker.run(timedelta(seconds=10)) == [("ticket.updated", counts(added=1, still_open=2))]


def test_a_change_that_its_run_reverts_makes_no_event(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp", "img-alt")[:1]
    delivered(grouped, export_id, *ALL_EVENTS)
    for run in (2, 3):
        post(grouped, run)
    post(grouped, 3, "csp", "img-alt")
    assert EventWorker().run() == []


def test_changes_before_the_approval_cause_no_event(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    post(grouped, 2, "csp", url=OTHER, minutes=0.5)
    delivered(grouped, export_id, *ALL_EVENTS)
    assert EventWorker().run() == []


def test_events_wait_until_their_ticket_is_delivered(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    execute("UPDATE exports SET status = 'retry_scheduled', due_at = 0 WHERE id = ?", (export_id,))
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    assert worker.run() == []
    assert stored() == [("ticket.updated", "pending", None)]
    execute("UPDATE exports SET status = 'exported', due_at = NULL WHERE id = ?", (export_id,))
    assert worker.run(timedelta(seconds=30)) == [("ticket.updated", counts(added=1, still_open=2))]


def failed_with_events(customer: Customer, export_id: str) -> None:
    """Let the target reject an export, then change its ticket by a scan run."""
    delivered(customer, export_id, *ALL_EVENTS)
    execute("UPDATE exports SET status = 'failed', provider_ticket_id = NULL WHERE id = ?", (export_id,))
    post(customer, 2, "csp")
    post(customer, 2, "csp", url=OTHER)


@pytest.mark.parametrize("asks", [True, False])
def test_events_follow_a_ticket_that_is_retried_at_another_target(grouped: Customer, asks: bool) -> None:
    [export_id] = post(grouped, 1, "csp")
    failed_with_events(grouped, export_id)
    worker = EventWorker()
    assert worker.run() == []
    elsewhere = make_target(grouped, "http://127.0.0.1:9/other")
    changes.edit(elsewhere.id, TargetEdit(events=ALL_EVENTS if asks else ()), DEFAULT_SECRET, NOW, "user:1")
    targeting.retry_elsewhere(export_id, grouped.account_id, elsewhere.id, worker.now, "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, provider_ticket_id = 'B-1' WHERE id = ?", (export_id,))
    sent = worker.run(timedelta(minutes=10))
    assert sent == ([("ticket.updated", counts(added=1, still_open=2))] if asks else [])
    assert stored() == [("ticket.updated", *(("delivered", None) if asks else ("cancelled", "retried_elsewhere")))]
    assert [body["export"]["target_id"] for _, body in worker.sent] == [elsewhere.id] * asks


def test_no_event_of_a_former_target_is_sent(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp")
    post(grouped, 2, "csp", url=OTHER)
    # The state in which earlier versions left such an export.
    execute("UPDATE exports SET target_id = ?", (make_target(grouped, "http://127.0.0.1:9/other").id,))
    assert EventWorker().run() == []


def test_a_result_is_recorded_after_a_database_outage(grouped: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp")
    post(grouped, 2, "csp", url=OTHER)
    failures, record = iter([OperationalError("gone"), OperationalError("gone")]), deliveries.record_attempt

    def refuse_twice(*given: Any, **options: Any) -> bool:
        for failure in failures:
            raise failure
        return record(*given, **options)

    monkeypatch.setattr(deliveries, "record_attempt", refuse_twice)
    worker = EventWorker()
    assert len(worker.run()) == 1
    assert stored() == [("ticket.updated", "delivered", None)]


@pytest.mark.parametrize(
    ("event_type", "on_fixed", "requests"),
    [("ticket.fixed", "close", 2), ("ticket.fixed", "comment", 1), ("ticket.updated", "close", 1)],
)
def test_an_event_that_closes_an_issue_takes_two_requests_of_the_limit(
    event_type: str, on_fixed: str, requests: int, customer: Customer
) -> None:
    worker = EventWorker()
    target_id = make_target(customer, "http://127.0.0.1:9/hook").id
    settings = f'{{"on_fixed": "{on_fixed}"}}'
    execute("UPDATE targets SET max_per_minute = 60, provider_settings = ? WHERE id = ?", (settings, target_id))
    make_due_events(customer, target_id, 1, to_ms(worker.now) - 1)
    execute("UPDATE ticket_events SET type = ?", (event_type,))
    assert worker.events.claim() is not None
    [(paced_until,)] = rows("SELECT paced_until FROM targets")
    assert round((paced_until - 1000 * to_ms(worker.now)) / 1e6) == requests


def test_events_of_a_held_target_delay_no_other_target(customer: Customer) -> None:
    worker = EventWorker()
    limited, free = (make_target(customer, "http://127.0.0.1:9/hook").id for _ in range(2))
    used_up_until = 1000 * (to_ms(worker.now) + 60_000)
    execute("UPDATE targets SET max_per_minute = 60, paced_until = ? WHERE id = ?", (used_up_until, limited))
    make_due_events(customer, limited, 30, to_ms(worker.now) - 2)
    make_due_events(customer, free, 1, to_ms(worker.now) - 1)
    claimed = worker.events.claim()
    assert claimed is not None
    assert claimed.target_id == free
    assert worker.events.claim() is None


@pytest.mark.parametrize(
    ("throttle", "at_once"),
    [
        ("concurrency = 16, ramp = 16, failures_in_row = 0", 10),
        ("concurrency = 3.9, ramp = 16, failures_in_row = 0", 3),
        ("concurrency = 16, ramp = 2, failures_in_row = 0", 2),
        ("concurrency = 16, ramp = 4, failures_in_row = 7", 1),
    ],
)
def test_no_more_events_are_claimed_than_the_concurrency_of_their_target(
    customer: Customer, throttle: str, at_once: int
) -> None:
    worker = EventWorker()
    target_id = make_target(customer, "http://127.0.0.1:9/hook").id
    execute(f"UPDATE targets SET {throttle} WHERE id = ?", (target_id,))  # noqa: S608 - those above
    make_due_events(customer, target_id, 10, to_ms(worker.now) - 1)
    claimed = [worker.events.claim() for _ in range(10)]
    assert sum(each is not None for each in claimed) == at_once


def test_a_failed_attempt_is_repeated_with_the_same_bytes_and_the_next_event_waits(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker(Outcome(status=503, timings=TOOK), ACCEPTED)
    post(grouped, 2, "csp", url=OTHER)
    assert worker.run() == [("ticket.updated", counts(added=1, still_open=2))]
    post(grouped, 3, "csp", url="https://shop.example/third")
    assert worker.run() == []
    assert [each for each, _ in worker.run(timedelta(seconds=90))] == ["ticket.updated"] * 2
    assert [body["change"]["places_open"] for _, body in worker.sent] == [2, 2, 3]
    first, again, _ = worker.sent
    assert first[1] == again[1]
    assert first[0]["Idempotency-Key"] == again[0]["Idempotency-Key"]
    assert first[0]["X-Service-Nonce"] != again[0]["X-Service-Nonce"]
    [attempts] = rows("SELECT attempt_records FROM ticket_events ORDER BY number LIMIT 1")[0]
    assert [(each["number"], each["response_status"]) for each in json.loads(attempts)] == [(1, 503), (2, 202)]


def test_a_refused_event_fails_and_the_next_one_is_sent(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker(Outcome(status=422, timings=TOOK), ACCEPTED)
    post(grouped, 2, "csp", url=OTHER)
    post(grouped, 3, "csp", url="https://shop.example/third")
    worker.run()
    assert [status for _, status, _ in stored()] == ["failed", "delivered"]
    assert queries.get(export_id).status == "exported"
    assert rows("SELECT body FROM ticket_events WHERE body IS NOT NULL") == []


def test_a_receiver_that_limits_the_rate_holds_its_target(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker(Outcome(status=429, retry_after="120", timings=TOOK), ACCEPTED)
    post(grouped, 2, "csp", url=OTHER)
    worker.run()
    assert targets.get(target_id, None).held_until == worker.now + timedelta(seconds=120)
    assert worker.run(timedelta(seconds=119)) == []
    assert worker.run(timedelta(seconds=60)) != []


class NoTransport:
    """Provides an exchange for each task, and fails the test if a request is sent."""

    def begin(self, account_id: int | None, certificate: str | None) -> Exchange:
        return Exchange(5.0)

    def exchange(self, exchange: Exchange, method: str, url: str, *_: object) -> ParsedResponse:
        pytest.fail(f"A request was sent: {method} {url}")


def test_an_event_skipped_by_a_tracker_does_not_change_the_state_of_its_target(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = make_tracker(grouped, "http://127.0.0.1:9/acme/shop", VAULT)
    delivered(grouped, export_id, *ALL_EVENTS, target_id=target_id)
    # One more attempt without a delivery would show the target as failing.
    settings = (json.dumps({"on_fixed": "nothing"}), FAILING_AFTER - 1)
    execute("UPDATE targets SET provider_settings = ?, connected_status = 'connected', undelivered_in_row = ?", settings)
    before = throttle_state_sql.read([target_id])
    # A place is fixed once two runs have not reported it.
    post(grouped, 2)
    post(grouped, 3)
    runner = TrackerRunner(NoTransport(), VAULT, "https://riskrelay.example.com")  # type: ignore[arg-type]  # what it uses
    EventWorker(trackers=runner).run()
    assert rows("SELECT type, status, result FROM ticket_events") == [("ticket.fixed", "delivered", "skipped")]
    assert throttle_state_sql.read([target_id]) == before


def test_the_rate_limit_of_a_target_counts_events(grouped: Customer) -> None:
    ids = [post(grouped, 1, code)[0] for code in ("csp", "img-alt", "label")]
    for export_id in ids:
        target_id = delivered(grouped, export_id, *ALL_EVENTS)
    execute("UPDATE exports SET target_id = ?", (target_id,))
    changes.edit(target_id, TargetEdit(sets_limit=True, max_per_minute=60), DEFAULT_SECRET, NOW, "user:1")
    for code in ("csp", "img-alt", "label"):
        post(grouped, 2, code, url=OTHER + code)
    worker = EventWorker()
    assert len(worker.run()) == 1
    assert len(worker.run(timedelta(seconds=1.1))) == 1
    assert len(worker.run(timedelta(seconds=1.1))) == 1


@pytest.mark.parametrize(("verb", "is_sent"), [("resume", True), ("disable", False)])
def test_events_wait_for_a_paused_target_and_end_with_a_disabled_one(
    grouped: Customer, monkeypatch: pytest.MonkeyPatch, verb: str, is_sent: bool
) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    targets.change_status(target_id, "pause", NOW, "user:1")
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    assert worker.run() == []
    assert worker.run(timedelta(hours=1)) == []
    with pytest.raises(changes.TargetInUse) as refused:
        changes.remove(target_id, NOW, "user:1")
    assert refused.value.details["pending_events"] == 1
    monkeypatch.setattr(target_operations, "utc_now", lambda: worker.now)
    nobody_asks = cast("Any", None)
    operations = TargetOperations(nobody_asks, nobody_asks, DEFAULT_SECRET, "self-hosted", 1.0, UNLIMITED)
    operations.change_status(target_id, verb, OperatorPrincipal())
    # At once, although events that have waited long are checked every few minutes only.
    assert bool(worker.run()) is is_sent
    assert stored() == [("ticket.updated", "delivered" if is_sent else "failed", None if is_sent else "target_disabled")]


@pytest.mark.parametrize("status", ["paused", "blocked", "inactive"])
def test_events_wait_for_a_target_that_is_off_however_long_that_takes(grouped: Customer, status: str) -> None:
    """A fixed ticket has no later event: without this event its issue would stay open for good."""
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target_id))
    for run in (2, 3):
        post(grouped, run)
    worker = EventWorker(Outcome(status=503, timings=TOOK), ACCEPTED)
    worker.run()
    assert worker.run(timedelta(days=30)) == []
    execute("UPDATE targets SET status = 'active' WHERE id = ?", (target_id,))
    # The schedule begins with the first attempt, so one failure does not end it.
    assert len(worker.run(timedelta(minutes=10))) == 1
    assert worker.run(timedelta(seconds=5)) == [("ticket.fixed", counts(fixed=1))]
    assert stored() == [("ticket.fixed", "delivered", None)]


def test_a_redaction_that_waits_for_days_ends_so_that_a_person_erases_the_ticket(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    targets.change_status(target_id, "pause", NOW, "user:1")
    with transaction():
        transitions.redact([export_id], NOW, "test")
    worker = EventWorker()
    worker.run()
    worker.run(timedelta(hours=73))
    assert stored() == [("ticket.redact", "failed", "attempts_exhausted")]


def test_an_event_whose_ticket_is_not_delivered_for_days_ends(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    execute("UPDATE exports SET status = 'failed'")
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.run()
    worker.run(timedelta(hours=73))
    assert stored() == [("ticket.updated", "failed", "attempts_exhausted")]


def test_an_event_that_fails_for_days_ends(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker(Outcome(status=503, timings=TOOK))
    worker.run()
    worker.run(timedelta(hours=73))
    assert stored() == [("ticket.updated", "failed", "receiver_unavailable")]


def test_a_dead_worker_s_event_is_sent_again_once_its_lease_has_lapsed(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.form()
    lost = worker.events.claim()
    assert lost is not None
    assert not lost.is_outcome_unknown
    assert worker.run(timedelta(seconds=29)) == []
    worker.now += timedelta(seconds=1)
    again = worker.events.claim()
    assert again is not None
    assert again.is_outcome_unknown
    worker.events.send(again)
    worker.events.send(lost)  # too late: its lease has lapsed
    assert stored() == [("ticket.updated", "delivered", None)]
    [(attempts, records)] = rows("SELECT attempts, attempt_records FROM ticket_events")
    assert (attempts, [each["number"] for each in json.loads(records)]) == (2, [2])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_is_set_back_shortens_the_lease_of_a_dead_worker(grouped: Customer, is_restarted: bool) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.form()
    assert worker.events.claim() is not None
    worker.set_clock(-timedelta(minutes=30))
    if is_restarted:
        set_back, worker = worker, EventWorker()
        worker.now = set_back.now
    assert worker.run() == []
    # The lease is shortened once every worker has noticed the step.
    assert worker.run(timedelta(seconds=0 if is_restarted else 3)) == []
    assert worker.run(timedelta(seconds=29)) == []
    assert worker.run(timedelta(seconds=1)) == [("ticket.updated", counts(added=1, still_open=2))]


def test_after_a_clock_is_set_back_a_worker_that_has_not_noticed_takes_over_no_event(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker, other = EventWorker(), EventWorker()
    worker.form()
    assert worker.events.claim() is not None
    assert other.events.claim() is None
    worker.set_clock(-timedelta(minutes=30))
    assert worker.events.claim() is None
    assert other.events.claim() is None


def test_after_a_clock_is_set_ahead_no_worker_takes_over_an_event_that_is_being_sent(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker, other = EventWorker(), EventWorker()
    worker.form()
    being_sent = worker.events.claim()
    assert being_sent is not None
    assert other.events.claim() is None
    other.set_clock(timedelta(hours=1))
    assert other.events.claim() is None
    other.now += timedelta(seconds=29)
    assert other.events.claim() is None
    release()
    worker.events.send(being_sent)
    other.now += timedelta(seconds=1)
    assert other.events.claim() is None
    assert stored() == [("ticket.updated", "delivered", None)]


def test_a_clock_that_is_set_ahead_delays_events_by_one_lease(customer: Customer) -> None:
    worker = EventWorker()
    make_due_events(customer, make_target(customer, "http://127.0.0.1:9/hook").id, 2, to_ms(worker.now) - 1)
    assert worker.events.claim() is not None
    worker.set_clock(timedelta(hours=1))
    assert worker.events.claim() is None
    worker.now += timedelta(seconds=30)
    assert worker.events.claim() is not None


def test_a_waiting_event_of_a_dead_worker_is_not_counted_as_an_open_request(customer: Customer) -> None:
    worker = EventWorker()
    target_id = make_target(customer, "http://127.0.0.1:9/hook").id
    make_due_events(customer, target_id, 2, to_ms(worker.now) - 1)
    lost = worker.events.claim()
    assert lost is not None
    targets.change_status(target_id, "pause", worker.now, "user:1")
    worker.now += timedelta(hours=1)
    worker.form()
    # A resumed target gets one request at first.
    targets.change_status(target_id, "resume", worker.now, "user:1", default=DEFAULT_SECRET)
    deliveries.make_due(target_id, worker.now)
    claimed = worker.events.claim()
    assert claimed is not None
    assert is_unknown(lost.id)


def test_a_postponed_event_of_a_dead_worker_is_not_counted_as_an_open_request(customer: Customer) -> None:
    worker = EventWorker()
    target_id = make_target(customer, "http://127.0.0.1:9/hook").id
    make_due_events(customer, target_id, 1, to_ms(worker.now) - 1)
    assert worker.events.claim() is not None
    worker.now += timedelta(hours=1)
    lost = deliveries.next_due(worker.now)
    assert lost is not None
    deliveries.postpone(lost, worker.now + timedelta(seconds=5))
    assert deliveries.count_open(target_id, worker.now) == 0
    assert is_unknown(lost.id)


def is_unknown(event_id: str) -> bool:
    """Return whether the tracker may have applied an earlier attempt of the event."""
    return bool(rows("SELECT is_outcome_unknown FROM ticket_events WHERE id = ?", (event_id,))[0][0])


@pytest.mark.parametrize(("moved_after_s", "has_moved"), [(-90, False), (-1, True), (5, True), (90, True)])
def test_a_target_edited_during_the_delivery_of_a_ticket_counts_as_moved(
    grouped: Customer, moved_after_s: int, has_moved: bool
) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    began_at = NOW + timedelta(minutes=5)
    # The attempt began at the former URL, and its result was recorded ten seconds later.
    times = (to_ms(began_at), to_ms(began_at + timedelta(seconds=10)))
    execute("UPDATE exports SET last_attempt_at = CAST(? AS BIGINT), finished_at = CAST(? AS BIGINT)", times)
    moved_at = began_at + timedelta(seconds=moved_after_s)
    changes.edit(target_id, TargetEdit(base_url="http://127.0.0.1:9/moved"), DEFAULT_SECRET, moved_at, "user:1")
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.form()
    event = worker.events.claim()
    assert event is not None
    assert deliveries.has_moved(event) is has_moved


def test_an_event_is_sent_to_the_url_that_its_target_has_at_the_claim(
    grouped: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    next_due, moved = deliveries.next_due, TargetEdit(base_url="http://127.0.0.1:9/moved")

    def then_edited(*arguments: Any) -> deliveries.EventJob | None:
        due = next_due(*arguments)
        changes.edit(target_id, moved, DEFAULT_SECRET, worker.now, "user:1")
        return due

    worker = EventWorker()
    worker.now += timedelta(hours=1)
    while worker.form():
        pass
    monkeypatch.setattr(deliveries, "next_due", then_edited)
    claimed = worker.events.claim()
    assert claimed is not None
    assert claimed.base_url == moved.base_url


def test_a_redaction_ends_waiting_events_and_sends_one_of_its_own(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    with connection():
        worker.form()
    post(grouped, 3, "csp", url="https://shop.example/third")
    with transaction():
        transitions.redact([export_id], worker.now, "compliance")
    assert worker.run() == [("ticket.redact", counts())]
    [(_, body)] = worker.sent
    assert body["ticket"]["title"] is None
    assert body["export"]["target_id"] == target_id
    assert body["provider_ticket"] == {"id": "T-1", "url": None}
    assert [(each, status) for each, status, _ in stored()] == [
        ("ticket.updated", "cancelled"),
        ("ticket.redact", "delivered"),
    ]
    assert rows("SELECT * FROM ticket_changes") == []


@pytest.mark.parametrize("lease_s", [30, 300])
def test_a_redaction_waits_for_an_event_that_is_being_sent(grouped: Customer, lease_s: int) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker(lease_s=lease_s)
    worker.form()
    being_sent = worker.events.claim()
    assert being_sent is not None
    worker.now += timedelta(seconds=10)
    with transaction():
        transitions.redact([export_id], worker.now, "compliance")
    assert worker.run(timedelta(seconds=lease_s - 12)) == []
    # Even if the target is resumed, nothing is sent before the attempt under way has ended.
    deliveries.make_due(being_sent.target_id, worker.now)
    assert worker.run(timedelta(seconds=1)) == []
    worker.events.send(being_sent)
    assert stored() == [("ticket.updated", "cancelled", "redacted"), ("ticket.redact", "pending", None)]
    assert worker.run(timedelta(seconds=1))[-1:] == [("ticket.redact", counts())]
    assert [status for _, status, _ in stored()] == ["cancelled", "delivered"]


def test_a_redaction_does_not_wait_for_a_dead_worker(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.form()
    assert worker.events.claim() is not None
    worker.now += timedelta(minutes=1)
    with transaction():
        transitions.redact([export_id], worker.now, "compliance")
    assert worker.run() == [("ticket.redact", counts())]


def test_events_of_excluded_accounts_are_not_claimed(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    post(grouped, 2, "csp", url=OTHER)
    worker = EventWorker()
    worker.form()
    assert worker.events.claim([grouped.account_id]) is None
    assert worker.events.claim() is not None


def test_a_fix_that_is_reverted_after_its_event_has_an_event_too(grouped: Customer) -> None:
    [export_id] = post(grouped, 1, "csp")
    delivered(grouped, export_id, *ALL_EVENTS)
    worker = EventWorker()
    for run in (2, 3):
        post(grouped, run)
    assert worker.run() == [("ticket.fixed", counts(fixed=1))]
    post(grouped, 3, "csp", minutes=90)
    assert worker.run(timedelta(hours=1)) == [("ticket.reopened", counts(added=1, still_open=1))]
    # New places join the ticket again.
    post(grouped, 4, "csp", url=OTHER, minutes=200)
    assert worker.run(timedelta(hours=2)) == [("ticket.updated", counts(added=1, still_open=2))]
    assert len(rows("SELECT id FROM exports")) == 1


def test_tickets_of_single_findings_have_events(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp")
    delivered(customer, export_id, *ALL_EVENTS)
    worker = EventWorker()
    for run in (2, 3):
        post(customer, run)
    assert worker.run() == [("ticket.fixed", counts(fixed=1))]
    assert post(customer, 4, "csp") == []
    assert worker.run() == [("ticket.reopened", counts(added=1, still_open=1))]
    assert len(rows("SELECT id FROM exports")) == 1
    assert rows("SELECT findings_total, findings_fixed FROM exports") == [(1, 0)]


@on_sqlite
def test_idle_polls_scan_no_table(grouped: Customer) -> None:
    """However much has been delivered, polls read only what waits. PostgreSQL chooses such plans only with far more rows."""
    [export_id] = post(grouped, 1, "csp")
    target_id = delivered(grouped, export_id, *ALL_EVENTS)
    execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
        "INSERT INTO ticket_events (id, account_id, export_id, target_id, number, type, status, attempts, attempt_records, "
        "is_outcome_unknown, created_at, finished_at) SELECT 'evt_' || n, ?, ?, ?, n, 'ticket.updated', "
        "'delivered', 1, '[]', (1 = 0), 0, 0 FROM n",
        (grouped.account_id, export_id, target_id),
    )
    execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
        "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) "
        "SELECT n + 10, ?, 'completed', n, n FROM n",
        (grouped.project_id,),
    )
    execute("ANALYZE")
    worker = EventWorker()
    with statements() as ran:
        assert worker.run() == []
    # The first statement also shortens leases.
    assert len(ran) == 4
    # These indexes contain only what waits.
    of_waiting = ("scan_runs_changed", "ticket_events_due")
    read = [step for each in ran for step in full_scans(each, {"ticket_events", "scan_runs", "ticket_changes"})]
    assert [step for step in read if not step.endswith(of_waiting)] == []
