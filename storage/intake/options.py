"""What the settings say about how postbacks, emails and uploads are stored."""

from dataclasses import dataclass
from typing import Final

from schemas.findings.life_cycle import FIXED_AFTER_RUNS
from storage.accounts.account_limits import UNLIMITED, AccountLimits
from storage.exports.rules.rule_evaluation import LEFT_TO_WORKERS, ApprovalRules


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """The accounts' limits, their approval rules, and how many scan runs without it fix a finding."""

    limits: AccountLimits = UNLIMITED
    rules: ApprovalRules = LEFT_TO_WORKERS
    fixed_after_runs: int = FIXED_AFTER_RUNS


#: Without limits; approvals are left to workers.
DEFAULT_OPTIONS: Final = IntakeOptions()
