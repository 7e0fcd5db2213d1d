"""Deliveries to a tracker over real sockets: each creates one issue, and blocked or held targets delay no other target."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from runtime.logs import JsonFormatter
from schemas.base.errors import ValidationFailed
from schemas.exports.record import Approval, Export
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import RATE_LIMITED, TargetStatus
from schemas.trackers.exchange import Steps, TrackerAccess, TrackerIssue, TrackerTicket
from schemas.trackers.gitea import GiteaTracker
from schemas.trackers.registry import LONGEST_LOOKUP_S
from storage.db.engine import connection, execute, rows, transaction
from storage.exports import queries, transitions
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, targets
from storage.triage import targeting
from tests.support import canaries
from tests.support.factories import (
    LOOPBACK_POLICY,
    Customer,
    limit_target,
    make_approved,
    make_exports,
    make_target,
    make_tracker,
)
from tests.support.processes.workers import CountingReceiver, wait_until
from tests.support.trackers.servers import TOKEN, FakeGitea, LostResponse, Refusal
from tests.support.worker.dispatchers import PATIENCE_S, name, statuses
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient
from worker.trackers.runner import TrackerRunner

VAULT: Final = Vault([b"k" * 32])
SOON: Final = Schedule((0.05, 0.05, 0.05), timedelta(hours=1))
ONE_TRY: Final = Schedule((), timedelta(hours=1))


class QuickGitea(GiteaTracker):
    """A Gitea that finds issues at once."""

    lookup_delay_s = 0


@pytest.fixture
def gitea() -> Iterator[FakeGitea]:
    with FakeGitea() as made:
        yield made


@contextmanager
def delivering(schedule: Schedule = SOON, tracker: GiteaTracker | None = None, **options: Any) -> Iterator[Dispatcher]:
    """Run a dispatcher that sends over real sockets."""
    client = HttpClient(LOOPBACK_POLICY, DnsResolver(), 5.0, 5.0, 8)
    trackers = TrackerRunner(client, VAULT, "https://riskrelay.example.com", {"gitea": tracker or QuickGitea()})
    attempt_options = AttemptOptions(DefaultSecret("secret"), schedule, utc_now, lambda: 0.0)
    runner = AttemptRunner(client.post, VAULT, attempt_options, trackers)
    dispatcher = Dispatcher(runner, DispatcherOptions(name(), 8, 0.05, utc_now, quick_scan_s=600.0, **options))
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.stop()
        assert dispatcher.join(PATIENCE_S)
        client.close()


def approve(customer: Customer, target_id: str, count: int = 1) -> list[str]:
    return [make_approved(customer, target_id, utc_now()) for _ in range(count)]


def settled(export_id: str) -> Export:
    """Wait until an export has ended; return it."""
    wait_until(lambda: queries.get(export_id).finished_at is not None)
    return queries.get(export_id)


def is_unknown(export_id: str) -> bool:
    return bool(rows("SELECT is_outcome_unknown FROM exports WHERE id = ?", (export_id,))[0][0])


def test_an_approved_export_becomes_an_issue_with_its_number_and_link(customer: Customer, gitea: FakeGitea) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    [export_id] = approve(customer, target_id)
    with delivering():
        export = settled(export_id)
    assert (export.status, export.provider_ticket_id) == (ExportStatus.EXPORTED, "1")
    assert export.provider_ticket_url == f"{gitea.base_url}/issues/1"
    [issue] = gitea.issues
    assert export_id in issue["body"]
    assert f"https://riskrelay.example.com/console/exports/{export_id}" in issue["body"]
    assert rows("SELECT outcome, response_status, error_code, nonce FROM attempts") == [("delivered", 201, None, None)]
    assert rows("SELECT delivered, failed FROM delivery_hours") == [(1, 0)]
    entries = rows("SELECT action FROM audit_entries WHERE subject_id = ? ORDER BY id", (export_id,))
    assert [action for (action,) in entries] == ["prepare", "approve", "claim", "deliver"]
    assert targets.get(target_id, None).connected_status == "connected"


def test_a_tracker_gets_neither_a_signature_nor_the_default_secret(customer: Customer, gitea: FakeGitea) -> None:
    approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    with delivering():
        wait_until(lambda: statuses() == {"exported": 1})
    for request in gitea.requests:
        named = {header for header in request.headers if header.startswith(("x-service", "idempotency", "webhook-"))}
        assert named == set()
        assert request.headers["authorization"] == f"token {TOKEN}"
        assert TOKEN.encode() not in request.body
        assert TOKEN not in request.line


@pytest.mark.parametrize(("lost", "creates"), [(LostResponse.AFTER_CREATING, 1), (LostResponse.BEFORE_CREATING, 2)])
def test_after_a_lost_response_the_issue_is_looked_up_before_another_create(
    customer: Customer, gitea: FakeGitea, lost: LostResponse, creates: int
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    [known] = approve(customer, target_id)
    with delivering():
        settled(known)
        # A known outcome costs no lookup.
        assert gitea.lookups == 0
        gitea.next_creates(lost)
        [export_id] = approve(customer, target_id)
        export = settled(export_id)
    assert (export.status, export.provider_ticket_id, is_unknown(export_id)) == (ExportStatus.EXPORTED, "2", False)
    assert len(gitea.issues_of(export_id)) == 1
    assert (gitea.creates_of(export_id), gitea.lookups) == (creates, 1)
    outcomes = rows("SELECT outcome, error_code FROM attempts WHERE export_id = ? ORDER BY number", (export_id,))
    assert outcomes == [("retryable", "connection_closed"), ("delivered", None)]


def test_a_lookup_that_fails_is_repeated_and_nothing_is_created_meanwhile(customer: Customer, gitea: FakeGitea) -> None:
    [export_id] = approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    gitea.next_creates(LostResponse.AFTER_CREATING)
    with delivering(Schedule((0.5,) * 50, timedelta(hours=1))):
        assert gitea.created.wait(30)
        gitea.refusal = Refusal(500)
        wait_until(lambda: gitea.lookups == 2)
        assert is_unknown(export_id)
        gitea.refusal = None
        export = settled(export_id)
    assert export.status is ExportStatus.EXPORTED
    assert (gitea.creates_of(export_id), len(gitea.issues_of(export_id))) == (1, 1)


def test_an_unknown_outcome_outlives_the_schedule_and_a_manual_retry_looks_up_first(
    customer: Customer, gitea: FakeGitea
) -> None:
    [export_id] = approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    gitea.next_creates(LostResponse.AFTER_CREATING)
    with delivering(ONE_TRY):
        export = settled(export_id)
        assert (export.status, export.status_reason) == (ExportStatus.FAILED, "attempts_exhausted")
        assert is_unknown(export_id)
        transitions.retry(export_id, customer.account_id, utc_now(), "user:1")
        # A lookup right now might not find the issue.
        [(due_at, retried_at)] = rows("SELECT due_at, schedule_began_at FROM exports")
        assert due_at - retried_at > (LONGEST_LOOKUP_S - 30) * 1000
        execute("UPDATE exports SET due_at = schedule_began_at")
        wait_until(lambda: queries.get(export_id).status is ExportStatus.EXPORTED)
    assert (gitea.creates_of(export_id), len(gitea.issues_of(export_id)), gitea.lookups) == (1, 1, 1)


def test_a_known_rejection_ends_the_unknown_outcome(customer: Customer, gitea: FakeGitea) -> None:
    [export_id] = approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    gitea.next_creates(LostResponse.BEFORE_CREATING, Refusal(422))
    with delivering():
        export = settled(export_id)
    assert (export.status, export.status_reason) == (ExportStatus.FAILED, "tracker_rejected")
    assert not is_unknown(export_id)
    assert gitea.lookups == 1


def test_a_retry_at_another_tracker_looks_up_no_issue(customer: Customer, gitea: FakeGitea) -> None:
    [export_id] = approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    gitea.next_creates(LostResponse.AFTER_CREATING)
    with FakeGitea() as other, delivering(ONE_TRY):
        settled(export_id)
        elsewhere = make_tracker(customer, other.base_url, VAULT)
        targeting.retry_elsewhere(export_id, customer.account_id, elsewhere, utc_now(), "user:1", LOOPBACK_POLICY)
        wait_until(lambda: queries.get(export_id).status is ExportStatus.EXPORTED)
    assert (other.creates_of(export_id), other.lookups) == (1, 0)


def test_a_retry_back_at_the_first_tracker_looks_for_the_issue_that_it_may_have_created(
    customer: Customer, gitea: FakeGitea
) -> None:
    first = make_tracker(customer, gitea.base_url, VAULT)
    [export_id] = approve(customer, first)
    gitea.next_creates(LostResponse.AFTER_CREATING)
    with FakeGitea() as other, delivering(ONE_TRY):
        settled(export_id)
        elsewhere = make_tracker(customer, other.base_url, VAULT)
        other.next_creates(Refusal(422))
        for target_id in (elsewhere, first):
            targeting.retry_elsewhere(export_id, customer.account_id, target_id, utc_now(), "user:1", LOOPBACK_POLICY)
            execute("UPDATE exports SET due_at = schedule_began_at")
            settled(export_id)
    assert queries.get(export_id).status is ExportStatus.EXPORTED
    assert (gitea.creates_of(export_id), len(gitea.issues_of(export_id)), gitea.lookups) == (1, 1, 1)


def test_a_retry_at_another_target_of_the_same_repository_looks_for_the_issue(customer: Customer, gitea: FakeGitea) -> None:
    first = make_tracker(customer, gitea.base_url, VAULT)
    [export_id] = approve(customer, first)
    gitea.next_creates(LostResponse.AFTER_CREATING)
    with delivering(ONE_TRY):
        settled(export_id)
        changes.remove(first, utc_now(), "user:1")
        again = make_tracker(customer, gitea.base_url, VAULT)
        targeting.retry_elsewhere(export_id, customer.account_id, again, utc_now(), "user:1", LOOPBACK_POLICY)
        execute("UPDATE exports SET due_at = schedule_began_at")
        wait_until(lambda: queries.get(export_id).status is ExportStatus.EXPORTED)
    assert (gitea.creates_of(export_id), len(gitea.issues_of(export_id)), gitea.lookups) == (1, 1, 1)


def test_exports_blocked_by_a_wrong_token_are_delivered_once_after_a_new_token_and_a_resumption(
    customer: Customer, gitea: FakeGitea
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT, token="an expired token")
    limit_target(target_id, 60)
    ids = approve(customer, target_id, 5)
    with delivering():
        wait_until(lambda: statuses() == {"blocked": 5})
        assert {queries.get(each).status_reason for each in ids} == {"tracker_token_rejected"}
        target = targets.get(target_id, None)
        assert (target.status, target.status_reason) == (TargetStatus.BLOCKED, "tracker_token_rejected")
        assert (target.validation_status, target.validation_reason) == ("failed", "tracker_token_rejected")
        [another] = make_exports(customer, 1, utc_now())
        with pytest.raises(ValidationFailed) as refused:
            transitions.approve(
                another, customer.account_id, Approval(target_id, None), utc_now(), "user:1", LOOPBACK_POLICY
            )
        assert "tracker_token_rejected" in refused.value.problems[0].message
        execute("UPDATE exports SET status = 'failed', status_reason = 'tracker_rejected' WHERE id = ?", (ids[0],))
        limit_target(target_id, None)
        with transaction():
            targets.set_secret(target_id, TOKEN, VAULT, utc_now())
            targets.change_status(target_id, "resume", utc_now(), "user:1")
            assert transitions.requeue_blocked(target_id, utc_now(), "user:1") == 4
            assert transitions.requeue_blocked(target_id, utc_now(), "user:1") == 0
        wait_until(lambda: statuses() == {"exported": 4, "failed": 1, "prepared": 1})
    assert sorted(len(gitea.issues_of(each)) for each in ids) == [0, 1, 1, 1, 1]
    resumed = rows("SELECT subject_id, reason FROM audit_entries WHERE action = 'retry' ORDER BY subject_id")
    assert resumed == [(each, "target_resumed") for each in sorted(ids[1:])]
    assert targets.get(target_id, None).validation_status == "passed"


class ReplacedMeanwhile(QuickGitea):
    """A Gitea whose target gets a valid token while an attempt with the former token is under way."""

    target_id = ""

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        if access.token != TOKEN:
            with connection():
                targets.set_secret(self.target_id, TOKEN, VAULT, utc_now())
        return (yield from super().create(access, ticket))


def test_an_attempt_refused_for_a_replaced_token_is_repeated(customer: Customer, gitea: FakeGitea) -> None:
    tracker = ReplacedMeanwhile()
    tracker.target_id = make_tracker(customer, gitea.base_url, VAULT, token="an expired token")
    [export_id] = approve(customer, tracker.target_id)
    with delivering(tracker=tracker):
        wait_until(lambda: statuses() == {"exported": 1})
    assert targets.get(tracker.target_id, None).status is TargetStatus.ACTIVE
    assert rows("SELECT error_code FROM attempts ORDER BY number") == [("tracker_token_rejected",), (None,)]
    assert len(gitea.issues_of(export_id)) == 1


def test_a_tracker_at_its_rate_limit_holds_up_no_other_target(
    customer: Customer, gitea: FakeGitea, receiver: CountingReceiver
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    limit_target(target_id, 60)
    approve(customer, target_id, 30)
    webhook = make_target(customer, receiver.url())
    ids = approve(customer, webhook.id, 100)
    with delivering():
        wait_until(lambda: all(queries.get(each).status is ExportStatus.EXPORTED for each in ids))
        paced = rows("SELECT COUNT(*) FROM exports WHERE target_id = ? AND status = 'exported'", (target_id,))[0][0]
    assert paced < 30
    assert rows("SELECT DISTINCT attempts FROM exports WHERE target_id = ? ORDER BY 1", (target_id,))[0] == (0,)


def test_a_success_that_used_up_the_limit_holds_the_following_exports(customer: Customer, gitea: FakeGitea) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    execute("UPDATE targets SET ramp = 1, concurrency = 1 WHERE id = ?", (target_id,))
    approve(customer, target_id, 3)
    gitea.limit_headers = {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": str(int(utc_now().timestamp()) + 3600)}
    with delivering():
        wait_until(lambda: targets.get(target_id, None).held_until is not None)
        target = targets.get(target_id, None)
        assert target.shown_status(utc_now()) == (TargetStatus.PAUSED, RATE_LIMITED)
        assert (target.connected_status, target.failures_in_row) == ("connected", 0)
    assert len(gitea.issues) == 1
    assert statuses() == {"exported": 1, "approved": 2}


@pytest.mark.parametrize("refusal", [Refusal(422, body=TOKEN.encode()), Refusal(500, {"X-Token": TOKEN}, TOKEN.encode())])
def test_the_token_is_in_no_row_and_no_log_line(
    customer: Customer, gitea: FakeGitea, caplog: pytest.LogCaptureFixture, refusal: Refusal
) -> None:
    [export_id] = approve(customer, make_tracker(customer, gitea.base_url, VAULT))
    gitea.refusal = refusal
    with caplog.at_level(logging.DEBUG), delivering(ONE_TRY):
        settled(export_id)
    lines = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert "attempt ended" in lines
    assert canaries.traces({"the log": lines.encode(), **canaries.columns()}, [TOKEN]) == []
    assert "[redacted]" in rows("SELECT answer FROM attempts")[0][0]
