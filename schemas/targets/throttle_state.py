"""A target's throttle state: what all workers share between attempts to decide how much may be sent to it now."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from schemas.targets.target import TargetStatus


class TargetKey(NamedTuple):
    """A target and its account, as counters of claims name them."""

    account_id: int
    target_id: str


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """The columns of a target's row that decide its next attempts.

    `concurrency` is how many requests it may have open at once, over all workers; a fraction is progress to the next whole
    number. `ramp` bounds that for a while after a hold. `max_per_minute` is used up until `paced_until`. A successful
    delivery changes a failed `validation_status` to passed. `undelivered_in_row` counts attempts since the last success,
    rejected ones included, up to FAILING_AFTER.
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
    account_id: int
    validation_status: str | None = None
    undelivered_in_row: int = 0

    @property
    def key(self) -> TargetKey:
        """The target and its account."""
        return TargetKey(self.account_id, self.target_id)

    def is_held(self, now: datetime) -> bool:
        """Return whether the target is held until a time that its receiver or the circuit breaker set."""
        return self.held_until is not None and self.held_until > now

    def takes_attempts(self, now: datetime) -> bool:
        """Return whether an attempt may start at `now`."""
        return self.status is TargetStatus.ACTIVE and not self.is_held(now)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """A worker's rank among the workers that are alive, and their number."""

    rank: int = 0
    workers: int = 1
