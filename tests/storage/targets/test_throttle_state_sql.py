"""Throttle states: found where exports wait, read as written, and locked while they are changed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schemas.base.timestamps import to_ms
from schemas.targets.target import BREAKER_OPEN, TargetStatus
from schemas.targets.throttle_state import ThrottleState
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.targets import targets, throttle_state_sql
from tests.support.factories import NOW, Customer, claim_due, limit_target, make_approved, make_exports, make_target

#: A different value for every column, so that mixed-up columns show.
MARKED = {
    "connected": "failing",
    "last_success_at": NOW - timedelta(seconds=1),
    "held_until": NOW + timedelta(seconds=2),
    "held_reason": BREAKER_OPEN,
    "concurrency": 3.75,
    "ramp": 7,
    "failures_in_row": 5,
    "failing_since": NOW - timedelta(seconds=6),
    # In microseconds, the resolution of a clock.
    "paced_until": NOW + timedelta(seconds=7, microseconds=8),
}


def state_of(target_id: str) -> ThrottleState:
    return throttle_state_sql.read([target_id])[target_id]


def write(*written: ThrottleState) -> None:
    with transaction():
        throttle_state_sql.write(written)


def due_ids(after_id: str = "", limit: int = 100, now: datetime = NOW) -> list[str]:
    return [state.target_id for state in throttle_state_sql.due(after_id, limit, now)]


def test_the_throttle_state_of_a_new_target_begins_with_the_ramp(customer: Customer) -> None:
    target = make_target(customer)
    assert state_of(target.id) == ThrottleState(
        target.id,
        TargetStatus.ACTIVE,
        "unknown",
        None,
        None,
        None,
        16.0,
        4,
        0,
        None,
        None,
        None,
        customer.account_id,
        "passed",
    )


def test_a_throttle_state_is_read_as_it_was_written(customer: Customer) -> None:
    target, other = make_target(customer), make_target(customer)
    marked = replace(state_of(target.id), **MARKED)  # type: ignore[arg-type]  # the values are of each field's type
    write(marked)
    assert state_of(target.id) == marked
    assert state_of(other.id) == replace(state_of(target.id), **{**fresh(), "target_id": other.id})  # type: ignore[arg-type]  # the values are of each field's type
    cleared = replace(marked, **fresh())  # type: ignore[arg-type]  # the values are of each field's type
    write(cleared, replace(state_of(other.id), ramp=9))
    assert (state_of(target.id), state_of(other.id).ramp) == (cleared, 9)


def fresh() -> dict[str, object]:
    nothing = dict.fromkeys(["last_success_at", "held_until", "held_reason", "failing_since", "paced_until"])
    return {**nothing, "connected": "unknown", "concurrency": 16.0, "ramp": 4, "failures_in_row": 0}


def test_writing_a_throttle_state_changes_neither_status_nor_limit(customer: Customer) -> None:
    target = make_target(customer)
    stale = state_of(target.id)
    targets.change_status(target.id, "pause", NOW, "operator")
    limit_target(target.id, 30)
    write(replace(stale, ramp=2))
    assert state_of(target.id) == replace(stale, ramp=2, status=TargetStatus.PAUSED, max_per_minute=30)


def test_times_in_the_distant_past_and_future_are_stored(customer: Customer) -> None:
    marked = replace(
        state_of(make_target(customer).id),
        paced_until=datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        held_until=datetime(1970, 1, 1, tzinfo=UTC),
    )
    write(marked)
    assert state_of(marked.target_id) == marked


def test_unknown_targets_cause_neither_reads_nor_writes(customer: Customer) -> None:
    make_target(customer)
    assert throttle_state_sql.read([]) == {}
    write()
    assert throttle_state_sql.read(["tgt_unknown"]) == {}


# ---------------------------------------------------------------- due targets


def test_a_target_is_listed_when_an_export_of_it_is_due(customer: Customer) -> None:
    nothing, due, later, sending, finished = (make_target(customer).id for _ in range(5))
    make_exports(customer, 1)
    make_approved(customer, sending)
    [claim] = claim_due(1, NOW, 6, "worker")
    assert claim.target_id == sending
    make_approved(customer, due, NOW)
    make_approved(customer, due, NOW + timedelta(seconds=30))
    make_approved(customer, later, NOW + timedelta(hours=1))
    execute("UPDATE exports SET status = 'failed', due_at = NULL WHERE id = ?", (make_approved(customer, finished),))
    assert throttle_state_sql.due("", 100, NOW) == [state_of(due)]
    # A claimed export is due again when its lease lapses.
    assert due_ids(now=NOW + timedelta(seconds=6)) == [due, sending]
    assert due_ids(now=NOW + timedelta(hours=1)) == [due, later, sending]
    assert throttle_state_sql.due_of([nothing, due, sending, finished], NOW) == [state_of(due)]
    assert throttle_state_sql.due_of([], NOW) == []
    assert throttle_state_sql.next_ready(NOW - timedelta(seconds=1)) == NOW
    assert throttle_state_sql.next_ready(NOW) == NOW + timedelta(seconds=6)
    assert throttle_state_sql.next_ready(NOW + timedelta(seconds=6)) == NOW + timedelta(hours=1)
    assert throttle_state_sql.next_ready(NOW + timedelta(hours=1)) is None


@pytest.mark.parametrize(
    ("status", "is_seen"),
    # Exports of a target that is blocked or disabled have to be ended, due or not; those of a paused target wait.
    [("active", False), ("paused", False), ("inactive", False), ("blocked", True), ("disabled", True)],
)
def test_a_target_that_was_turned_off_is_listed_while_exports_wait(customer: Customer, status: str, is_seen: bool) -> None:
    target = make_target(customer)
    make_approved(customer, target.id, NOW + timedelta(hours=1))
    execute("UPDATE targets SET status = ?", (status,))
    assert (due_ids() == [target.id]) is is_seen
    assert throttle_state_sql.due_of([target.id], NOW + timedelta(hours=2)) == (
        [state_of(target.id)] if status == "active" else []
    )
    assert throttle_state_sql.next_ready(NOW) == (NOW + timedelta(hours=1) if status == "active" else None)


def test_a_held_target_is_not_listed_before_the_hold_ends(customer: Customer) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    until = NOW + timedelta(seconds=30)
    write(replace(state_of(target.id), held_until=until, held_reason=BREAKER_OPEN))
    assert (due_ids(), throttle_state_sql.due_of([target.id], NOW), throttle_state_sql.next_ready(NOW)) == ([], [], until)
    assert due_ids(now=until) == [target.id]
    assert throttle_state_sql.due_of([target.id], until) == [state_of(target.id)]


def test_targets_are_listed_in_pages_in_the_order_of_their_ids(customer: Customer) -> None:
    made = sorted(make_target(customer).id for _ in range(7))
    for target_id in made:
        make_approved(customer, target_id)
    assert due_ids() == made
    assert due_ids(limit=3) == made[:3]
    assert due_ids(made[2], 3) == made[3:6]
    assert due_ids(made[5], 3) == made[6:]
    assert due_ids(made[6], 3) == []


# ---------------------------------------------------------------- locks


def test_a_locked_throttle_state_has_one_writer(customer: Customer) -> None:
    """Eight threads count at once, and no step is lost."""
    target = make_target(customer)

    def count(_: int) -> None:
        with connection(), transaction():
            [state] = throttle_state_sql.read([target.id], locked=True).values()
            throttle_state_sql.write([replace(state, failures_in_row=state.failures_in_row + 1)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(40)))
    assert state_of(target.id).failures_in_row == 40


def test_a_read_without_waiting_skips_targets_locked_by_others(customer: Customer) -> None:
    mine, free = make_target(customer).id, make_target(customer).id

    def others() -> list[str]:
        with connection(), transaction():
            return sorted(throttle_state_sql.read(sorted([mine, free]), locked=True, waits=False))

    with ThreadPoolExecutor(1) as pool:
        if is_sqlite():
            # SQLite has one writer at a time, so there is nothing to skip.
            assert pool.submit(others).result() == sorted([mine, free])
            return
        with transaction():
            assert list(throttle_state_sql.read([mine], locked=True)) == [mine]
            assert pool.submit(others).result() == [free]
            # A transaction's own locks are not skipped.
            assert list(throttle_state_sql.read([mine], locked=True, waits=False)) == [mine]
        assert pool.submit(others).result() == sorted([mine, free])


def test_an_approval_does_not_wait_for_a_locked_throttle_state(customer: Customer) -> None:
    """On SQLite, every writer waits for every other one, but only briefly."""
    target = make_target(customer)

    def approve() -> str:
        with connection():
            return make_approved(customer, target.id)

    with ThreadPoolExecutor(1) as pool:
        if is_sqlite():
            export_id = pool.submit(approve).result()
        else:
            with transaction():
                throttle_state_sql.read([target.id], locked=True)
                export_id = pool.submit(approve).result(timeout=10)
    assert rows("SELECT target_id, due_at FROM exports WHERE id = ?", (export_id,)) == [(target.id, to_ms(NOW))]
