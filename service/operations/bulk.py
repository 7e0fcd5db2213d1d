"""Use cases of decisions on many exports: at once for those that a request names, as a job for those of a filter."""

from collections.abc import Sequence

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.errors import ValidationFailed
from schemas.base.principal import TokenPrincipal
from schemas.exports.bulk_decisions import BulkDecision, DecisionResult, ExportReference
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import UNLIMITED, AccountLimits
from storage.exports import bulk_decisions


class BulkOperations:
    """Decides on many exports of the caller's account."""

    def __init__(self, wake_ups: WakeUpQueue, policy: TargetPolicy, limits: AccountLimits = UNLIMITED) -> None:
        self._wake_ups = wake_ups
        self._policy = policy
        self._limits = limits

    def decide(
        self, decision: BulkDecision, exports: Sequence[ExportReference], principal: TokenPrincipal
    ) -> list[DecisionResult]:
        """Decide on up to MAX_REFERENCES exports; the results are in their order, and an error leaves the others alone.

        The service runs it, and the transaction around it, in `ExportOperations.blocking_refused_target`. Call
        `wake_workers` after the commit. Raises ValidationFailed for the target of an approval, which no export could pass,
        and at the account's limit.
        """
        account_id, now = principal.account_id, utc_now()
        results = bulk_decisions.decide(decision, exports, account_id, now, principal.key, self._policy, self._limits)
        for each in results:
            if (
                isinstance(each.error, ValidationFailed)
                and decision.target_id
                and each.error.problems[0].path == "/target_id"
            ):
                raise each.error
        return results

    def wake_workers(self) -> None:
        """Wake the workers for what was decided, after the commit."""
        self._wake_ups.notify()
