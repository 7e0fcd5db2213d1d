"""Detects that the wall clock was set, and decides when this worker may claim again.

Leases are measured by the wall clock: after a clock step, leases that other workers still renew may seem to have expired.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

#: If the wall clock drifts from the monotonic clock by more than this, it was set.
CLOCK_STEP_S: Final = 1.0


@dataclass(slots=True)
class ClockGuard:
    """Compares the wall clock with the monotonic clock; `compare_clocks` corrects `now` by the clock shared by all hosts."""

    now: Callable[[], datetime]
    compare_clocks: Callable[[], None]
    monotonic: Callable[[], float] = time.monotonic
    #: Both clocks at the last check.
    _clocks: tuple[datetime, float] | None = field(default=None, init=False)
    #: Monotonic time from which this worker may claim.
    _claim_from: float = field(default=0.0, init=False)

    def check(self, *, compare: bool) -> float:
        """Return by how many seconds the clock was set since the last check: 0 if it was not, and at the first check.

        With `compare`, at the first check, and after a step, it first corrects the clock. The caller holds a database
        connection.
        """
        # A step may have corrected the clock; then the known difference to the shared clock is wrong. If the comparison
        # fails, the next check finds the step again.
        if compare or self._clocks is None or self.was_set_since_check(self.now()):
            self.compare_clocks()
        before, self._clocks = self._clocks, (self.now(), self.monotonic())
        step_s = 0.0 if before is None else _apart_s(before, self._clocks)
        return step_s if abs(step_s) > CLOCK_STEP_S else 0.0

    def was_set_since_check(self, now: datetime) -> bool:
        """Return whether the clock was set since the last check.

        If so, leases that are still held may seem expired at `now`, until the next tick renews those of this worker.
        """
        return self._clocks is not None and abs(_apart_s(self._clocks, (now, self.monotonic()))) > CLOCK_STEP_S

    def defer_claims(self, seconds: float) -> None:
        """Claim nothing for this long, so that every worker can renew its leases before another one takes them over."""
        self._claim_from = self.monotonic() + seconds

    def allows_claims(self) -> bool:
        """Return whether this worker may claim."""
        return self.monotonic() >= self._claim_from


def _apart_s(before: tuple[datetime, float], after: tuple[datetime, float]) -> float:
    """Return by how many seconds the wall clock has drifted from the monotonic clock between two readings of both."""
    return (after[0] - before[0]).total_seconds() - (after[1] - before[1])
