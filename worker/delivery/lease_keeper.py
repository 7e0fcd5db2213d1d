"""Writes this worker's heartbeat, renews the leases of its claims, and reads its share of the targets' concurrency."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from schemas.exports.delivery import Claim
from schemas.targets.throttle_state import TargetKey, WorkerShare
from storage.db.engine import connection, transaction
from storage.exports import claims_sql, transitions, worker_heartbeats
from storage.targets import throttle_state_sql
from worker.delivery.claim_planner import MAX_BATCH
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.options import DispatcherOptions
from worker.delivery.throttle import LONGEST_HOLD_S

#: How soon to try again after a renewal that failed or did not renew every claim.
RENEW_AGAIN_S: Final = 0.5
#: How long claiming is deferred after a clock step or a late renewal, in multiples of `renew_s`: in this time, every worker
#: renews its leases.
DEFER_CLAIMS_FACTOR: Final = 1.5

_log: Final = logging.getLogger(__name__)


class LeaseKeeper:
    """Holds claims and renews their leases every `renew_s` seconds, for `lease_s` seconds each."""

    def __init__(self, options: DispatcherOptions, clock: ClockGuard) -> None:
        self._options = options
        self._clock = clock
        self.share = WorkerShare()
        self._held: dict[int, Claim] = {}
        self._renew_at = 0.0
        #: When the last heartbeat was written; None before the first one, and -inf after a clock step.
        self._renewed_at: float | None = None
        #: Whether leases and holds from before the clock was set back may last too long; unknown at the start.
        self._may_be_long = True
        self._has_left = False

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, claims: Iterable[Claim]) -> None:
        """Renew the leases of these claims from now on."""
        self._held |= {id(claim): claim for claim in claims}

    def drop(self, claims: Iterable[Claim]) -> None:
        """Stop renewing the leases of these claims."""
        for claim in claims:
            del self._held[id(claim)]

    def count_by_target(self) -> Counter[TargetKey]:
        """Return how many claims are held for each target."""
        return Counter(TargetKey(claim.account_id, claim.target_id) for claim in self._held.values())

    def until_renewal_s(self) -> float:
        """Return the seconds until the next renewal is due."""
        return max(0.0, self._renew_at - time.monotonic())

    def keep(self) -> None:
        """Check the clock, and renew the leases if a renewal is due. The caller holds a database connection."""
        step_s = self._clock.check(compare=not self.until_renewal_s())
        if step_s:
            _log.warning("clock was set, renewing leases before claiming again", extra={"step_s": round(step_s)})
            # Defer claims until the renewal is written, and then until the other workers have had time for theirs.
            self._clock.defer_claims(math.inf)
            self._renew_at, self._renewed_at = 0.0, -math.inf
            if step_s < 0:
                # If PostgreSQL's clock was set back, other workers use the old time until they compare their clocks. For
                # them, leases by the new time would have expired; those by the old time still last.
                self._renew_at = time.monotonic() + DEFER_CLAIMS_FACTOR * self._options.renew_s
                self._may_be_long = True
        if not self.until_renewal_s():
            if self._may_be_long:
                self._shorten()
            self._renew()

    def leave(self) -> None:
        """Remove this worker's heartbeat for good, so that other workers take over its share of the targets at once."""
        self._has_left = True
        with connection():
            worker_heartbeats.remove(self._options.worker)

    def _shorten(self) -> None:
        """Shorten leases and holds to their normal length.

        After a step back, the leases of a worker that died before it would last until the clock shows the old time again. So
        would the waits for rate limits and breakers.
        """
        transitions.shorten_leases(self._options.now(), self._options.lease_s)
        throttle_state_sql.shorten_holds(self._options.now(), LONGEST_HOLD_S)
        self._may_be_long = False

    def _renew(self) -> None:
        self._renew_at = time.monotonic() + RENEW_AGAIN_S
        held, renewed = list(self._held.values()), 0
        with transaction():
            # Read the time after the transaction has begun: the wait for it would otherwise shorten the lease.
            now = self._options.now()
            for first in range(0, len(held), MAX_BATCH):
                renewed += claims_sql.renew(held[first : first + MAX_BATCH], now, self._options.lease_s)
            if not self._has_left:
                self.share = worker_heartbeats.beat(self._options.worker, now)
        self._let_others_renew()
        self._renewed_at = time.monotonic()
        self._renew_at = self._renewed_at + (self._options.renew_s if renewed == len(held) else RENEW_AGAIN_S)

    def _let_others_renew(self) -> None:
        """Defer claims after a late renewal or a clock step: leases of other workers may have expired, or seem so.

        A database outage or a suspended machine kept the other workers from renewing too, and they still hold their claims.
        """
        late_s = self._options.lease_s - self._options.renew_s
        if self._renewed_at is not None and time.monotonic() - self._renewed_at > late_s:
            self._clock.defer_claims(DEFER_CLAIMS_FACTOR * self._options.renew_s)
