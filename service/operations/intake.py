"""Use cases of intake: record a scanner's postback, accept an inbound email."""

from dataclasses import dataclass, replace

from runtime.clock import utc_now
from schemas.base.checkpoint import Checkpoint
from schemas.findings.life_cycle import FIXED_AFTER_RUNS
from schemas.intake.artifacts import artifact_url
from schemas.intake.email import EmailAccepted, InboundEmail
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.scanner import ScanPostback
from storage.accounts.account_limits import AccountLimits
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.intake import emails, findings
from storage.intake.emails import PreparedEmail
from storage.intake.findings import PreparedPostback


@dataclass(frozen=True, slots=True)
class IntakeOperations:
    """Stores what scanners and email providers post, and prepares exports from it."""

    default_project_id: int | None
    limits: AccountLimits
    rules: ApprovalRules
    artifacts_base_url: str = ""
    fixed_after_runs: int = FIXED_AFTER_RUNS

    def prepare_postback(self, postback: ScanPostback, checkpoint: Checkpoint) -> PreparedPostback:
        """Compare a postback with the findings already known, before the transaction that records it."""
        url = artifact_url(self.artifacts_base_url, postback.screenshot_path)
        postback = postback if url is None else replace(postback, screenshot_url=url)
        return findings.prepare_postback(postback, self.default_project_id, checkpoint)

    def record_postback(self, prepared: PreparedPostback, actor: str) -> PostbackResult:
        """Store the page and its findings, and prepare or extend exports. Raises ValidationFailed."""
        return findings.record(
            prepared, self.default_project_id, utc_now(), actor, self.limits, self.rules, self.fixed_after_runs
        )

    def prepare_email(self, email: InboundEmail, checkpoint: Checkpoint) -> PreparedEmail:
        """Write the ticket of an email, before the transaction that stores it."""
        return emails.prepare_email(email, checkpoint)

    def accept_email(self, prepared: PreparedEmail, actor: str) -> EmailAccepted:
        """Store an email and prepare its export; a repeated message id returns the first email. Raises ValidationFailed."""
        return emails.accept(prepared, self.default_project_id, utc_now(), actor, self.limits, self.rules)
