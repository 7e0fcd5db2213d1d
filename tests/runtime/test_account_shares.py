"""Shared slots: an account alone may use all of them, and every account keeps the slots that are reserved for it."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtime.account_shares import AccountShares

#: Each step: an account ID, and whether the account releases a slot. If not, it takes a slot, provided that it may.
STEPS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=400)
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 5))


def played(shares: AccountShares, steps: Sequence[tuple[int, bool]]) -> Counter[int]:
    """Apply the steps; return how many slots each account holds, and check that `shares` counts the same."""
    held = Counter[int]()
    for account_id, releases in steps:
        if releases and held[account_id]:
            shares.release(account_id)
            held[account_id] -= 1
        elif not releases and shares.may_take(account_id):
            shares.take(account_id)
            held[account_id] += 1
        assert shares.total == held.total()
        assert all(shares.held(each) == held[each] for each in range(10))
    return held


@given(SIZES, STEPS)
def test_an_account_can_take_its_reserved_slots_for_any_holdings_of_others(
    sizes: tuple[int, int], steps: list[tuple[int, bool]]
) -> None:
    shares = AccountShares(*sizes)
    held = played(shares, steps)
    assert held.total() <= shares.limit
    holders = {account_id for account_id, count in held.items() if count}
    for account_id in range(10):
        if held[account_id] < shares.reserved and len(holders | {account_id}) <= sizes[1]:
            assert shares.may_take(account_id)


@given(SIZES, STEPS)
def test_if_all_shared_slots_are_held_an_account_can_take_only_reserved_ones(
    sizes: tuple[int, int], steps: list[tuple[int, bool]]
) -> None:
    shares = AccountShares(*sizes)
    held = played(shares, steps)
    full = shares.holders_of_all()
    if shares.shared <= held.total() < shares.limit:
        assert set(full) == {account_id for account_id, count in held.items() if count >= shares.reserved}
    assert bool(full) <= (held.total() >= shares.shared)


@given(SIZES, STEPS, st.sets(st.integers(0, 9)))
def test_the_account_with_the_fewest_slots_gets_the_next_one(
    sizes: tuple[int, int], steps: list[tuple[int, bool]], wanting: set[int]
) -> None:
    shares = AccountShares(*sizes)
    held = played(shares, steps)
    order = shares.in_order(wanting)
    assert [held[each] for each in order if each is not None] == sorted(
        held[each] for each in wanting if shares.may_take(each)
    )


@given(SIZES, st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.booleans()), max_size=60))
def test_no_account_takes_more_than_its_share_while_another_has_work(
    sizes: tuple[int, int], steps: list[tuple[int, int, bool]]
) -> None:
    """Accounts get and finish work at random; after each step, slots are handed out until no account may take more."""
    shares, work = AccountShares(*sizes), Counter[int]()
    for account_id, count, finishes in steps:
        if finishes:
            for _ in range(min(count, shares.held(account_id))):
                shares.release(account_id)
        else:
            work[account_id] += count
        while taking := shares.in_order(+work)[:1]:
            [first] = taking
            assert first is not None
            assert all(shares.held(first) <= shares.held(other) for other in +work)
            shares.take(first)
            work[first] -= 1
        holders = [each for each in range(10) if shares.held(each)]
        if +work and len(holders) <= sizes[1]:
            # No shared slot stays idle, and every account with waiting work holds its reserved slots.
            assert shares.is_reserve
            assert all(shares.held(each) >= shares.reserved for each in +work)
        if len(holders) < sizes[1]:
            assert shares.may_take(10)


def test_a_single_account_can_take_exactly_the_shared_slots() -> None:
    shares = AccountShares(32)
    taken = 0
    while shares.may_take(1):
        shares.take(1)
        taken += 1
    assert taken == 32


def test_sixteen_accounts_at_their_limits_keep_their_reserved_quarter() -> None:
    shares = AccountShares(32)
    for account_id in range(16):
        while shares.may_take(account_id):
            shares.take(account_id)
    assert [shares.held(account_id) for account_id in range(16)] == [32] + [8] * 15
    assert (shares.total, shares.limit) == (152, 160)
    # A 17th account may take a slot, too: the first account uses shared slots only, so its reserved eight are free.
    assert shares.may_take(16)


def test_an_account_can_take_slots_given_in_advance_in_addition_to_the_shared_ones() -> None:
    shares = AccountShares(8, held={1: -4})
    for _ in range(12):
        assert shares.may_take(1)
        shares.take(1)
    assert not shares.may_take(1)
