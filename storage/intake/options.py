"""Options for storing postbacks, emails and uploads, from the settings."""

from dataclasses import dataclass
from typing import Final

from schemas.findings.life_cycle import FIXED_AFTER_RUNS
from storage.accounts.account_limits import UNLIMITED, AccountLimits
from storage.exports.rules.rule_evaluation import LEFT_TO_WORKERS, ApprovalRules


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """The accounts' limits, their approval rules, and after how many scan runs without a report a finding is fixed."""

    limits: AccountLimits = UNLIMITED
    rules: ApprovalRules = LEFT_TO_WORKERS
    fixed_after_runs: int = FIXED_AFTER_RUNS


#: The default has no limits and leaves approvals to workers.
DEFAULT_OPTIONS: Final = IntakeOptions()
