"""One decision on many exports of an account."""

from collections.abc import Sequence
from datetime import datetime

from schemas.triage.bulk_decisions import BulkAction, BulkDecision, DecisionResult, ExportReference
from schemas.triage.decision_forms import DismissalRequest
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.db.engine import transaction
from storage.exports import transitions
from storage.triage import decisions


def decide(
    decision: BulkDecision,
    wanted: Sequence[ExportReference],
    account_id: int,
    now: datetime,
    actor: str,
    policy: TargetPolicy,
    limits: AccountLimits,
    reason: str | None = None,
) -> list[DecisionResult]:
    """Decide on exports in one transaction; the results are in the order of `wanted`. `reason` is for the audit log.

    An export whose result is an error is unchanged. Raises ValidationFailed at the account's limit.
    """
    with transaction():
        if decision.action is BulkAction.APPROVE:
            target_id = str(decision.target_id)
            return transitions.approve_many(wanted, account_id, target_id, now, actor, policy, reason)
        if decision.action is BulkAction.DISMISS:
            dismissal = DismissalRequest(decision.reason, decision.note)
            return transitions.dismiss_many(wanted, account_id, now, actor, dismissal, reason)
        if decision.action is BulkAction.RETRY:
            return transitions.retry_many(wanted, account_id, now, actor, reason)
        return decisions.restore_many(wanted, account_id, now, actor, reason, limits)
