"""Use cases of uploads: store a capture or diagnostics and prepare an export; follow what becomes of it."""

from dataclasses import dataclass

from runtime.clock import utc_now
from schemas.base.errors import Forbidden
from schemas.base.principal import TokenPrincipal
from schemas.exports.handoffs import Handoff, HandoffProgress
from schemas.intake.diagnostics import Diagnostics
from schemas.intake.evidence import Capture
from storage.accounts.account_limits import AccountLimits
from storage.accounts.grants import manageable
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.intake import handoffs
from storage.intake.handoffs import PreparedUpload


def require_grant(upload: Capture | Diagnostics, principal: TokenPrincipal) -> None:
    """Raise Forbidden unless the user manages the project or report; ValidationFailed if the report is not the project's."""
    manageable(principal, upload.project_id, upload.report_id)


def get_handoff(handoff_id: str, principal: TokenPrincipal) -> HandoffProgress:
    """Return what became of an upload of the caller's user.

    Raises NotFound; Forbidden without the ability that the upload needed, or once the user no longer manages its project.
    """
    handoff = handoffs.get(handoff_id, principal.user_id)
    if handoff.ability not in principal.abilities:
        raise Forbidden(f"This token lacks the ability {handoff.ability.value}.")
    # A handoff names the ticket: a user who no longer manages the project must not see it.
    manageable(principal, handoff.project_id, handoff.report_id)
    return handoff


@dataclass(frozen=True, slots=True)
class UploadOperations:
    """Stores uploads, within the limits of their accounts."""

    limits: AccountLimits
    rules: ApprovalRules

    def record(self, prepared: PreparedUpload, principal: TokenPrincipal) -> Handoff:
        """Store an upload and prepare an export from it; checks the grant as well. Raises ValidationFailed at a limit."""
        return handoffs.record_upload(prepared, principal, utc_now(), self.limits, self.rules)
