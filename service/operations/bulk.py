"""Use cases of decisions on many exports: at once for exports that are listed, as a job for exports that match a filter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.clock import utc_now
from schemas.base.errors import ExportNotFound, Forbidden, ValidationFailed
from schemas.base.principal import OPERATOR, Ability, Actor, TokenPrincipal
from schemas.triage.bulk_decisions import BulkDecision, DecisionResult, ExportReference
from schemas.triage.bulk_jobs import BulkJob
from schemas.triage.export_filter import ExportQuery
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.account_limits import AccountLimits
from storage.db.leases import JobLease
from storage.exports import queries
from storage.triage import bulk_jobs, decisions
from storage.triage.bulk_jobs import NewBulkJob


@dataclass(frozen=True, slots=True)
class BulkOperations:
    """Decides on many exports of the caller's account."""

    policy: TargetPolicy
    limits: AccountLimits

    def decide(
        self, decision: BulkDecision, exports: Sequence[ExportReference], principal: TokenPrincipal
    ) -> list[DecisionResult]:
        """Decide on up to MAX_REFERENCES exports; return one result for each, in the same order.

        An error affects only its own export. In the service, run this and its transaction inside
        `ExportOperations.blocking_refused_target`. Call `Operations.wake_workers` after the commit. Raises ValidationFailed
        if the target of an approval is invalid for every export, and at the account's limit.
        """
        account_id, now = principal.account_id, utc_now()
        refused = _forbidden(exports, principal)
        within = [each for each in exports if each.id not in refused]
        decided = decisions.decide(decision, within, account_id, now, principal.key, self.policy, self.limits)
        by_id = {each.id: each for each in decided} | refused
        results = [by_id[each.id] for each in exports]
        for each in results:
            error = each.error
            if decision.target_id and isinstance(error, ValidationFailed) and error.problems[0].path == "/target_id":
                raise error
        return results

    def begin_job(
        self, decision: BulkDecision, query: ExportQuery, expected_count: int, principal: TokenPrincipal
    ) -> BulkJob:
        """Create a job in which a worker decides on every export of the account that `query` matches now.

        In the service, run this and its transaction inside `ExportOperations.blocking_refused_target`. Call
        `Operations.wake_workers` after the commit. Raises Forbidden for a caller whose roles are in single projects,
        CountDiffers unless `expected_count` exports match, Conflict for too many jobs, ValidationFailed for too many exports
        or for the target of an approval.
        """
        if principal.projects is not None:
            raise Forbidden("A decision by filter needs a role in the whole account; name up to 200 exports instead.")
        query = replace(query, account_id=principal.account_id)
        new = NewBulkJob(decision, query, expected_count, principal.account_id, principal.user_id, principal.key)
        return bulk_jobs.request(new, utc_now(), self.policy)

    def begin_claimed(self, decision: BulkDecision, query: ExportQuery, expected_count: int, account_id: int) -> JobLease:
        """Create a job of the operator, and claim it for its first batch. Raises what `begin_job` raises."""
        query = replace(query, account_id=account_id)
        new = NewBulkJob(decision, query, expected_count, account_id, None, OPERATOR.key)
        return bulk_jobs.begin(new, utc_now(), self.policy)

    def job(self, job_id: str, actor: Actor) -> BulkJob:
        """Return a job. Raises NotFound."""
        return bulk_jobs.get(job_id, actor.account_id)

    def cancel(self, job_id: str, actor: Actor) -> BulkJob:
        """End a running job; its earlier decisions remain. A job that has ended is returned unchanged. Raises NotFound."""
        return bulk_jobs.cancel(job_id, utc_now(), actor.key, actor.account_id)


def _forbidden(exports: Sequence[ExportReference], principal: TokenPrincipal) -> dict[str, DecisionResult]:
    """Return error results for those exports on which the caller's roles in single projects allow no decision."""
    allowed = principal.projects_with(Ability.APPROVE_EXPORTS)
    if allowed is None or principal.projects is None:
        return {}
    projects = queries.projects_of([each.id for each in exports])
    refused: dict[str, DecisionResult] = {}
    for each in exports:
        project_id = projects.get(each.id)
        if project_id not in allowed:
            is_visible = project_id in principal.projects
            error = Forbidden("Your role in this project does not allow this.") if is_visible else ExportNotFound()
            refused[each.id] = DecisionResult(each.id, error=error)
    return refused
