"""Delivery hours count each attempt that changed its export once, also after retries and late results."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final

import pytest

from schemas.exports.delivery import CompletedAttempt
from schemas.exports.state_machine import Transition
from schemas.targets.target import Target
from storage.db.engine import connection, rows, transaction
from storage.exports import claims_sql, delivery_hours
from storage.exports.delivery_hours import DAY_HOURS, AttemptCounts, DeliveryHour
from tests.support.database.query_plans import statements
from tests.support.factories import NOW, Customer, claim_due, completed_attempt, make_approved, make_customer, make_target

HOUR: Final = timedelta(hours=1)
WORKER: Final = "worker:test"
LEASE_S: Final = 6.0


def tried(
    customer: Customer, target: Target, count: int, transition: Transition = Transition.DELIVER, at: datetime = NOW
) -> list[CompletedAttempt]:
    """Claim `count` exports of a target; return an attempt of each that began at `at`."""
    for _ in range(count):
        make_approved(customer, target.id)
    return [completed_attempt(claim, transition, at) for claim in claim_due(count, NOW + HOUR, LEASE_S, WORKER)]


def counted() -> list[tuple[str, int, int]]:
    asked = "SELECT worker, SUM(delivered), SUM(failed) FROM delivery_hours GROUP BY worker ORDER BY worker"
    return [(worker, int(delivered), int(failed)) for worker, delivered, failed in rows(asked)]


#: Columns: transition of an attempt; whether it counts as delivered. An attempt that is retried later counts as failed.
MOVES = [(Transition.DELIVER, True), (Transition.FAIL, False), (Transition.BLOCK, False), (Transition.RESCHEDULE, False)]


def sum_of(shown: Sequence[DeliveryHour]) -> AttemptCounts:
    return AttemptCounts(sum(hour.tally.delivered for hour in shown), sum(hour.tally.failed for hour in shown))


@pytest.mark.parametrize(("transition", "has_arrived"), MOVES)
def test_an_attempt_is_counted_by_its_outcome(
    customer: Customer, target: Target, transition: Transition, has_arrived: bool
) -> None:
    later = {"next_attempt_at": NOW + HOUR} if transition is Transition.RESCHEDULE else {}
    make_approved(customer, target.id)
    [claim] = claim_due(1, NOW, LEASE_S, WORKER)
    claims_sql.record_attempts([completed_attempt(claim, transition, **later)], NOW, WORKER)
    assert counted() == [(WORKER, int(has_arrived), int(not has_arrived))]


def test_a_claim_that_is_released_unsent_is_not_counted(customer: Customer, target: Target) -> None:
    make_approved(customer, target.id)
    claims_sql.postpone(claim_due(1, NOW, LEASE_S, WORKER), NOW, WORKER)
    assert counted() == []


def test_an_attempt_whose_lease_expired_is_not_counted(customer: Customer, target: Target) -> None:
    [late] = tried(customer, target, 1)
    [again] = [completed_attempt(claim) for claim in claim_due(1, NOW + 2 * HOUR, LEASE_S, "worker:other")]
    claims_sql.record_attempts([late], NOW + 2 * HOUR, WORKER)
    assert counted() == []
    # Both in one tick, as of a worker that was slower than its own lease.
    claims_sql.record_attempts([late, again], NOW + 2 * HOUR, WORKER)
    assert counted() == [(WORKER, 1, 0)]
    claims_sql.record_attempts([again], NOW + 2 * HOUR, WORKER)
    assert counted() == [(WORKER, 1, 0)]


def test_attempts_of_a_rolled_back_tick_are_counted_once_when_it_is_written(customer: Customer, target: Target) -> None:
    attempts = tried(customer, target, 3)

    def write(*, is_lost: bool) -> None:
        with transaction():
            claims_sql.record_attempts(attempts, NOW, WORKER)
            if is_lost:
                raise ConnectionError

    with pytest.raises(ConnectionError):
        write(is_lost=True)
    assert counted() == []
    write(is_lost=False)
    assert counted() == [(WORKER, 3, 0)]


def test_a_tick_is_one_statement_and_workers_have_rows_of_their_own(customer: Customer, target: Target) -> None:
    attempts = [*tried(customer, target, 4), *tried(customer, make_target(customer), 4, Transition.FAIL)]
    for first, worker in ((0, "worker:a"), (2, "worker:b")):
        with statements() as found:
            claims_sql.record_attempts(attempts[first::4] + attempts[first + 1 :: 4], NOW, worker)
        assert len([each for each in found if "delivery_hours" in each.sql]) == 1
    assert counted() == [("worker:a", 2, 2), ("worker:b", 2, 2)]


#: Columns: begin of an attempt, relative to NOW, which is the start of an hour; index of its hour within the day.
BEGAN = [
    (timedelta(0), DAY_HOURS - 1),
    (-timedelta(milliseconds=1), DAY_HOURS - 2),
    (HOUR - timedelta(milliseconds=1), DAY_HOURS - 1),
    (-(DAY_HOURS - 1) * HOUR, 0),
    # Before the first hour.
    (-(DAY_HOURS - 1) * HOUR - timedelta(milliseconds=1), None),
    # After the last hour: the worker's clock was ahead.
    (HOUR, None),
]


@pytest.mark.parametrize(("began", "place"), BEGAN)
def test_an_attempt_belongs_to_the_hour_in_which_it_began(
    customer: Customer, target: Target, began: timedelta, place: int | None
) -> None:
    claims_sql.record_attempts(tried(customer, target, 1, Transition.FAIL, NOW + began), NOW, WORKER)
    day = delivery_hours.hours(target.id, NOW)
    assert [number for number, hour in enumerate(day) if hour.tally.attempts] == ([] if place is None else [place])
    assert (len(day), day[-1].at, day[0].at) == (DAY_HOURS, NOW, NOW - (DAY_HOURS - 1) * HOUR)
    expected = AttemptCounts() if place is None else AttemptCounts(failed=1)
    assert sum_of(day) == expected
    assert delivery_hours.count_last_day([target.id], NOW) == {target.id: expected}


def test_one_statement_reads_a_day_of_many_targets_and_accounts_are_separate(customer: Customer, target: Target) -> None:
    quiet, others = make_target(customer), make_customer()
    claims_sql.record_attempts(tried(customer, target, 3), NOW, "worker:a")
    claims_sql.record_attempts(tried(customer, target, 1, Transition.FAIL, NOW - HOUR), NOW, "worker:b")
    claims_sql.record_attempts(tried(others, make_target(others), 2), NOW, WORKER)
    with statements() as found:
        day = delivery_hours.count_last_day([quiet.id, target.id], NOW)
    assert (len(found), day) == (1, {target.id: AttemptCounts(3, 1), quiet.id: AttemptCounts()})
    assert (day[target.id].failure_rate, day[quiet.id].failure_rate) == (0.25, None)
    today = NOW.replace(hour=0)
    for account_id, total in ((customer.account_id, AttemptCounts(3, 1)), (others.account_id, AttemptCounts(2))):
        days = delivery_hours.days_of_account(account_id, today - timedelta(days=2), NOW + HOUR)
        assert [(day.at, day.tally) for day in days] == [
            (today - timedelta(days=2), AttemptCounts()),
            (today - timedelta(days=1), AttemptCounts()),
            (today, total),
        ]
    # The end of the period is not included.
    assert sum_of(delivery_hours.days_of_account(customer.account_id, today, NOW)) == AttemptCounts(0, 1)


def test_workers_that_write_at_once_lose_no_attempt(customer: Customer, target: Target) -> None:
    attempts = tried(customer, target, 60)

    def work(number: int) -> None:
        for attempt in attempts[number::3]:
            with connection():
                claims_sql.record_attempts([attempt], NOW, f"worker:{number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert counted() == [(f"worker:{number}", 20, 0) for number in range(3)]
    assert rows("SELECT COUNT(*) FROM attempts") == [(60,)]
