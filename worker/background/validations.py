"""Validates targets: URL, DNS, connection and certificate; for a tracker, also its token and settings.

Nothing is sent to a receiver, and nothing is created at a tracker. The result is recorded with the target. Only our own
address policy blocks a target; a resolver error, a receiver that is down or a token that a tracker rejects is shown and
blocks nothing. No database connection is held during the network calls.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from runtime.account_shares import AccountId
from runtime.dns_resolver import DnsFailure
from schemas.exports.delivery import TargetEffect
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from schemas.trackers.exchange import TrackerFailure
from schemas.trackers.failures import RATE_LIMITED
from schemas.trackers.registry import GENERIC_WEBHOOK
from storage.db.engine import connection, transaction
from storage.exports import transitions
from storage.targets import targets, validations
from storage.targets.validations import ValidationJob
from worker.delivery.throttle_writer import SentEffect, log_events, write_effects
from worker.delivery.tracker_outcomes import decide_validation
from worker.trackers.runner import TrackerRunner

#: A client waits for the result: a lost wake-up costs it a second at most.
POLL_S: Final = 1.0
#: Reasons that say nothing about the target; they postpone its validation.
_POSTPONING: Final = frozenset({DnsFailure.OVERLOADED, RATE_LIMITED})

Inspect: TypeAlias = Callable[[ValidationJob], Validation]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ValidationTask:
    """Claims and validates targets.

    `inspect_address` checks a target within a deadline and never raises for failures of the network; a lease lasts `lease_s`
    seconds. `trackers` validates the token and settings of trackers.
    """

    inspect_address: Inspect
    worker: str
    now: Callable[[], datetime]
    lease_s: float
    trackers: TrackerRunner

    def claim(self, excluded: Collection[AccountId] = ()) -> ValidationJob | None:
        """Claim the target that has been due longest, of any account but those `excluded`."""
        with connection():
            return validations.claim_next(self.now(), self.lease_s, excluded)

    def validate(self, due: ValidationJob) -> None:
        """Validate a target that was claimed, and record the result."""
        validation, hold = self._examine(due)
        now = self.now()
        if hold is not None:
            with connection(), transaction():
                held = {due.target_id: [SentEffect(hold, due.base_url, due.secret_sealed)]}
                log_events(write_effects(held, now, self.worker).events)
        if validation.reason in _POSTPONING:
            # Our own overload or a rate limit, not the target's fault: validate the target once the limit allows it.
            if hold is not None:
                with connection():
                    validations.postpone(due, now + timedelta(seconds=hold.hold_s or 0))
            postponed = {"target_id": due.target_id, "worker": self.worker, "reason": validation.reason}
            _log.warning("validation postponed", extra=postponed)
            return
        with connection():
            is_recorded = validations.finish(due, validation, self.now(), self.worker)
        if is_recorded and validation.is_refused:
            extra = {"target_id": due.target_id, "reason": validation.reason, "worker": self.worker}
            _log.warning("target blocked: its address is not allowed", extra=extra)
        if is_recorded and validation.has_passed and due.options.provider_key != GENERIC_WEBHOOK:
            while self._requeue_blocked(due.target_id):
                pass

    def _requeue_blocked(self, target_id: str) -> bool:
        """Make due the next batch of the exports that `resume` left blocked; return whether there may be more."""
        with connection(), transaction():
            if targets.get(target_id, None).status is not TargetStatus.ACTIVE:
                return False
            count = transitions.requeue_blocked(target_id, self.now(), self.worker)
        # A count below REQUEUED_AT_ONCE does not mean the end: another process may have retried some of the batch meanwhile.
        return count > 0

    def inspect(self, due: ValidationJob) -> Validation:
        """Return whether a delivery to a target could succeed now: check its address, then its tracker, in one deadline."""
        return self._examine(due)[0]

    def _examine(self, due: ValidationJob) -> tuple[Validation, TargetEffect | None]:
        """Return the result of a validation, and the hold that the tracker asks for."""
        began_at = time.monotonic()
        found = self.inspect_address(due)
        is_tracker = due.options.provider_key != GENERIC_WEBHOOK
        if not is_tracker or due.secret_sealed is None or not found.has_passed:
            return found, None
        result = self.trackers.validate(due, time.monotonic() - began_at)
        reason = result.value.reason if isinstance(result.value, TrackerFailure) else result.outcome.error
        effect = decide_validation(result, self.now()).effect
        hold = TargetEffect(hold_s=effect.hold_s, hold_reason=effect.hold_reason) if effect.hold_s is not None else None
        return found if reason is None else Validation(reason, result.outcome.refused), hold
