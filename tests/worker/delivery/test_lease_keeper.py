"""The lease keeper: after a clock step, every worker has time to renew its leases before another worker claims."""

import time
from datetime import datetime, timedelta
from typing import Final

import pytest

from schemas.base.timestamps import to_ms
from storage.db.engine import rows
from tests.support.factories import NOW, Customer, claim_due
from tests.support.worker.dispatchers import FakeClock, approved
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.lease_keeper import DEFER_CLAIMS_FACTOR, LeaseKeeper
from worker.delivery.options import LEASE_S, RENEW_S, DispatcherOptions

#: Longer than claims are deferred after a clock step.
SLOW_S: Final = 2 * DEFER_CLAIMS_FACTOR * RENEW_S
#: The period of renewals for which these tests wait.
SHORT_S: Final = 0.2


class ClockOfASlowDatabase:
    """A wall clock, and `passed_s` of a monotonic one; each reading takes as long as a query of a slow database."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.ahead_s = 0.0

    def __call__(self) -> datetime:
        self.passed_s += SLOW_S
        return NOW + timedelta(seconds=self.passed_s + self.ahead_s)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("step_s", [30.0, -30.0])
def test_claims_wait_after_the_renewal_that_follows_a_clock_step_however_long_it_took(step_s: float) -> None:
    clock = ClockOfASlowDatabase()
    guard = ClockGuard(clock, lambda: None, lambda: clock.passed_s)
    keeper = LeaseKeeper(DispatcherOptions("worker:test", 1, 1.0, clock, renew_s=SHORT_S), guard)
    keeper.keep()
    assert guard.allows_claims()
    clock.ahead_s = step_s
    keeper.keep()
    if step_s < 0:
        assert not guard.allows_claims()
        time.sleep(keeper.until_renewal_s())
        keeper.keep()
    assert not guard.allows_claims()
    clock.passed_s += DEFER_CLAIMS_FACTOR * SHORT_S
    assert guard.allows_claims()


def test_a_lease_lasts_by_the_old_time_until_every_worker_has_noticed_that_the_clock_was_set_back(
    customer: Customer,
) -> None:
    [export_id] = approved(customer, now=NOW)
    clock = FakeClock()
    keeper = LeaseKeeper(DispatcherOptions("worker:test", 1, 1.0, clock, renew_s=SHORT_S), ClockGuard(clock, lambda: None))
    keeper.hold(claim_due(1, NOW, LEASE_S, "worker:test"))
    keeper.keep()
    clock.advance(-3600)
    keeper.keep()
    # Another worker still uses the old time.
    assert not claim_due(1, NOW, LEASE_S, "worker:other")
    time.sleep(keeper.until_renewal_s())
    keeper.keep()
    assert rows("SELECT id, due_at FROM exports") == [(export_id, to_ms(clock.at + timedelta(seconds=LEASE_S)))]
