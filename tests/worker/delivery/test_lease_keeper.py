"""The lease keeper: after a clock step, every worker has time to renew its leases before another worker claims."""

from datetime import datetime, timedelta
from typing import Final

import pytest

from tests.support.factories import NOW
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.lease_keeper import DEFER_CLAIMS_FACTOR, LeaseKeeper
from worker.delivery.options import RENEW_S, DispatcherOptions

#: Longer than claims are deferred after a clock step.
SLOW_S: Final = 2 * DEFER_CLAIMS_FACTOR * RENEW_S


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
    keeper = LeaseKeeper(DispatcherOptions("worker:test", 1, 1.0, clock), guard)
    keeper.keep()
    assert guard.allows_claims()
    clock.ahead_s = step_s
    keeper.keep()
    assert not guard.allows_claims()
    clock.passed_s += DEFER_CLAIMS_FACTOR * RENEW_S
    assert guard.allows_claims()
