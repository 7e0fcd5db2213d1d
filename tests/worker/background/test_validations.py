"""A validation holds no database connection, is recorded once, and delays no other validation."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pytest

from schemas.base.timestamps import to_ms
from schemas.targets.target import Target
from schemas.targets.validations import Validation
from storage.db.engine import connection, database, execute, release, rows
from storage.targets import targets, validations
from storage.targets.validations import ValidationJob
from tests.support.factories import NOW, Customer, make_target
from tests.support.fakes import NO_TRACKERS
from tests.support.processes.workers import wait_until
from tests.support.worker.account_tasks import run_once
from worker.background.tasks import BackgroundTask, TaskThread
from worker.background.validations import ValidationTask

LEASE_S: Final = 30.0
DUE: Final = NOW + timedelta(days=1)
PASSED: Final = Validation()


class FakeInspect:
    """Records the targets it inspects, and whether a connection was held meanwhile; returns the configured result."""

    def __init__(self, found: Validation | Exception = PASSED, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.seen: list[str] = []
        self.held: list[bool] = []
        self._found = found
        self._meanwhile = meanwhile

    def __call__(self, due: ValidationJob) -> Validation:
        self.seen.append(due.base_url)
        self.held.append(not database.is_closed())
        self._meanwhile()
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def make_due(customer: Customer, base_url: str = "https://tracker.example.com/hook") -> Target:
    """Store a target whose regular validation is due at `DUE`."""
    target = make_target(customer, base_url)
    execute("UPDATE targets SET validation_due_at = ? WHERE id = ?", (to_ms(DUE), target.id))
    return target


def validation_task(inspect: FakeInspect, now: datetime = DUE) -> ValidationTask:
    return ValidationTask(inspect, "worker", lambda: now, LEASE_S, NO_TRACKERS)


def test_without_a_due_target_no_validation_runs(customer: Customer) -> None:
    make_due(customer)
    inspect = FakeInspect()
    assert not run_once(validation_task(inspect, NOW))
    assert inspect.seen == []


def test_the_result_of_a_validation_is_recorded(customer: Customer) -> None:
    target = make_due(customer)
    inspect = FakeInspect(Validation("tls_certificate"))
    working = validation_task(inspect)
    assert run_once(working)
    assert inspect.seen == [target.base_url]
    after = targets.get(target.id, None)
    assert (after.validation_status, after.validation_reason, after.validated_at) == ("failed", "tls_certificate", DUE)
    [entry] = rows("SELECT actor, reason FROM audit_entries WHERE action = 'validate_target'")
    assert entry == ("worker", "tls_certificate")
    assert not run_once(working)


def test_no_database_connection_is_held_during_a_lookup(customer: Customer) -> None:
    make_due(customer)
    release()
    inspect = FakeInspect()
    assert run_once(validation_task(inspect))
    assert inspect.held == [False]
    assert database.is_closed()


def test_a_result_after_another_worker_took_over_is_not_written(customer: Customer) -> None:
    target = make_due(customer)

    def another_takes_over() -> None:
        later = DUE + timedelta(seconds=LEASE_S)
        with connection():
            job = validations.claim_next(later, LEASE_S)
            assert job is not None
            validations.finish(job, Validation(), later, "another")

    assert run_once(validation_task(FakeInspect(Validation("tls_failed"), another_takes_over)))
    assert targets.get(target.id, None).validation_status == "passed"


def test_a_lookup_refused_by_our_own_overload_does_not_change_the_target(customer: Customer) -> None:
    target = make_due(customer)
    before = targets.get(target.id, None)
    assert run_once(validation_task(FakeInspect(Validation("dns_overloaded"))))
    assert targets.get(target.id, None) == before
    assert rows("SELECT 1 FROM audit_entries WHERE action = 'validate_target'") == []
    lapsed = DUE + timedelta(seconds=LEASE_S)
    assert run_once(validation_task(FakeInspect(), lapsed))
    assert targets.get(target.id, None).validated_at == lapsed


def test_a_validation_that_fails_unexpectedly_is_repeated_when_its_lease_expires(customer: Customer) -> None:
    target = make_due(customer)
    broken = FakeInspect(RuntimeError("a bug"))
    with pytest.raises(RuntimeError):
        run_once(validation_task(broken))
    assert not run_once(validation_task(broken))
    assert run_once(validation_task(FakeInspect(), DUE + timedelta(seconds=LEASE_S)))
    assert targets.get(target.id, None).validation_status == "passed"


def test_a_hanging_receiver_delays_only_its_own_validation(customer: Customer) -> None:
    hanging, other = make_due(customer, "https://hanging.example.com/"), make_due(customer)
    gate = threading.Event()

    def inspect(due: ValidationJob) -> Validation:
        if "hanging" in due.base_url:
            gate.wait(30)
        return Validation()

    working = ValidationTask(inspect, "worker", lambda: DUE, LEASE_S, NO_TRACKERS)
    tasks = [TaskThread(BackgroundTask(f"look-{number}", partial(run_once, working), 600)) for number in range(2)]
    for task in tasks:
        task.start()
    try:
        wait_until(lambda: targets.get(other.id, None).validated_at == DUE)
        assert targets.get(hanging.id, None).validated_at == NOW
    finally:
        gate.set()
        for task in tasks:
            task.stop()
            task.join(10)
    assert targets.get(hanging.id, None).validated_at == DUE
