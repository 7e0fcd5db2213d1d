"""Creates every use case once, for the API, the console and the command line."""

from dataclasses import dataclass

from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.settings.definitions import Settings
from service.operations.address_check import AddressCheck
from service.operations.approval_rules import ApprovalRuleOperations
from service.operations.bulk import BulkOperations
from service.operations.exports import ExportOperations
from service.operations.intake import IntakeOperations
from service.operations.report_uploads import ReportUploadOperations
from service.operations.targets import TargetOperations
from storage.accounts.account_limits import account_limits
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.intake.options import IntakeOptions
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault


@dataclass(frozen=True, slots=True)
class Operations:
    """The use cases that have dependencies."""

    wake_ups: WakeUpQueue
    exports: ExportOperations
    targets: TargetOperations
    bulk: BulkOperations
    intake: IntakeOperations
    report_uploads: ReportUploadOperations
    approval_rules: ApprovalRuleOperations

    def wake_workers(self) -> None:
        """Wake the workers, after the commit, for exports and jobs that became due."""
        self.wake_ups.notify()


def build_operations(
    settings: Settings, wake_ups: WakeUpQueue | None = None, resolver: DnsResolver | None = None
) -> Operations:
    """Return the use cases; `wake_ups` and `resolver` replace Redis and DNS if given."""
    vault = Vault(settings.encryption_keys)
    wake_ups = wake_ups or WakeUpQueue(connect(settings.redis_url))
    default_secret = DefaultSecret.of(settings, vault)
    check = AddressCheck(settings, resolver or DnsResolver())
    limits = account_limits(settings)
    rules = ApprovalRules(settings.target_policy, wake_ups.notify)
    return Operations(
        wake_ups=wake_ups,
        exports=ExportOperations(check, settings.target_policy, default_secret, limits, rules, settings.artifacts_base_url),
        targets=TargetOperations(
            check, wake_ups, default_secret, settings.deployment_mode.value, settings.delivery_timeout_s, limits
        ),
        bulk=BulkOperations(settings.target_policy, limits),
        intake=IntakeOperations(
            settings.default_project_id,
            IntakeOptions(limits, rules, settings.fixed_after_runs),
            settings.artifacts_base_url,
            vault,
        ),
        report_uploads=ReportUploadOperations(vault, limits),
        approval_rules=ApprovalRuleOperations(),
    )
