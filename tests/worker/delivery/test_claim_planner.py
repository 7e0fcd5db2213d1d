"""Workers share claims fairly among the targets that have waiting work, however many targets there are."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest

from schemas.base.timestamps import to_ms
from schemas.targets.throttle_state import TargetKey, WorkerShare
from storage.db.engine import execute, is_sqlite, rows, transaction
from storage.exports import claims_sql
from storage.targets import throttle_state_sql
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.database.query_plans import statements
from tests.support.factories import NOW, Customer, limit_target, make_approved, make_customer, make_target
from worker.delivery import throttle
from worker.delivery.claim_planner import (
    MAX_BATCH,
    MAX_REST_S,
    SCAN_REUSED_FOR_S,
    TARGETS_PER_QUERY,
    ClaimPlan,
    ClaimPlanner,
    DueTargetScanner,
)
from worker.delivery.target_queues import WaitingClaims

URL: Final = "https://tracker.example.com/hook"
NOTHING: Final[Counter[TargetKey]] = Counter()


def waiting_for(customer: Customer, targets_count: int, each: int = 1) -> list[str]:
    """Store targets that have `each` due exports; return their IDs in order."""
    ids = many_targets(customer, 0, targets_count, URL)
    many_waiting(customer, 0, targets_count * each, (0, targets_count), NOW)
    return ids


def made(threads: int) -> ClaimPlanner:
    """Return a planner that always makes full scans, however long its last scan took."""
    return ClaimPlanner(threads, DueTargetScanner(quick_scan_s=600))


def plan(planner: ClaimPlanner, held: Iterable[str] = (), returned: Iterable[str] = (), later_s: float = 0.0) -> ClaimPlan:
    return planner.plan(counted(held), counted(returned), NOW + timedelta(seconds=later_s))


def counted(target_ids: Iterable[str]) -> Counter[TargetKey]:
    """Count claims by target and account; the targets are in the database."""
    counts = Counter(target_ids)
    owner = dict(rows("SELECT id, account_id FROM targets")) if counts else {}
    return Counter({TargetKey(owner[target_id], target_id): count for target_id, count in counts.items()})


def change(target_id: str, **columns: object) -> None:
    assignments = ", ".join(f"{name} = ?" for name in columns)
    execute(f"UPDATE targets SET {assignments} WHERE id = ?", (*columns.values(), target_id))  # noqa: S608 - our own names


def test_without_waiting_exports_the_plan_is_empty(customer: Customer) -> None:
    many_targets(customer, 0, 3, URL)
    planner = made(32)
    assert not plan(planner)
    assert planner.ready_at is None


def test_a_single_target_gets_at_most_its_concurrency_and_half_the_threads(customer: Customer) -> None:
    [target_id] = waiting_for(customer, 1, 100)
    assert plan(made(32)).quotas == {target_id: 16}
    assert plan(made(64)).quotas == {target_id: 16}
    assert plan(made(8)).quotas == {target_id: 4}
    assert plan(made(1)).quotas == {target_id: 1}
    change(target_id, concurrency=3.9)
    assert plan(made(32)).quotas == {target_id: 3}


def test_targets_get_equal_quotas_while_there_is_capacity(customer: Customer) -> None:
    ids = waiting_for(customer, 5, 100)
    assert plan(made(20)).quotas == dict.fromkeys(ids, 4)


def test_capacity_that_one_target_cannot_use_is_given_to_others(customer: Customer) -> None:
    modest, *others = waiting_for(customer, 3, 100)
    change(modest, concurrency=2)
    assert plan(made(20)).quotas == {modest: 2, others[0]: 9, others[1]: 9}


def test_leased_exports_count_against_their_target_and_the_threads(customer: Customer) -> None:
    one, other = waiting_for(customer, 2, 100)
    assert plan(made(16), held=[one] * 8).quotas == {other: 8}
    assert plan(made(16), held=[one] * 6 + [other] * 4).quotas == {one: 2, other: 4}
    assert not plan(made(16), held=[one] * 8 + [other] * 8)


def test_claims_that_wait_for_a_slot_of_their_target_take_no_capacity_from_others(customer: Customer) -> None:
    hanging, other = waiting_for(customer, 2, 100)
    planner = made(16)
    held = counted([hanging] * 40)
    assert not planner.plan(held, NOTHING, NOW)
    waiting = WaitingClaims(Counter(), Counter({customer.account_id: 32}))
    assert planner.plan(held, NOTHING, NOW, waiting).quotas == {other: 8}


def test_as_many_waiting_claims_are_made_as_results_arrived_within_a_tick(customer: Customer) -> None:
    [target_id] = waiting_for(customer, 1, 500)
    assert plan(made(32), returned=[target_id] * 16).quotas == {target_id: 16 + 2 * 16}
    assert plan(made(32), held=[target_id] * 40, returned=[target_id] * 16).quotas == {target_id: 8}
    assert plan(made(32), returned=[target_id] * 400).quotas == {target_id: MAX_BATCH}


@pytest.mark.parametrize(
    ("tick_s", "ahead"),
    [
        (0.0, 2.0),  # the first tick
        (0.02, 2.0),
        (0.06, 2.0),  # two ticks are 120 ms; an attempt may start up to 200 ms after its target's row was read
        (0.08, 1.5),
        (0.12, 1.0),
        (5.0, 1.0),  # never less than is sent before the next tick
    ],
)
def test_the_longer_a_tick_takes_the_fewer_waiting_claims_are_made(customer: Customer, tick_s: float, ahead: float) -> None:
    [target_id] = waiting_for(customer, 1, 500)
    planner = made(32)
    planner.record_tick(tick_s)
    assert plan(planner, returned=[target_id] * 16).quotas == {target_id: 16 + round(ahead * 16)}


def test_a_scan_is_reused_while_claims_fill_their_quotas(customer: Customer) -> None:
    ids = waiting_for(customer, 3, 100)
    stopwatch = Stopwatch()
    planner = ClaimPlanner(32, DueTargetScanner(quick_scan_s=600, monotonic=stopwatch))

    first = plan(planner)
    assert first.quotas == {ids[0]: 11, ids[1]: 11, ids[2]: 10}
    # The result of the claims was not recorded.
    assert scans(planner)
    planner.record_claims(first, Counter(first.quotas))
    assert not scans(planner)
    assert plan(planner, held=ids * 2).quotas == {ids[0]: 9, ids[1]: 9, ids[2]: 8}
    # If those targets have no room either, the planner does not scan until the old scan has expired.
    assert not scans(planner, held=ids * 10)
    stopwatch.at_s += SCAN_REUSED_FOR_S
    assert scans(planner)


def test_a_claim_below_its_quota_or_a_wake_up_causes_a_scan(customer: Customer) -> None:
    ids = waiting_for(customer, 2, 100)
    planner = made(32)
    for is_woken in (False, True):
        planned = plan(planner)
        assert planned.quotas == {ids[0]: 16, ids[1]: 16}
        planner.record_claims(planned, Counter(planned.quotas))
        assert not scans(planner)
        if is_woken:
            planner.scan_again()
        else:
            planner.record_claims(planned, Counter({ids[0]: 16, ids[1]: 15}))
        assert scans(planner)


def test_an_incomplete_scan_is_not_reused(customer: Customer) -> None:
    ids = waiting_for(customer, 5)
    planner = made(2)
    assert list(served(planner)) == ids[:2]
    assert list(served(planner)) == ids[2:4]
    assert list(served(planner)) == [ids[4], ids[0]]


def scans(planner: ClaimPlanner, held: Iterable[str] = ()) -> bool:
    """Make a plan; return whether it queried the database."""
    counts = counted(held)
    with statements() as found:
        planner.plan(counts, NOTHING, NOW)
    return bool(found)


def served(planner: ClaimPlanner) -> dict[str, int]:
    planned = plan(planner)
    planner.record_claims(planned, Counter(planned.quotas))
    return planned.quotas


@pytest.mark.parametrize("returned", [0, 16])
def test_targets_that_are_off_or_held_have_no_quota_and_take_no_capacity(customer: Customer, returned: int) -> None:
    ids = waiting_for(customer, 6, 100)
    held, paused, inactive, blocked, disabled, free = ids
    change(held, held_until=to_ms(NOW) + 5000, held_reason="rate_limited")
    for target_id, status in ((paused, "paused"), (inactive, "inactive"), (blocked, "blocked"), (disabled, "disabled")):
        change(target_id, status=status)
    planner = made(8)
    planned = plan(planner, returned=[held] * returned)
    assert planned.quotas == {free: 4}
    # Exports of blocked and disabled targets have to be ended; those of paused or inactive targets wait.
    assert planned.off == [blocked, disabled]
    assert plan(planner, later_s=5).quotas == {held: 4, free: 4}


def test_a_target_that_is_off_is_in_the_plan_even_if_nothing_can_be_claimed(customer: Customer) -> None:
    [target_id] = waiting_for(customer, 1)
    change(target_id, status="disabled")
    planned = plan(made(8))
    assert (planned.quotas, planned.off, bool(planned)) == ({}, [target_id], True)


def test_a_worker_stays_within_its_share(customer: Customer) -> None:
    ids = waiting_for(customer, 3, 100)
    change(ids[2], failures_in_row=5)
    workers = [made(64) for _ in range(5)]
    for rank, planner in enumerate(workers):
        planner.share = WorkerShare(rank, 5)
    planned = [plan(planner).quotas for planner in workers]
    together = sum((Counter(each) for each in planned), Counter[str]())
    assert together == {ids[0]: 16, ids[1]: 16, ids[2]: 1}
    assert {each[ids[0]] for each in planned} == {3, 4}


# ---------------------------------------------------------------- when to plan again


def test_the_next_plan_is_made_when_the_first_export_becomes_due(customer: Customer) -> None:
    ids = waiting_for(customer, 3)
    for number, target_id in enumerate(ids):
        execute("UPDATE exports SET due_at = ? WHERE target_id = ?", (to_ms(NOW) + 10_000 * (3 - number), target_id))
    change(ids[2], held_until=to_ms(NOW) + 15_000, held_reason="rate_limited")
    planner = made(8)
    assert not plan(planner)
    assert planner.ready_at == NOW + timedelta(seconds=15)
    change(ids[2], status="paused")
    assert not plan(planner)
    assert planner.ready_at == NOW + timedelta(seconds=20)
    assert plan(planner, later_s=20).quotas == {ids[1]: 4}


def test_without_capacity_for_any_account_nothing_is_read(customer: Customer) -> None:
    waiting_for(customer, 1, 100)
    planner = made(4)
    planner.ready_at = NOW
    held = Counter({TargetKey(account_id, "tgt_other"): 1 for account_id in range(2, 22)})
    with statements() as asked:
        assert not planner.plan(held, NOTHING, NOW)
    assert not asked
    assert planner.ready_at is None


# ---------------------------------------------------------------- scans


def test_more_targets_than_capacity_are_served_in_rotation(customer: Customer) -> None:
    ids = waiting_for(customer, 25, 100)
    planner = made(10)
    quotas = [plan(planner).quotas for _ in range(5)]
    assert [sum(each.values()) for each in quotas] == [10] * 5
    assert sum((Counter(each) for each in quotas), Counter[str]()) == dict.fromkeys(ids, 2)


def test_the_scan_continues_after_the_last_target_even_if_that_one_is_gone(customer: Customer) -> None:
    ids = waiting_for(customer, 6, 100)
    planner = made(4)
    assert list(plan(planner).quotas) == ids[:4]
    execute("UPDATE exports SET due_at = NULL, status = 'failed' WHERE target_id = ?", (ids[3],))
    assert list(plan(planner).quotas) == [ids[4], ids[5], ids[0], ids[1]]
    assert list(plan(planner).quotas) == [ids[2], ids[4], ids[5], ids[0]]


def test_more_targets_than_one_statement_reads_are_all_served_in_rotation(customer: Customer) -> None:
    ids = waiting_for(customer, 2 * TARGETS_PER_QUERY + 10)
    planner = made(TARGETS_PER_QUERY - 6)
    seen = Counter[str]()
    for _ in range(4):
        seen += Counter(plan(planner).quotas)
    assert sum(seen.values()) == 4 * (TARGETS_PER_QUERY - 6)
    assert set(seen) == set(ids)
    assert max(seen.values()) == 2
    # However many threads there are, one plan claims no more than a batch.
    assert plan(made(2000)).quotas == dict.fromkeys(ids[:MAX_BATCH], 1)


class Stopwatch:
    """A monotonic clock that advances by `step_s` each time it is read."""

    def __init__(self) -> None:
        self.at_s = self.step_s = 0.0

    def __call__(self) -> float:
        self.at_s += self.step_s
        return self.at_s


def rested_once(stopwatch: Stopwatch) -> ClaimPlanner:
    """Return a planner that rests for 9/16 s, because its first scan took 1/16 s."""
    planner = ClaimPlanner(32, DueTargetScanner(monotonic=stopwatch))
    stopwatch.step_s = 1 / 16
    assert plan(planner).quotas
    stopwatch.step_s = 0.0
    return planner


def test_after_a_long_scan_only_the_targets_found_are_read_until_the_next_full_scan(customer: Customer) -> None:
    found, later = waiting_for(customer, 2, 100)
    change(later, held_until=to_ms(NOW) + 1000, held_reason="rate_limited")
    stopwatch = Stopwatch()
    planner = rested_once(stopwatch)
    assert plan(planner, later_s=1).quotas == {found: 16}
    change(found, status="paused")
    assert not plan(planner, later_s=1)
    # No known target is due: the next plan is made when the next full scan may begin.
    assert planner.ready_at == NOW + timedelta(seconds=1 + 9 / 16)
    stopwatch.at_s += 9 / 16
    assert plan(planner, later_s=1).quotas == {later: 16}


def test_a_rest_that_ends_within_a_scan_is_followed_by_a_full_scan_at_once(customer: Customer) -> None:
    [found] = waiting_for(customer, 1, 100)
    stopwatch = Stopwatch()
    planner = rested_once(stopwatch)
    change(found, status="paused")
    stopwatch.at_s += 8 / 16
    stopwatch.step_s = 0.05
    assert not plan(planner)
    assert planner.ready_at is not None
    assert planner.ready_at - NOW < timedelta(milliseconds=5)


def test_a_scan_that_stalled_is_followed_by_a_short_rest(customer: Customer) -> None:
    [found] = waiting_for(customer, 1, 100)
    stopwatch = Stopwatch()
    planner = ClaimPlanner(32, DueTargetScanner(monotonic=stopwatch))
    stopwatch.step_s = 600.0
    assert plan(planner).quotas
    stopwatch.step_s = 0.0
    change(found, status="paused")
    assert not plan(planner)
    assert planner.ready_at == NOW + timedelta(seconds=MAX_REST_S)


def test_a_target_with_a_hundred_thousand_waiting_exports_is_served_no_more_often(customer: Customer) -> None:
    busiest, *others = many_targets(customer, 0, 21, URL)
    many_waiting(customer, 0, 100_000, (0, 1), NOW - timedelta(days=1))
    many_waiting(customer, 100_000, 40, (1, 20), NOW)
    planner = made(10)
    with statements() as asked:
        first = plan(planner).quotas
    assert len(asked) == 1
    assert first == dict.fromkeys([busiest, *others[:9]], 1)
    dealt = Counter(first)
    for _ in range(20):
        dealt += Counter(plan(planner).quotas)
    assert dealt == dict.fromkeys([busiest, *others], 10)
    if not is_sqlite():
        # Otherwise the cleanup before the next test would search the attempts of every single export.
        execute("TRUNCATE exports CASCADE")


def test_claims_read_only_the_bodies_of_each_targets_quota(customer: Customer) -> None:
    few, many = (make_target(customer).id for _ in range(2))
    for target_id in (few, many):
        for second in range(5):
            make_approved(customer, target_id, NOW + timedelta(seconds=second))
    with statements() as run:
        claims = claims_sql.claim_due({few: 1, many: 4}, NOW + timedelta(minutes=1), 6, "worker")
    assert Counter(claim.target_id for claim in claims) == {few: 1, many: 4}
    reading = [each for each in run if "rowid IN" in each.sql]
    assert [each.parameters[-1] for each in reading] == ([1, 4] if is_sqlite() else [])


def test_planned_claims_serve_every_target_until_no_export_waits(customer: Customer) -> None:
    """The many exports of one target are served beside the few of the others, until nothing waits."""
    waiting_for(customer, 12, 1)
    many_waiting(customer, 100, 300, (0, 1), NOW - timedelta(hours=1))
    planner, plans, few_left = made(8), 0, 12
    while planned := plan(planner):
        claims = claims_sql.claim_due(planned.quotas, NOW, 6, "worker")
        assert 0 < len(claims) <= 8
        with transaction():
            execute("UPDATE exports SET status = 'exported', due_at = NULL, lease = NULL WHERE status = 'delivering'")
        plans += 1
        [(few_left,)] = rows("SELECT COUNT(DISTINCT target_id) FROM exports WHERE status = 'approved'")
        if few_left <= 1:
            break
    # Twelve targets, and eight claims per plan.
    assert plans <= 4
    assert few_left == 1


# ---------------------------------------------------------------- accounts


def test_capacity_is_divided_among_accounts_and_then_among_their_targets(customer: Customer) -> None:
    ids = waiting_for(customer, 6, 100)
    alone = waiting_beside(1, 100)
    planned = plan(made(16)).quotas
    assert planned == {alone[0]: 8, **dict.fromkeys(ids[:2], 2), **dict.fromkeys(ids[2:], 1)}


def test_an_account_with_claims_for_every_thread_cannot_use_threads_reserved_for_others(customer: Customer) -> None:
    ids = waiting_for(customer, 4, 100)
    others = waiting_beside(3, 100)
    held = [target_id for target_id in ids for _ in range(4)]
    planner = made(16)
    # Other accounts have a quarter of the threads, and a single target gets half of its account's.
    assert plan(planner, held).quotas == {others[0]: 2, others[1]: 1, others[2]: 1}
    assert plan(planner, held + [others[0]] * 2).quotas == {others[1]: 1, others[2]: 1}
    assert not plan(planner, held + others[:2] * 2)


def test_claims_that_wait_for_hanging_requests_take_no_capacity_from_other_accounts(customer: Customer) -> None:
    """The account's receivers were quick, so many claims wait for its threads; now the receivers hang."""
    ids = waiting_for(customer, 20, 100)
    [other] = waiting_beside(1, 100)
    held = counted(target_id for target_id in ids for _ in range(10))
    waiting = WaitingClaims(Counter({customer.account_id: 184}), Counter())
    assert made(16).plan(held, NOTHING, NOW, waiting).quotas == {other: 2}


def test_the_single_target_of_an_account_is_in_every_plan_beside_a_thousand_of_another(customer: Customer) -> None:
    ids = waiting_for(customer, 1500)
    [other] = waiting_beside(1, 50, first=9000)
    stopwatch = Stopwatch()
    planner = ClaimPlanner(32, DueTargetScanner(monotonic=stopwatch))
    seen = Counter[str]()
    for number in range(200):
        # The first scan takes a second, so that for a while only the targets that it found are read.
        stopwatch.step_s = 1.0 if not number else 0.0
        planned = plan(planner).quotas
        assert planned[other] == 16
        assert sum(planned.values()) == 32
        seen += Counter(planned)
        stopwatch.at_s += 0.02
    assert set(seen) == {*ids, other}


def test_an_account_with_a_thousand_targets_and_no_capacity_hides_no_other_account(customer: Customer) -> None:
    ids = waiting_for(customer, 1500)
    [other] = waiting_beside(1, 50, first=9000)
    planner = ClaimPlanner(32, DueTargetScanner(monotonic=Stopwatch()))
    assert plan(planner, ids[:32]).quotas == {other: 4}


def waiting_beside(targets_count: int, each: int, first: int = 500) -> list[str]:
    """Store targets of another account as `waiting_for` does; their numbers start at `first`."""
    customer = make_customer()
    ids = many_targets(customer, first, targets_count, URL)
    many_waiting(customer, 1000 * first, targets_count * each, (first, targets_count), NOW)
    return ids


# ---------------------------------------------------------------- rate limits


def test_a_rate_limited_target_gets_its_allowance_and_no_more_than_can_be_sent_at_once(customer: Customer) -> None:
    [target_id] = waiting_for(customer, 1, 1000)
    limit_target(target_id, 600)
    planner = made(64)
    planned = plan(planner)
    assert (planned.quotas, planned.rate_limited) == ({target_id: 9}, [target_id])
    limit_target(target_id, 60_000)
    # More claims than slots would wait in the queue, and would then be sent faster than the rate limit allows.
    assert plan(planner, held=[target_id] * 4, returned=[target_id] * 12).quotas == {target_id: 12}


def test_a_used_up_rate_limit_sets_the_time_of_the_next_plan(customer: Customer) -> None:
    [target_id] = waiting_for(customer, 1, 1000)
    limit_target(target_id, 61)
    used_up(target_id, 1)
    planner = made(64)
    assert not plan(planner)
    assert planner.ready_at == NOW + timedelta(seconds=1)
    assert plan(planner, later_s=1).quotas == {target_id: 1}


def used_up(target_id: str, count: int) -> None:
    with transaction():
        state = throttle_state_sql.read([target_id], locked=True)[target_id]
        throttle_state_sql.write([throttle.use_rate_allowance(state, count, NOW)])


def test_a_rate_limited_target_takes_no_capacity_from_others(customer: Customer) -> None:
    paced, free = waiting_for(customer, 2, 100)
    limit_target(paced, 60)
    planned = plan(made(32))
    assert (planned.quotas, planned.rate_limited) == ({paced: 1, free: 16}, [paced])


def test_only_a_rate_limited_target_that_gets_something_is_locked(customer: Customer) -> None:
    ids = waiting_for(customer, 3, 100)
    for target_id in ids:
        limit_target(target_id, 600)
    used_up(ids[0], 600)
    change(ids[1], held_until=to_ms(NOW) + 1, held_reason="rate_limited")
    assert plan(made(32)).rate_limited == [ids[2]]


def test_slots_are_the_workers_share_and_half_the_threads_at_most(customer: Customer) -> None:
    target_id = many_targets(customer, 0, 1, URL)[0]
    make_approved(customer, target_id)
    state, planner = throttle_state_sql.read([target_id])[target_id], made(12)
    assert planner.slots(state, NOW) == 6
    planner.share = WorkerShare(0, 4)
    assert planner.slots(state, NOW) == 4
    assert planner.slots(replace(state, held_until=NOW + timedelta(seconds=1)), NOW) == 0
