"""The effects of attempts on their targets, written once per tick, also beside other writers."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from schemas.base.timestamps import to_ms
from schemas.exports.delivery import CompletedAttempt, TargetEffect, TargetHealth
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, TargetEdit, TargetStatus
from schemas.targets.throttle_state import ThrottleState
from schemas.targets.validations import Validation
from schemas.trackers.failures import NOT_FOUND, TOKEN_REJECTED
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.secrets.vault import Vault
from storage.targets import changes, targets, throttle_state_sql, validations
from tests.support.factories import (
    DEFAULT_SECRET,
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    limit_target,
    make_approved,
    make_target,
    make_tracker,
)
from worker.delivery import throttle_writer
from worker.delivery.throttle import TargetEvent
from worker.delivery.throttle_writer import SentEffect, effects_of, log_events, write_effects

LATER: Final = NOW + timedelta(minutes=1)
VAULT: Final = Vault([b"k" * 32])
#: The URL of every webhook in these tests.
URL: Final = "https://tracker.example.com/hook"
HEALTHY: Final = TargetEffect("connected", health=TargetHealth.HEALTHY)
UNHEALTHY: Final = TargetEffect("failing", health=TargetHealth.UNHEALTHY)
BLOCKED: Final = TargetEffect("failing", TargetStatus.BLOCKED, "address_private", TargetHealth.UNHEALTHY)
GONE: Final = TargetEffect("failing", TargetStatus.DISABLED, "receiver_gone", TargetHealth.UNHEALTHY)
UNAUTHORIZED: Final = TargetEffect("failing", TargetStatus.BLOCKED, TOKEN_REJECTED, TargetHealth.UNHEALTHY)
LIMITED: Final = TargetEffect(health=TargetHealth.UNHEALTHY, is_overloaded=True, hold_s=30, hold_reason=RATE_LIMITED)


def record(target_id: str, *effects: TargetEffect, now: datetime = LATER) -> list[TargetEvent]:
    with transaction():
        return write_effects({target_id: sent(*effects)}, now, "worker").events


def sent(*effects: TargetEffect) -> list[SentEffect]:
    return [SentEffect(effect, URL) for effect in effects]


def state_of(target_id: str) -> ThrottleState:
    return throttle_state_sql.read([target_id])[target_id]


def status_of(target_id: str) -> tuple[str, str | None]:
    target = targets.get(target_id, None)
    return target.status.value, target.status_reason


def met(customer: Customer, target_id: str, effects: Sequence[TargetEffect]) -> list[CompletedAttempt]:
    """Return an attempt for each effect, all of claims of the target."""
    for _ in effects:
        make_approved(customer, target_id)
    claims = [claim for claim in claim_due(len(effects), NOW, 6, "worker") if claim.target_id == target_id]
    attempts = [completed_attempt(claim) for claim in claims]
    return [one._replace(verdict=one.verdict._replace(effect=effect)) for one, effect in zip(attempts, effects, strict=True)]


def test_effects_are_grouped_by_target_in_order_from_attempts_that_changed_their_exports(customer: Customer) -> None:
    one, other = make_target(customer).id, make_target(customer).id
    attempts = [*met(customer, one, [HEALTHY, UNHEALTHY, GONE]), *met(customer, other, [LIMITED])]
    moved = {attempt.claim.export_id for attempt in attempts} - {attempts[2].claim.export_id}
    assert effects_of(attempts, moved) == {one: sent(HEALTHY, UNHEALTHY), other: sent(LIMITED)}
    assert effects_of(attempts, set()) == {}


def test_the_effects_of_deliveries_are_stored_with_the_target(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, HEALTHY, UNHEALTHY)
    after = targets.get(target.id, None)
    assert (after.connected_status, after.last_success_at) == ("failing", LATER)
    assert after.status is TargetStatus.ACTIVE
    assert (state_of(target.id).failures_in_row, state_of(target.id).failing_since) == (1, LATER)


@pytest.mark.parametrize(("effect", "status"), [(BLOCKED, "blocked"), (GONE, "disabled")])
def test_a_late_response_turns_off_a_target_whose_breaker_is_open(
    customer: Customer, effect: TargetEffect, status: str
) -> None:
    target_id = make_target(customer).id
    record(target_id, *[UNHEALTHY] * 5)
    held = state_of(target_id)
    assert held.held_reason == BREAKER_OPEN
    record(target_id, effect)
    # The throttle state stays the same, and the target is turned off.
    assert replace(state_of(target_id), status=held.status, validation_status=held.validation_status) == held
    assert status_of(target_id) == (status, effect.reason)


def test_a_tick_writes_the_effects_of_all_its_targets_and_of_no_other(customer: Customer) -> None:
    healthy, unhealthy, held, other = (make_target(customer).id for _ in range(4))
    before = state_of(other)
    with transaction():
        write_effects({held: sent(LIMITED), healthy: sent(HEALTHY), unhealthy: sent(UNHEALTHY) * 5}, LATER, "worker")
    assert state_of(healthy).connected == "connected"
    assert (state_of(unhealthy).held_reason, state_of(unhealthy).held_until) == (BREAKER_OPEN, LATER + timedelta(seconds=1))
    assert (state_of(held).held_reason, state_of(held).held_until) == (RATE_LIMITED, LATER + timedelta(seconds=30))
    assert state_of(other) == before


def test_a_refused_address_blocks_the_target_with_its_reason(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, BLOCKED)
    assert status_of(target.id) == ("blocked", "address_private")
    entries = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 2")
    refused = ("worker", "validate_target", "address_private")
    assert entries == [("worker", "target_blocked", "address_private"), refused]


def validation_of(target_id: str) -> tuple[str | None, str | None, datetime | None]:
    target = targets.get(target_id, None)
    return target.validation_status, target.validation_reason, target.validated_at


@pytest.mark.parametrize("status", ["active", "paused"])
def test_a_refused_address_is_a_failed_validation(customer: Customer, status: str) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?", (status,))
    record(target.id, BLOCKED)
    assert validation_of(target.id) == ("failed", "address_private", LATER)


@pytest.mark.parametrize("effect", [UNHEALTHY, GONE, LIMITED])
def test_a_delivery_that_fails_is_no_validation(customer: Customer, effect: TargetEffect) -> None:
    target = make_target(customer)
    record(target.id, effect)
    assert validation_of(target.id) == ("passed", None, NOW)


def test_a_delivery_passes_a_failed_validation(customer: Customer) -> None:
    target = make_target(customer)
    # A target at rest: only the failed validation makes a success worth writing.
    execute("UPDATE targets SET ramp = 16, connected_status = 'connected', last_success_at = ?", (to_ms(LATER),))
    targets.record_validation(target.id, None, Validation("connect_refused"), NOW, "worker")
    execute("UPDATE targets SET connected_status = 'connected'")
    record(target.id, UNHEALTHY)
    assert validation_of(target.id) == ("failed", "connect_refused", NOW)
    record(target.id, HEALTHY, HEALTHY)
    assert validation_of(target.id) == ("passed", None, LATER)
    [entry] = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("worker", "validate_target", "delivered")
    assert rows("SELECT validation_failures, validation_due_at FROM targets") == [(0, to_ms(LATER + timedelta(days=1)))]
    record(target.id, HEALTHY, now=LATER + timedelta(seconds=5))
    assert validation_of(target.id) == ("passed", None, LATER)


def test_a_delivery_leaves_a_validation_that_is_requested_or_under_way(customer: Customer) -> None:
    target = make_target(customer)
    targets.record_validation(target.id, None, Validation("connect_refused"), NOW, "worker")
    validations.request(target.id, None, NOW, "user:test")
    record(target.id, HEALTHY)
    assert validation_of(target.id) == ("passed", None, LATER)
    job = validations.claim_next(LATER, 30)
    assert job is not None
    record(target.id, HEALTHY)
    assert validations.finish(job, Validation("tls_failed"), LATER, "worker")
    assert validation_of(target.id) == ("failed", "tls_failed", LATER)


def test_the_last_reason_of_a_target_that_is_turned_off_twice_is_stored(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, GONE, BLOCKED, HEALTHY)
    assert status_of(target.id) == ("blocked", "address_private")


def test_a_paused_target_is_turned_off_too(customer: Customer) -> None:
    target = make_target(customer)
    targets.change_status(target.id, "pause", NOW, "operator")
    record(target.id, GONE)
    assert status_of(target.id) == ("disabled", "receiver_gone")


@pytest.mark.parametrize("status", ["inactive", "blocked", "disabled"])
def test_a_delivery_changes_no_target_that_is_off_already(customer: Customer, status: str) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET status = ?, status_reason = 'operator' WHERE id = ?", (status, target.id))
    logged = rows("SELECT COUNT(*) FROM audit_entries")
    record(target.id, GONE)
    assert status_of(target.id) == (status, "operator")
    assert rows("SELECT COUNT(*) FROM audit_entries") == logged


def test_a_target_that_has_only_failed_for_five_days_is_disabled(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, UNHEALTHY, now=NOW)
    record(target.id, UNHEALTHY, now=NOW + timedelta(days=4, hours=23))
    assert status_of(target.id) == ("active", None)
    record(target.id, UNHEALTHY, now=NOW + timedelta(days=5))
    assert status_of(target.id) == ("disabled", "failing_for_days")
    [entry] = rows("SELECT actor, action, reason FROM audit_entries ORDER BY id DESC LIMIT 1")
    assert entry == ("worker", "target_disabled", "failing_for_days")


def test_a_target_with_a_success_in_five_days_stays_active(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, UNHEALTHY, now=NOW)
    record(target.id, HEALTHY, now=NOW + timedelta(days=3))
    record(target.id, UNHEALTHY, now=NOW + timedelta(days=6))
    assert status_of(target.id) == ("active", None)


def test_resuming_a_target_restarts_the_five_days_of_failures(customer: Customer) -> None:
    target = make_target(customer)
    record(target.id, UNHEALTHY, now=NOW)
    record(target.id, UNHEALTHY, now=NOW + timedelta(days=5))
    targets.change_status(target.id, "resume", NOW + timedelta(days=6), "operator")
    record(target.id, UNHEALTHY, now=NOW + timedelta(days=6))
    assert status_of(target.id) == ("active", None)


def test_a_change_of_a_target_is_logged_once(customer: Customer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, throttle_writer.__name__)
    target_id = make_target(customer).id
    tick = timedelta(minutes=1)
    for at, effects in enumerate(
        [
            [HEALTHY, UNHEALTHY],  # nothing to log
            [LIMITED],  # held
            [LIMITED, LIMITED],  # held again, after the hold had ended
            [UNHEALTHY] * 3,  # five failures with the one before, two of them overloads: the breaker opens
            [UNHEALTHY],  # a probe: nothing new
            [HEALTHY],  # the breaker closes
            [GONE],
            [GONE],  # the target is disabled already
        ]
    ):
        log_events(record(target_id, *effects, now=LATER + at * tick))
    logged = [(each.levelname, each.message, vars(each)["target_id"], vars(each)["reason"]) for each in caplog.records]
    paused = ("INFO", "target paused, its receiver asked for it", target_id, RATE_LIMITED)
    assert logged == [
        paused,
        paused,
        ("WARNING", "circuit breaker opened, target gets single attempts", target_id, None),
        ("INFO", "circuit breaker closed, target responds", target_id, None),
        ("WARNING", "target disabled, nothing more is sent to it", target_id, "receiver_gone"),
    ]


def test_the_row_of_a_healthy_target_is_written_at_most_once_a_second(customer: Customer) -> None:
    target = make_target(customer)
    execute("UPDATE targets SET ramp = 16")
    record(target.id, HEALTHY, now=NOW)
    for tick in range(1, 50):
        record(target.id, HEALTHY, now=NOW + timedelta(milliseconds=20 * tick))
    assert targets.get(target.id, None).last_success_at == NOW
    record(target.id, HEALTHY, now=NOW + timedelta(seconds=1))
    assert targets.get(target.id, None).last_success_at == NOW + timedelta(seconds=1)


def test_no_effects_or_effects_of_unknown_targets_change_nothing(customer: Customer) -> None:
    target = make_target(customer)
    with transaction():
        write_effects({}, LATER, "worker")
        write_effects({"tgt_gone": sent(UNHEALTHY)}, LATER, "worker")
    assert targets.get(target.id, DEFAULT_SECRET) == target


# ---------------------------------------------------------------- after an edit


def move(target_id: str) -> None:
    changes.edit(target_id, TargetEdit(base_url="https://new.example.com/hook"), DEFAULT_SECRET, NOW, "operator")


@pytest.mark.parametrize("effects", [[HEALTHY], [UNHEALTHY] * 5, [LIMITED], [GONE], [BLOCKED]])
def test_effects_of_attempts_at_the_former_url_change_nothing(customer: Customer, effects: list[TargetEffect]) -> None:
    target_id = make_target(customer).id
    move(target_id)
    targets.record_validation(target_id, None, Validation("connect_refused"), NOW, "worker")
    before, logged = rows("SELECT * FROM targets"), rows("SELECT COUNT(*) FROM audit_entries")
    assert record(target_id, *effects) == []
    assert (rows("SELECT * FROM targets"), rows("SELECT COUNT(*) FROM audit_entries")) == (before, logged)


def test_an_attempt_at_the_new_url_counts_beside_one_at_the_former(customer: Customer) -> None:
    target_id = make_target(customer).id
    move(target_id)
    with transaction():
        found = [*sent(LIMITED, GONE), SentEffect(UNHEALTHY, "https://new.example.com/hook"), *sent(HEALTHY)]
        written = write_effects({target_id: found}, LATER, "worker").states[target_id]
    assert written == state_of(target_id)
    assert (written.status, written.held_until, written.failures_in_row) == (TargetStatus.ACTIVE, None, 1)


def attempt_refused(customer: Customer, target_id: str, effect: TargetEffect) -> Callable[[], None]:
    """Begin an attempt now; return a function that writes its effect."""
    [attempt] = met(customer, target_id, [effect])

    def write() -> None:
        with transaction():
            write_effects(effects_of([attempt], {attempt.claim.export_id}), LATER, "worker")

    return write


def test_a_late_refusal_of_a_replaced_token_does_not_block_its_tracker(customer: Customer) -> None:
    target_id = make_tracker(customer, "https://gitea.example.com/o/r", VAULT)
    late = attempt_refused(customer, target_id, UNAUTHORIZED)
    targets.set_secret(target_id, "another token", VAULT, LATER)
    late()
    assert status_of(target_id) == ("active", None)
    assert targets.get(target_id, None).connected_status == "unknown"


def test_a_late_refusal_of_former_settings_does_not_block_their_tracker(customer: Customer) -> None:
    target_id = make_tracker(customer, "https://gitea.example.com/o/r", VAULT)
    late = attempt_refused(customer, target_id, replace(UNAUTHORIZED, reason=NOT_FOUND))
    changes.edit(target_id, TargetEdit(provider_settings={"labels": ["risk"]}), DEFAULT_SECRET, LATER, "operator")
    late()
    assert status_of(target_id) == ("active", None)


def test_a_refusal_of_the_token_that_a_tracker_still_has_blocks_it(customer: Customer) -> None:
    target_id = make_tracker(customer, "https://gitea.example.com/o/r", VAULT)
    attempt_refused(customer, target_id, UNAUTHORIZED)()
    assert status_of(target_id) == ("blocked", TOKEN_REJECTED)


@pytest.mark.parametrize(("effect", "status"), [(BLOCKED, "blocked"), (GONE, "disabled")])
def test_effects_unrelated_to_the_token_are_applied_after_it_was_replaced(
    customer: Customer, effect: TargetEffect, status: str
) -> None:
    target_id = make_tracker(customer, "https://gitea.example.com/o/r", VAULT)
    late = attempt_refused(customer, target_id, effect)
    targets.set_secret(target_id, "another token", VAULT, LATER)
    late()
    assert status_of(target_id) == (status, effect.reason)


# ---------------------------------------------------------------- concurrent writers


def together(*works: Callable[[], Any]) -> None:
    """Run functions at once, each on its own thread and connection; raise the first exception of any of them."""

    def run(work: Callable[[], Any]) -> None:
        with connection():
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        for each in [pool.submit(run, work) for work in works]:
            each.result(timeout=60)


def test_workers_that_write_the_same_targets_in_any_order_never_deadlock(customer: Customer) -> None:
    """PostgreSQL ends one of two transactions that deadlock with an error, which would fail this test."""
    ids = [make_target(customer).id for _ in range(6)]

    def mark(order: Sequence[str], times: int = 60) -> None:
        for _ in range(times):
            with transaction():
                write_effects({target_id: sent(UNHEALTHY, LIMITED) for target_id in order}, LATER, "worker")

    together(lambda: mark(ids), lambda: mark(ids[::-1]), lambda: mark(ids[3:] + ids[:3]))
    for target_id in ids:
        assert (state_of(target_id).concurrency, state_of(target_id).held_reason) == (1.0, RATE_LIMITED)


def test_simultaneous_effects_of_several_workers_all_count(customer: Customer) -> None:
    target = make_target(customer)
    # Four failures do not open the breaker.
    together(*[lambda: record(target.id, UNHEALTHY)] * 4)
    assert state_of(target.id).failures_in_row == 4


class VaultWithAWorkerAtWork(Vault):
    """Encrypts while a worker writes, if the database allows it: on SQLite, the worker has to wait for the operator."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__([b"k" * 32])
        self._work = work

    def seal(self, secret: str, context: str) -> bytes:
        if not is_sqlite():
            together(self._work)
        return super().seal(secret, context)


def test_a_new_secret_does_not_undo_simultaneous_effects_of_a_worker(customer: Customer) -> None:
    target = make_target(customer)

    def block() -> None:
        record(target.id, BLOCKED)

    targets.set_secret(target.id, "s", VaultWithAWorkerAtWork(block), LATER)
    if is_sqlite():
        block()
    assert status_of(target.id) == ("blocked", "address_private")
    assert targets.get(target.id, None).connected_status == "failing"
    assert targets.get(target.id, None).secret_fingerprint == VAULT.fingerprint("s")


def test_a_hold_survives_simultaneous_changes_of_its_target(customer: Customer) -> None:
    target = make_target(customer)

    def pause_and_limit() -> None:
        targets.change_status(target.id, "pause", NOW, "operator")
        limit_target(target.id, 30)

    together(lambda: record(target.id, LIMITED), pause_and_limit)
    assert rows("SELECT status, max_per_minute, held_until, held_reason FROM targets") == [
        ("paused", 30, to_ms(LATER + timedelta(seconds=30)), RATE_LIMITED)
    ]


def test_effects_do_not_change_a_target_that_was_edited_between_the_read_and_the_lock(customer: Customer) -> None:
    target = make_target(customer)

    def record_limit() -> list[TargetEvent]:
        with connection():
            return record(target.id, LIMITED, GONE)

    with ThreadPoolExecutor(1) as pool:
        with transaction():
            move(target.id)
            moved = rows("SELECT * FROM targets")
            late = pool.submit(record_limit)
            # On PostgreSQL, the worker has read the former URL and waits for the lock; on SQLite, it waits for its
            # transaction.
            with pytest.raises(TimeoutError):
                late.result(timeout=0.3)
        assert late.result(timeout=10) == []
    assert rows("SELECT * FROM targets") == moved
