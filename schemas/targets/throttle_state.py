"""A target's turn: what is kept of it between attempts, and shared by every worker, to decide how much it is sent now."""

from dataclasses import dataclass
from datetime import datetime

from schemas.targets.target import TargetStatus


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """What a target's row says about its next attempts.

    `concurrency` is how many requests it may have open at once, over all workers; a fraction is on its way to the next whole
    one. `ramp` bounds that for a while after a hold. `paced_until` is up to when `max_per_minute` is used up.
    """

    target_id: str
    status: TargetStatus
    connected: str
    last_success_at: datetime | None
    held_until: datetime | None
    held_reason: str | None
    concurrency: float
    ramp: int
    failures_in_row: int
    failing_since: datetime | None
    max_per_minute: int | None
    paced_until: datetime | None

    def is_held(self, now: datetime) -> bool:
        """Tell whether it waits for a moment that its receiver or its breaker named."""
        return self.held_until is not None and self.held_until > now

    def takes_attempts(self, now: datetime) -> bool:
        """Tell whether an attempt may start at `now`."""
        return self.status is TargetStatus.ACTIVE and not self.is_held(now)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """A worker's place among those that are alive."""

    rank: int = 0
    workers: int = 1
