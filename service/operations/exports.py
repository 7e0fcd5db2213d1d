"""Use cases of exports: prepare, edit, approve, retry, dismiss, restore, snooze, split.

`schemas.exports.state_machine` lists the states in which each of them is allowed; in any other state it raises Conflict.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runtime.clock import utc_now
from schemas.base.errors import ValidationFailed, WebhooksForbidden
from schemas.base.principal import Actor, TokenPrincipal
from schemas.content_policy.checked_form import read_checked
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll, Export, Preparation, PreparationForm
from schemas.targets.approval import TargetUrlRefused, not_active
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from schemas.triage.decision_forms import Edit
from schemas.url_policy.policy import TargetPolicy
from service.operations.address_check import AddressCheck
from storage.accounts.account_limits import AccountLimits
from storage.db import engine
from storage.exports import queries, receipts, transitions
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets
from storage.triage import decisions, splits, targeting


@dataclass(frozen=True, slots=True)
class ExportOperations:
    """Changes one export of the caller's account. Every method but `prepare` raises ExportNotFound and Conflict."""

    check: AddressCheck
    policy: TargetPolicy
    default_secret: DefaultSecret
    limits: AccountLimits
    rules: ApprovalRules
    artifacts_base_url: str

    def prepare(self, preparation: Preparation, account_id: int, actor: Actor) -> Export:
        """Store a ticket as a prepared export of the account.

        Raises ValidationFailed for a project of another account, and at the account's limit.
        """
        return transitions.prepare_by_hand(preparation, account_id, utc_now(), actor.key, self.limits, self.rules)

    def approve(self, export_id: str, actor: Actor, approval: Approval) -> Export:
        """Freeze the ticket for a target and make it due. Raises ValidationFailed for the target or the preview.

        In the service, run this and its transaction inside `blocking_refused_target`. After the commit, call
        `Operations.wake_workers`.
        """
        return transitions.approve(export_id, _account_of(export_id, actor), approval, utc_now(), actor.key, self.policy)

    def approve_all(self, approvals: Sequence[tuple[str, Approval]], actor: TokenPrincipal) -> list[Export]:
        """Approve distinct exports as `approve` does, all or none; the approvals must have the same target and events."""
        return transitions.approve_all(approvals, actor.account_id, utc_now(), actor.key, self.policy)

    def approve_for_all(self, export_id: str, actor: Actor, approval: ApprovalForAll) -> list[Export]:
        """Approve an export for several targets, one export for each target, all or none; otherwise like `approve`.

        Also raises ValidationFailed at the account's limit.
        """
        account_id = _account_of(export_id, actor)
        return targeting.approve_for_all(export_id, account_id, approval, utc_now(), actor.key, self.policy, self.limits)

    @contextmanager
    def blocking_refused_target(self, actor: Actor) -> Iterator[None]:
        """Block the target if the policy refuses its URL during an approval inside this context.

        By then the approval is rolled back. Only for the service, whose settings are those of the installation.
        """
        try:
            yield
        except TargetUrlRefused as refused:
            targets.refuse(refused.target_id, refused.reason, utc_now(), actor.key, refused.base_url)
            raise

    def check_blocked_target(self, export_id: str, actor: Actor, target_id: str | None = None) -> Validation | None:
        """Check the address of an export's blocked target before a retry.

        Returns None if the target is not blocked, or if `target_id` names another target. Waits for the resolver, so no
        transaction may be open. Raises WebhooksForbidden if the account may no longer use webhook targets. Raises
        ValidationFailed for a caller whose roles are in single projects, because the target belongs to the whole account.
        """
        url = queries.blocked_url(export_id, actor.account_id, target_id)
        engine.release()
        if url is None:
            return None
        if isinstance(actor, TokenPrincipal) and not actor.may_use_webhooks:
            raise WebhooksForbidden
        if isinstance(actor, TokenPrincipal) and actor.projects is not None:
            raise ValidationFailed(not_active(TargetStatus.BLOCKED, None))
        return self.check.validate(url, actor.account_id)

    def retry(self, export_id: str, actor: Actor, validation: Validation | None, target_id: str | None = None) -> Export:
        """Make a failed or blocked export due with its whole schedule, at the target `target_id` if that is given.

        `validation` is the result of `check_blocked_target`. In the service, run this and its transaction inside
        `blocking_refused_target`. Resumes a blocked target if its address is now allowed. The settings of the operator's
        shell may differ from those of the workers, so for the operator a worker validates the target as well. After the
        commit, call `Operations.wake_workers`.
        """
        if target_id is not None:
            elsewhere = targeting.retry_elsewhere(export_id, actor.account_id, target_id, utc_now(), actor.key, self.policy)
            if elsewhere is not None:
                return elsewhere
        is_client, default = isinstance(actor, TokenPrincipal), self.default_secret
        return transitions.retry(
            export_id, actor.account_id, utc_now(), actor.key, validation, default, records_validation=is_client
        )

    def edit(self, export_id: str, actor: Actor, edit: Edit) -> Export:
        """Replace parts of a prepared export's ticket; the caller must have searched them for forbidden content."""
        return decisions.edit(export_id, actor.account_id, utc_now(), actor.key, edit)

    def dismiss(
        self,
        export_id: str,
        actor: Actor,
        reason: DismissalReason | None = None,
        note: str | None = None,
        ticket_digest: str | None = None,
    ) -> Export:
        """Dismiss a prepared export; the caller must have searched the note for forbidden content."""
        return decisions.dismiss(export_id, actor.account_id, utc_now(), actor.key, reason, note, ticket_digest)

    def split(self, export_id: str, actor: Actor) -> list[str]:
        """Split a prepared group into one export per finding; return the ids, starting with the group's own."""
        return splits.split(export_id, actor.account_id, utc_now(), actor.key, self.limits, self.artifacts_base_url)

    def restore(self, export_id: str, actor: Actor, version: int | None = None) -> Export:
        """Move a dismissed export back to the state `prepared`, or end the snooze of a prepared one.

        Raises ValidationFailed at the account's limit, and if the export does not have the given `version`.
        """
        return decisions.restore(export_id, actor.account_id, utc_now(), actor.key, self.limits, version)

    def snooze(self, export_id: str, actor: Actor, until: datetime | None) -> Export:
        """Snooze a prepared export until a time, or until a finding is seen again. Raises ValidationFailed for the past."""
        return decisions.snooze(export_id, actor.account_id, utc_now(), actor.key, until)

    def receipt(self, export_id: str, actor: Actor) -> dict[str, Any]:
        """Return the delivery receipt of an export. Raises Conflict unless it is exported and chained in the audit log."""
        return receipts.read(export_id, actor.account_id)


def read_preparation(body: Any) -> Preparation:
    """Read the body of a ticket prepared by hand. Raises ValidationFailed with every problem, forbidden content included."""
    preparation: Preparation = read_checked(PreparationForm(), body)
    return preparation


def _account_of(export_id: str, actor: Actor) -> int:
    """Return the actor's account; for the operator, who has none, the account of the export. Raises ExportNotFound."""
    return queries.get(export_id).account_id if actor.account_id is None else actor.account_id
