"""An account stores no more than its limits allow, and its rows are seldom counted."""

from datetime import timedelta

import pytest

from schemas.base.errors import ValidationFailed
from storage.accounts.account_limits import RECOUNT_AFTER, REFUSE_FOR, UNLIMITED, AccountLimits, Limited
from storage.db.engine import execute
from storage.triage import decisions
from tests.support.database.query_plans import statements
from tests.support.factories import NOW, Customer, make_approved, make_customer, make_exports, make_failed, make_target

WAITING = Limited.WAITING_EXPORTS


def is_refused(limits: AccountLimits, customer: Customer, added: int = 1, after: timedelta = timedelta()) -> bool:
    try:
        limits.require_room(customer.account_id, WAITING, added, NOW + after)
    except ValidationFailed as failed:
        return [(problem.path, problem.code) for problem in failed.problems] == [("", "limit_reached")]
    return False


def test_everything_up_to_the_limit_is_stored(customer: Customer) -> None:
    make_exports(customer, 5)
    make_exports(make_customer(), 5)
    assert not is_refused(AccountLimits({WAITING: 5}), customer)
    assert is_refused(AccountLimits({WAITING: 4}), customer)
    assert not is_refused(UNLIMITED, customer)


def test_the_message_names_the_limit_and_its_setting(customer: Customer) -> None:
    make_target(customer)
    with pytest.raises(ValidationFailed) as caught:
        AccountLimits({Limited.TARGETS: 0}).require_room(customer.account_id, Limited.TARGETS, 1, NOW)
    assert "0 targets (MAX_TARGETS_PER_ACCOUNT)" in caught.value.problems[0].message


def test_a_request_that_adds_no_rows_is_accepted_at_the_limit(customer: Customer) -> None:
    make_exports(customer, 5)
    assert not is_refused(AccountLimits({WAITING: 1}), customer, added=0)


def test_only_unfinished_exports_count_as_waiting(customer: Customer) -> None:
    target = make_target(customer)
    make_approved(customer, target.id)
    make_failed(customer, target.id, 3)
    decisions.dismiss(make_exports(customer, 1)[0], customer.account_id, NOW, "user:test")
    make_exports(customer, 1)
    assert not is_refused(AccountLimits({WAITING: 2}), customer)
    assert is_refused(AccountLimits({WAITING: 1}), customer)


def test_rows_are_counted_again_after_a_while_only(customer: Customer) -> None:
    limits = AccountLimits({WAITING: 100})
    with statements() as ran:
        for number in range(50):
            assert not is_refused(limits, customer, after=RECOUNT_AFTER * number / 51)
    assert len(ran) == 1
    make_exports(customer, 101)
    assert is_refused(limits, customer, after=RECOUNT_AFTER)


def test_rows_added_by_the_same_process_count_at_once(customer: Customer) -> None:
    limits = AccountLimits({WAITING: 10})
    assert not is_refused(limits, customer)
    make_exports(customer, 11)
    assert is_refused(limits, customer, added=11, after=REFUSE_FOR)


def test_a_refused_client_causes_one_count_a_second_and_room_is_noticed(customer: Customer) -> None:
    make_exports(customer, 5)
    limits = AccountLimits({WAITING: 4})
    with statements() as ran:
        for _ in range(20):
            assert is_refused(limits, customer)
    assert len(ran) == 1
    execute("UPDATE exports SET status = 'dismissed'")
    assert not is_refused(limits, customer, after=REFUSE_FOR)


def test_rows_that_were_rolled_back_do_not_count_towards_the_limit(customer: Customer) -> None:
    """Those of a dry run, for example."""
    limits = AccountLimits({WAITING: 10})
    for _ in range(2):
        make_exports(customer, 6)
        assert not is_refused(limits, customer, added=6)
        execute("UPDATE exports SET status = 'dismissed'")


def test_the_usage_of_every_account_is_returned(customer: Customer) -> None:
    idle = make_customer()
    make_exports(customer, 3)
    usage = AccountLimits({WAITING: 7, Limited.TARGETS: 2}).usage([customer.account_id, idle.account_id], NOW)
    assert [(each.limited, each.used, each.limit) for each in usage[customer.account_id]] == [
        (WAITING, 3, 7),
        (Limited.TARGETS, 0, 2),
    ]
    assert [each.used for each in usage[idle.account_id]] == [0, 0]
