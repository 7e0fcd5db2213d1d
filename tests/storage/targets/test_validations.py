"""Validations: which targets are due, that one worker claims each, and what is stored of the result."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.base.errors import TargetNotFound
from schemas.base.timestamps import from_ms, to_ms
from schemas.targets.target import Target, TargetRequest
from schemas.targets.validations import EXPIRES_SOON, Validation
from storage.db import schema_version
from storage.db.engine import close_database, connection, database, execute, open_database, rows, transaction
from storage.targets import targets, validations
from storage.targets.validations import RequestedValidation, ValidationJob
from tests.support.factories import DEFAULT_SECRET, NOW, Customer, make_customer, make_target

DAY = timedelta(days=1)
MOMENT = timedelta(milliseconds=1)
LEASE_S = 30.0
LATER = NOW + timedelta(seconds=1)
LAPSED = LATER + timedelta(seconds=LEASE_S)


def make_watched(customer: Customer) -> Target:
    """Store a target whose regular validation is due a day after its creation, as an installation does."""
    target = make_target(customer)
    execute("UPDATE targets SET validation_due_at = ? WHERE id = ?", (to_ms(NOW + DAY), target.id))
    return target


@pytest.fixture
def target(customer: Customer) -> Target:
    return make_watched(customer)


def received_at(target: Target, moment: datetime) -> None:
    """Store that a delivery succeeded at a moment."""
    assert execute("UPDATE targets SET last_success_at = ?", (to_ms(moment),)) == 1


def ask(target: Target, now: datetime = NOW) -> datetime:
    return validations.request(target.id, target.account_id, now, "user:test")


def claim(now: datetime) -> ValidationJob | None:
    return validations.claim_next(now, LEASE_S)


def claimed(now: datetime) -> ValidationJob:
    job = claim(now)
    assert job is not None
    return job


def state(target: Target) -> tuple[Any, ...]:
    after = targets.get(target.id, None)
    return after.validation_status, after.validation_reason, after.validated_at, after.connected_status, after.status.value


def audited(target: Target) -> list[tuple[Any, ...]]:
    reported = rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (target.id,))
    return reported[1:]


# ---- which targets are due


def test_a_new_target_is_validated_a_day_after_its_creation(customer: Customer) -> None:
    request = TargetRequest("generic_webhook", "https://tracker.example.com/hook", None, "Tracker", None)
    target = targets.create(request, customer.account_id, "self-hosted", DEFAULT_SECRET, NOW, "user:test")
    assert claim(NOW + DAY - MOMENT) is None
    job = claimed(NOW + DAY)
    assert (job.target_id, job.base_url) == (target.id, target.base_url)


def test_a_validated_target_is_validated_again_a_day_later(target: Target) -> None:
    targets.record_validation(target.id, None, Validation(), NOW + DAY, "operator")
    assert claim(NOW + 2 * DAY - MOMENT) is None
    assert claimed(NOW + 2 * DAY).target_id == target.id


def test_a_target_with_successful_deliveries_is_not_validated(target: Target) -> None:
    received_at(target, NOW + 0.5 * DAY)
    assert claim(NOW + DAY) is None
    assert claim(NOW + 1.5 * DAY - MOMENT) is None
    assert claimed(NOW + 1.5 * DAY).target_id == target.id
    assert audited(target) == []


def test_a_success_of_a_day_ago_no_longer_postpones_a_validation(target: Target) -> None:
    received_at(target, NOW)
    assert claimed(NOW + DAY).target_id == target.id


#: Seconds until the next validation, after each failed validation in a row.
AFTER_FAILURES: Final = [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_a_target_that_failed_is_validated_again_soon_and_then_later_each_time(target: Target) -> None:
    at = NOW + DAY
    for seconds in AFTER_FAILURES:
        assert validations.finish(claimed(at), Validation("connect_refused"), at, "worker")
        due_at = at + timedelta(seconds=seconds)
        assert claim(due_at - MOMENT) is None
        at = due_at
    assert validations.finish(claimed(at), Validation(), at, "worker")
    assert claim(at + DAY - MOMENT) is None
    assert validations.finish(claimed(at + DAY), Validation("tls_failed"), at + DAY, "worker")
    assert claimed(at + DAY + timedelta(seconds=30)).target_id == target.id


def test_a_success_from_before_the_failure_postpones_no_validation(target: Target) -> None:
    received_at(target, NOW + DAY - MOMENT)
    targets.record_validation(target.id, None, Validation("tls_failed"), NOW + DAY, "user:test")
    assert claimed(NOW + DAY + timedelta(seconds=30)).target_id == target.id


@pytest.mark.parametrize("status", ["inactive", "blocked", "disabled"])
def test_a_failed_target_that_is_turned_on_again_is_validated_within_an_hour(target: Target, status: str) -> None:
    targets.record_validation(target.id, None, Validation("tls_failed"), NOW, "user:test")
    execute("UPDATE targets SET status = ?", (status,))
    assert claim(NOW + timedelta(minutes=1)) is None
    execute("UPDATE targets SET status = 'active'")
    assert claimed(NOW + timedelta(minutes=61)).target_id == target.id


# Columns: status of a target; whether it is validated regularly.
STATUSES = [
    ("active", True),
    ("paused", True),  # its exports wait to be delivered later
    ("inactive", False),
    ("blocked", False),
    ("disabled", False),
]


@pytest.mark.parametrize(("status", "is_looked_at"), STATUSES)
def test_a_target_that_is_off_is_validated_only_on_request(target: Target, status: str, is_looked_at: bool) -> None:
    execute("UPDATE targets SET status = ?", (status,))
    assert (claim(NOW + 3 * DAY) is not None) == is_looked_at
    ask(target, NOW + 5 * DAY)
    assert claimed(NOW + 5 * DAY).target_id == target.id


def test_a_target_that_is_turned_on_again_is_validated_within_a_day(target: Target) -> None:
    targets.change_status(target.id, "disable", NOW, "operator")
    assert claim(NOW + 3 * DAY) is None
    targets.change_status(target.id, "resume", NOW + 3 * DAY, "operator")
    assert claimed(NOW + 4 * DAY).target_id == target.id


def test_a_requested_validation_is_claimed_even_after_a_recent_success(target: Target) -> None:
    received_at(target, NOW)
    ask(target)
    assert claimed(LATER).target_id == target.id


def test_a_worker_whose_clock_is_behind_still_validates(target: Target) -> None:
    ask(target, NOW)
    assert claimed(NOW - timedelta(minutes=5)).target_id == target.id


def test_requested_validations_precede_scheduled_ones(customer: Customer) -> None:
    overdue, waited_for = make_watched(customer), make_watched(customer)
    ask(waited_for, NOW + 3 * DAY)
    assert [claimed(NOW + 3 * DAY).target_id for _ in range(2)] == [waited_for.id, overdue.id]
    assert claim(NOW + 3 * DAY) is None


def test_targets_that_need_no_validation_do_not_delay_due_ones(customer: Customer) -> None:
    for _ in range(3):
        spared = make_watched(customer)
        execute("UPDATE targets SET status = 'disabled', validation_due_at = 1 WHERE id = ?", (spared.id,))
    due = make_watched(customer)
    assert claimed(NOW + DAY).target_id == due.id


# ---- one at a time


def test_concurrent_workers_validate_each_target_once(customer: Customer) -> None:
    expected = sorted(make_watched(customer).id for _ in range(20))

    def take_all(_: int) -> list[str]:
        taken = []
        with connection():
            while job := claim(NOW + DAY):
                taken.append(job.target_id)
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [target_id for part in pool.map(take_all, range(8)) for target_id in part]
    assert sorted(taken) == expected


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_the_validation_of_a_dead_worker_is_repeated_by_another(target: Target, is_asked_for: bool) -> None:
    began_at = NOW + DAY
    asked_at = ask(target, began_at) if is_asked_for else None
    first = claimed(began_at)
    lapsed = began_at + timedelta(seconds=LEASE_S)
    assert claim(lapsed - MOMENT) is None
    second = claimed(lapsed)
    assert second.target_id == first.target_id
    assert not validations.finish(first, Validation("tls_failed"), lapsed, "slow")
    if asked_at is not None:
        assert validations.get(target.id, asked_at, lapsed) == RequestedValidation(has_begun=True, is_over=False)
    assert validations.finish(second, Validation(), lapsed, "quick")
    assert state(target)[:3] == ("passed", None, lapsed)


def test_a_request_during_a_validation_gets_the_result_of_that_validation(target: Target) -> None:
    job = claimed(NOW + DAY)
    asked_at = ask(target, NOW + DAY)
    assert validations.get(target.id, asked_at, NOW + DAY) == RequestedValidation(has_begun=True, is_over=False)
    assert claim(NOW + DAY) is None
    validations.finish(job, Validation(), NOW + DAY, "worker")
    assert validations.get(target.id, asked_at, NOW + DAY).is_over
    assert claim(NOW + DAY + timedelta(hours=1)) is None


def test_two_requests_wait_for_the_same_validation(target: Target) -> None:
    first, second = ask(target, NOW), ask(target, LATER)
    assert first == second == NOW
    job = claimed(LATER)
    assert claim(LATER) is None
    validations.finish(job, Validation(), LATER, "worker")
    assert validations.get(target.id, first, LATER).is_over


def test_a_late_result_counts_if_no_other_validation_has_begun(target: Target) -> None:
    job = claimed(NOW + DAY)
    assert validations.finish(job, Validation("connect_timeout"), NOW + 2 * DAY, "worker")
    assert state(target)[:3] == ("failed", "connect_timeout", NOW + 2 * DAY)


def test_a_result_is_written_once(target: Target) -> None:
    job = claimed(NOW + DAY)
    assert validations.finish(job, Validation(), NOW + DAY, "worker")
    assert not validations.finish(job, Validation("tls_failed"), NOW + DAY, "worker")
    assert state(target)[0] == "passed"


# ---- cancellations


def test_a_validation_that_no_worker_claimed_is_cancelled_and_passes(target: Target) -> None:
    asked_at = ask(target)
    assert validations.get(target.id, asked_at, NOW) == RequestedValidation(has_begun=False, is_over=False)
    assert validations.cancel_unstarted(target.id, asked_at, LATER, "user:test")
    assert validations.get(target.id, asked_at, LATER).is_over
    assert state(target) == ("passed", None, LATER, "unknown", "active")
    assert claim(LATER + DAY - MOMENT) is None
    assert audited(target) == [("user:test", "ask_validation", None), ("user:test", "validate_target", "passed")]
    assert not validations.cancel_unstarted(target.id, asked_at, LATER, "user:test")


@pytest.mark.parametrize("reason", ["connect_refused", "tls_certificate", "certificate_expired", "deadline_exceeded"])
def test_a_cancelled_validation_keeps_a_failure_of_the_connection(target: Target, reason: str) -> None:
    targets.record_validation(target.id, None, Validation(reason), NOW, "worker")
    asked_at = ask(target)
    assert validations.cancel_unstarted(target.id, asked_at, LATER, "user:test")
    assert validations.get(target.id, asked_at, LATER).is_over
    assert state(target)[:3] == ("failed", reason, NOW)
    assert claimed(LATER).target_id == target.id


@pytest.mark.parametrize("reason", ["dns_not_found", "address_private", "port_not_allowed"])
def test_a_cancelled_validation_clears_a_failure_of_the_address(target: Target, reason: str) -> None:
    targets.record_validation(target.id, None, Validation(reason), NOW, "worker")
    assert validations.cancel_unstarted(target.id, ask(target), LATER, "user:test")
    assert state(target)[:3] == ("passed", None, LATER)


def test_a_validation_that_a_worker_has_begun_cannot_be_cancelled(target: Target) -> None:
    asked_at = ask(target)
    job = claimed(NOW)
    assert not validations.cancel_unstarted(target.id, asked_at, LATER, "user:test")
    assert not validations.get(target.id, asked_at, LATER).is_over
    assert validations.finish(job, Validation("connect_refused"), LATER, "worker")
    assert state(target)[:2] == ("failed", "connect_refused")


def test_a_validation_abandoned_by_a_dead_worker_can_be_cancelled(target: Target) -> None:
    claimed(LATER + DAY)
    asked_at = ask(target, LAPSED + DAY)
    assert validations.get(target.id, asked_at, LAPSED + DAY) == RequestedValidation(has_begun=False, is_over=False)
    assert validations.cancel_unstarted(target.id, asked_at, LAPSED + DAY, "user:test")
    assert state(target)[:3] == ("passed", None, LAPSED + DAY)


def test_a_result_is_written_even_if_no_request_waits_any_longer(target: Target) -> None:
    asked_at = ask(target)
    job = claimed(NOW)
    assert validations.stop_waiting(target.id, asked_at, LATER, "user:test")
    assert validations.get(target.id, asked_at, LATER).is_over
    assert state(target)[:3] == ("passed", None, LATER)
    assert validations.finish(job, Validation("deadline_exceeded"), LAPSED, "worker")
    assert state(target)[:3] == ("failed", "deadline_exceeded", LAPSED)


def test_other_results_meanwhile_do_not_end_a_requested_validation(target: Target) -> None:
    asked_at = ask(target)
    targets.record_validation(target.id, None, Validation("dns_timeout"), NOW, "user:other")
    assert not validations.get(target.id, asked_at, NOW).is_over
    job = claimed(LATER)
    targets.record_validation(target.id, None, Validation("dns_timeout"), LATER, "user:other")
    assert claim(LATER) is None
    assert validations.finish(job, Validation(), LATER, "worker")


def test_every_request_is_completed_whatever_concurrent_requests_and_workers_do(customer: Customer) -> None:
    watched = [make_watched(customer) for _ in range(3)]

    def act(number: int) -> bool:
        """Request a validation, and either run it as a worker does, or cancel it, or stop waiting for it."""
        target = watched[number % 3]
        with connection():
            asked_at = ask(target, NOW + number * MOMENT)
            if number % 4 < 2:
                job = claim(NOW)
                if job is not None:
                    validations.finish(job, Validation("connect_refused"), LATER, "worker")
            elif number % 4 == 2:
                validations.cancel_unstarted(target.id, asked_at, LATER, "user:test")
            return validations.stop_waiting(target.id, asked_at, LATER, "user:test") or True

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(act, range(120)))
    left = rows("SELECT COUNT(*) FROM targets WHERE validation_asked_at IS NOT NULL OR validation_lease IS NOT NULL")
    assert left == [(0,)]
    due_at = {LATER, LATER + DAY, *(LATER + timedelta(seconds=seconds) for seconds in AFTER_FAILURES)}
    assert {from_ms(due) for (due,) in rows("SELECT validation_due_at FROM targets")} <= due_at


@pytest.mark.parametrize("target_id", ["tgt_x", "tgt_\0", "theirs"])
def test_a_validation_of_another_accounts_target_is_refused(target: Target, target_id: str) -> None:
    with pytest.raises(TargetNotFound):
        validations.request(target.id if target_id == "theirs" else target_id, make_customer().account_id, NOW, "user:test")
    assert claim(LATER) is None
    assert audited(target) == []


# ---- results

# Columns: the result; the validation's status and reason; then the target's connection and status.
FOUND = [
    (Validation(), ("passed", None), ("connected", "active")),
    (Validation(EXPIRES_SOON), ("passed", EXPIRES_SOON), ("connected", "active")),
    # A failed lookup is shown, but does not turn the target off.
    (Validation("dns_timeout"), ("failed", "dns_timeout"), ("failing", "active")),
    (Validation("connect_refused"), ("failed", "connect_refused"), ("failing", "active")),
    (Validation("tls_certificate"), ("failed", "tls_certificate"), ("failing", "active")),
    # A refusal by our own policy blocks the target.
    (Validation("address_private", is_refused=True), ("failed", "address_private"), ("connected", "blocked")),
]


@pytest.mark.parametrize(("found", "reported", "marked"), FOUND)
def test_a_result_is_recorded_with_the_target(
    target: Target, found: Validation, reported: tuple[str, str | None], marked: tuple[str, str]
) -> None:
    execute("UPDATE targets SET connected_status = 'connected'")
    at = NOW + DAY
    assert validations.finish(claimed(at), found, at, "worker")
    assert state(target) == (*reported, at, *marked)
    blocked = [("worker", "target_blocked", reported[1])] if found.is_refused else []
    assert audited(target) == [("worker", "validate_target", reported[1] or "passed"), *blocked]


@pytest.mark.parametrize("connected", ["unknown", "failing"])
def test_a_passed_validation_changes_neither_status_nor_connection_status(target: Target, connected: str) -> None:
    execute("UPDATE targets SET status = 'blocked', status_reason = 'x', connected_status = ?", (connected,))
    ask(target)
    validations.finish(claimed(NOW), Validation(), LATER, "worker")
    assert state(target) == ("passed", None, LATER, connected, "blocked")
    assert targets.get(target.id, None).last_success_at is None


# ---- targets of earlier versions

#: A target of an earlier version: with times of creation and validation, but without a time of the next validation.
OLD = (
    "INSERT INTO targets (id, account_id, provider_key, base_url, deployment_mode, name, status, connected_status, "
    "validated_at, created_at, updated_at) VALUES (?, 1, 'generic_webhook', 'https://a.example.com/', 'cloud', 'T', "
    "'active', 'unknown', ?, ?, 0)"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """An open database without tables, once of each kind."""
    is_file = request.param == "sqlite"
    server = None if is_file else request.getfixturevalue("postgres_server")
    open_database(f"sqlite:///{tmp_path / 'empty.db'}" if server is None else server.create_database())
    with connection():
        yield
    close_database()


@pytest.mark.usefixtures("empty")
def test_targets_of_an_earlier_version_are_validated_a_day_after_their_last_validation() -> None:
    def migrate(*names: str) -> None:
        for name in names:
            import_module(f"storage.db.migrations.{name}").up(None, database.obj)

    known = schema_version.known()
    migrate(*known[:2])
    with transaction():
        execute("INSERT INTO accounts VALUES (1, 'A', (1 = 1), 0)")
        execute(OLD, ("tgt_validated", to_ms(NOW), to_ms(NOW - DAY)))
        execute(OLD, ("tgt_never", None, to_ms(NOW + DAY)))
        execute(OLD, ("tgt_failed", to_ms(NOW), to_ms(NOW - DAY)))
        migrate(*known[2:5])
        execute("UPDATE targets SET validation_status = 'failed' WHERE id = 'tgt_failed'")
        migrate(*known[5:])
    # A failed validation now forbids approvals, so it is repeated at once.
    assert claimed(NOW).target_id == "tgt_failed"
    assert rows("SELECT validation_failures FROM targets ORDER BY id") == [(1,), (0,), (0,)]
    execute("UPDATE targets SET validation_due_at = NULL WHERE id = 'tgt_failed'")
    assert claim(NOW + DAY - MOMENT) is None
    assert claimed(NOW + DAY).target_id == "tgt_validated"
    assert claim(NOW + DAY) is None
    assert claimed(NOW + 2 * DAY - MOMENT).target_id == "tgt_validated"  # the worker of the last claim died
    assert claimed(NOW + 2 * DAY).target_id == "tgt_never"
