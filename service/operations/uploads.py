"""Use cases of uploads: store a capture or diagnostics and prepare an export."""

from runtime.clock import utc_now
from schemas.base.principal import TokenPrincipal
from schemas.exports.handoffs import Handoff
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


class UploadOperations:
    """Stores uploads, within the limits of their accounts."""

    def __init__(self, limits: AccountLimits, rules: ApprovalRules) -> None:
        self._limits = limits
        self._rules = rules

    def record(self, prepared: PreparedUpload, principal: TokenPrincipal) -> Handoff:
        """Store an upload and prepare an export from it; checks the grant as well. Raises ValidationFailed at a limit."""
        return handoffs.record_upload(prepared, principal, utc_now(), self._limits, self._rules)
