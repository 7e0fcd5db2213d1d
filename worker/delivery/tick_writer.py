"""Writes a dispatcher tick in one transaction: results of attempts, throttle states of their targets, new claims."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

from runtime import logs
from schemas.exports.delivery import Claim, CompletedAttempt
from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import TargetKey, ThrottleState
from schemas.trackers.failures import CONFIGURATION_CODES
from storage.db.engine import OUTAGES, connection, transaction
from storage.exports import claims_sql, transitions
from storage.exports.events import deliveries
from storage.targets import throttle_state_sql
from worker import outages
from worker.delivery import throttle
from worker.delivery.claim_planner import MAX_BATCH, ClaimPlan, ClaimPlanner
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.inbox import SendResult
from worker.delivery.lease_keeper import LeaseKeeper
from worker.delivery.options import DispatcherOptions
from worker.delivery.target_queues import TargetQueues
from worker.delivery.throttle_writer import effects_of, log_events, write_effects

Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)


class Tick(NamedTuple):
    """The claims of a tick, and the throttle states that it has read or written, by target."""

    claims: list[Claim]
    states: dict[str, ThrottleState]


@dataclass(slots=True)
class TickWriter:
    """Does all database work of the dispatcher's thread; while the database is unavailable it retries until `gives_up`.

    `gives_up` gets the monotonic time at which the work began.
    """

    options: DispatcherOptions
    planner: ClaimPlanner
    clock: ClockGuard
    leases: LeaseKeeper
    queues: TargetQueues
    gives_up: Callable[[float], bool]
    #: When exports were last claimed, by the monotonic clock.
    _claimed_at: float = field(default=0.0, init=False)

    def write(self, results: Sequence[SendResult], *, claiming: bool) -> Tick:
        """Write results and claim what there is room for; a result that the database refuses does not lose the others."""
        try:
            # Retried, because the results are stored nowhere else.
            return self._retry(partial(self._write, results, claiming=claiming))
        except OUTAGES:
            raise
        except Exception:
            if not results:
                raise
            _log.exception("tick not written, writing its results one by one")
        for each in results:
            try:
                self._retry(partial(self._write, [each], claiming=False))
            except Exception:  # noqa: BLE001 - its lease expires, and the export is sent again
                _log.exception("result not written", extra={"export_id": each.claim.export_id})
        return Tick([], {})

    def read_states(self, target_ids: Collection[str]) -> dict[str, ThrottleState]:
        """Return the throttle states of these targets."""
        return self._retry(lambda: throttle_state_sql.read(target_ids))

    def postpone(self, claims: Sequence[Claim]) -> None:
        """Return claims that were not sent, without an attempt."""
        self._retry(lambda: claims_sql.postpone(claims, self.options.now(), self.options.worker))

    def _retry(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that gets a connection."""

        def connected() -> Result:
            # Once per tick, and before a wait for the database.
            logs.write_waiting()
            with connection():
                return work()

        return outages.retry_database(connected, partial(self.gives_up, time.monotonic()))

    def _write(self, results: Sequence[SendResult], *, claiming: bool) -> Tick:
        """Write the results and their effects, and claim, all in one transaction."""
        worker = self.options.worker
        attempts = [each.attempt for each in results if each.attempt is not None]
        # Not before there is a connection: a wait for it would look as if the clock had been set.
        self.leases.keep()
        self.planner.share = self.leases.share
        now = self.options.now()
        claiming = claiming and self.clock.allows_claims()
        # Planning takes no write lock; most ticks of an idle worker end here. Results are written first: they may change
        # what a plan finds.
        plan = self._plan(results, now) if claiming and not results else ClaimPlan()
        if not (results or plan):
            return Tick([], {})
        with transaction():
            moved = claims_sql.record_attempts(attempts, now, worker)
            written = write_effects(effects_of(attempts, moved), now, worker, self.queues.waiting())
            for target_id in _active_after_refusal(attempts, moved, written.states):
                transitions.requeue_blocked(target_id, now, worker)
            claims_sql.postpone([each.claim for each in results if each.is_unsent], now, worker)
            # Read the time again: other writers may have delayed the transaction for most of a lease.
            now = self.options.now()
            claiming = claiming and not self.clock.was_set_since_check(now)
            claims = self._claim(plan or self._plan(results, now), now) if claiming else []
        _log_stale(attempts, moved)
        self.options.count(attempts, moved)
        log_events(written.events)
        return Tick(claims, written.states)

    def _plan(self, results: Sequence[SendResult], now: datetime) -> ClaimPlan:
        returned = Counter(TargetKey(each.claim.account_id, each.claim.target_id) for each in results)
        held = self.leases.count_by_target()
        held.subtract(returned)
        self.planner.record_tick(time.monotonic() - self._claimed_at)
        return self.planner.plan(held, returned, now, self.queues.count_waiting())

    def _claim(self, plan: ClaimPlan, now: datetime) -> list[Claim]:
        """Claim the exports that the plan allows, and end those of targets that were turned off."""
        transitions.end_waiting(plan.off, now, self.options.worker, MAX_BATCH)
        # Another worker may have used the rate limit since the plan; the row lock prevents that from here on. Targets that
        # another worker has locked are skipped: two workers that wait for each other's targets would deadlock.
        limited = throttle_state_sql.read(plan.rate_limited, locked=True, waits=False)
        allowance = dict.fromkeys(plan.rate_limited, 0)
        # Leave an attempt to an event that has been due for longer than every export; its task claims it within a second.
        spared = deliveries.targets_to_spare(limited, now) if limited else ()
        for target_id, state in limited.items():
            allowance[target_id] = max(0, throttle.rate_allowance(state, now) - (target_id in spared))
        quotas = {target_id: min(quota, allowance.get(target_id, quota)) for target_id, quota in plan.quotas.items()}
        allowed = {target_id: quota for target_id, quota in quotas.items() if quota}
        claims = claims_sql.claim_due(allowed, now, self.options.lease_s, self.options.worker)
        self._claimed_at = time.monotonic()
        claimed = Counter(claim.target_id for claim in claims)
        self.planner.record_claims(plan, claimed)
        throttle_state_sql.write(
            throttle.use_rate_allowance(state, claimed[target_id], now)
            for target_id, state in limited.items()
            if claimed[target_id]
        )
        return claims


def _active_after_refusal(
    attempts: Sequence[CompletedAttempt], moved: Collection[str], states: Mapping[str, ThrottleState]
) -> set[str]:
    """Return the trackers that refused attempts with a former URL, token or settings, and so are still active."""
    refused = {
        each.claim.target_id
        for each in attempts
        if each.verdict.reason in CONFIGURATION_CODES and each.claim.export_id in moved
    }
    return {each for each in refused if each in states and states[each].status is TargetStatus.ACTIVE}


def _log_stale(attempts: Sequence[CompletedAttempt], moved: set[str]) -> None:
    for attempt in attempts:
        if attempt.claim.export_id not in moved:
            fields = {"export_id": attempt.claim.export_id, "attempt_id": attempt.id, "target_id": attempt.claim.target_id}
            _log.warning("lease expired before the result was written", extra=fields)
