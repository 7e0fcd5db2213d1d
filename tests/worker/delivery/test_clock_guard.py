"""The clock guard reports a clock step once, and again if the database failed while the step was handled."""

from datetime import timedelta
from typing import Final

import pytest
from peewee import OperationalError

from tests.support.factories import NOW
from worker.delivery.clock_guard import ClockGuard

HOUR_S: Final = 3600.0


class SetClock:
    """A wall clock and a monotonic clock; `compare` corrects the wall clock, or fails once."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.ahead_s = 0.0
        self.corrects_by_s = 0.0
        self.is_unavailable = False
        self.guard = ClockGuard(
            lambda: NOW + timedelta(seconds=self.passed_s + self.ahead_s), self.compare, lambda: self.passed_s
        )

    def compare(self) -> None:
        if self.is_unavailable:
            self.is_unavailable = False
            raise OperationalError("gone")
        self.ahead_s, self.corrects_by_s = self.ahead_s + self.corrects_by_s, 0.0


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_clock_step_is_detected_once(step_s: float) -> None:
    clock = SetClock()
    assert clock.guard.check(compare=False) == 0.0
    clock.passed_s = 60.0
    assert clock.guard.check(compare=False) == 0.0
    clock.ahead_s = step_s
    assert clock.guard.check(compare=False) == step_s
    assert clock.guard.check(compare=False) == 0.0


def test_a_clock_step_corrected_by_the_shared_clock_is_not_reported() -> None:
    clock = SetClock()
    clock.guard.check(compare=False)
    clock.ahead_s, clock.corrects_by_s = HOUR_S, -HOUR_S
    assert clock.guard.check(compare=False) == 0.0


def test_a_clock_step_is_detected_again_if_the_database_failed_meanwhile() -> None:
    clock = SetClock()
    clock.guard.check(compare=False)
    clock.ahead_s, clock.is_unavailable = HOUR_S, True
    with pytest.raises(OperationalError):
        clock.guard.check(compare=False)
    assert clock.guard.check(compare=False) == HOUR_S


def test_the_first_check_always_compares_with_the_shared_clock() -> None:
    clock = SetClock()
    clock.corrects_by_s = HOUR_S
    assert clock.guard.check(compare=False) == 0.0
    assert clock.ahead_s == HOUR_S
