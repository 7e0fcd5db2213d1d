"""Whether an export may be approved for a target now, and the message to the client if not.

A hold that a receiver or the circuit breaker set is no obstacle: the export waits for its end.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.targets.error_help import help_for
from schemas.targets.target import TargetStatus
from schemas.targets.validations import FAILED
from schemas.url_policy.policy import RefusalReason, TargetPolicy
from schemas.url_policy.target_url import check_url

_PATH: Final = "/target_id"
_NOT_ACTIVE: Final = "target_not_active"
_UNAVAILABLE: Final = "target_unavailable"

_RESUME: Final = "To resume it: `target resume`, the console, or POST to its `/resume`."
_UNSIGNED: Final = "To set its secret: `secret set target`, or the console."
_VALIDATE: Final = (
    "RiskRelay validates it again automatically; to do so now: `target validate`, the console, or POST to its `/validate`."
)


class ApprovalState(NamedTuple):
    """The columns of a target's row that decide whether an export may be approved for it."""

    status: TargetStatus
    status_reason: str | None
    validation_status: str | None
    validation_reason: str | None

    @property
    def problem(self) -> FieldProblem | None:
        """Return why no export may be approved; None if one may."""
        if self.status != TargetStatus.ACTIVE:
            return not_active(self.status, self.status_reason)
        if self.validation_status == FAILED:
            return _problem(_UNAVAILABLE, "The last validation of this target failed", self.validation_reason, _VALIDATE)
        return None


#: Cached checks: exports are approved for the same targets again and again, and checking a URL takes 50 µs.
_MAX_CHECKED: Final = 1024
_checked: Final = lru_cache(maxsize=_MAX_CHECKED)(check_url)


class TargetUrlRefused(ValidationFailed):
    """Validation failed"""

    def __init__(self, target_id: str, base_url: str, reason: str) -> None:
        super().__init__(not_active(TargetStatus.BLOCKED, reason))
        self.target_id = target_id
        self.base_url = base_url
        self.reason = reason


def not_active(status: str, reason: str | None) -> FieldProblem:
    """Return the problem of a target that is not active: its status, the cause and the fix."""
    next_step = _RESUME
    if status == TargetStatus.INACTIVE:
        # The explanation of a reason names the same step.
        next_step = "" if reason else _UNSIGNED
    return _problem(_NOT_ACTIVE, f"This target is {status}", reason, next_step)


def require_approvable(target_id: str, base_url: str, state: ApprovalState, policy: TargetPolicy) -> None:
    """Raise ValidationFailed unless an export may be approved for a target now.

    Raises TargetUrlRefused, a ValidationFailed, for an active target whose URL the policy refuses; the caller then blocks
    the target.
    """
    if state.status == TargetStatus.ACTIVE:
        refusal = _checked(base_url, policy)
        if isinstance(refusal, RefusalReason):
            raise TargetUrlRefused(target_id, base_url, refusal.value)
    problem = state.problem
    if problem is not None:
        raise ValidationFailed(problem)


def _problem(code: str, sentence: str, reason: str | None, next_step: str) -> FieldProblem:
    if reason is None:
        return FieldProblem(_PATH, code, f"{sentence}. {next_step}")
    cause, fix = help_for(reason)
    return FieldProblem(_PATH, code, f"{sentence} ({reason}). {cause} {fix} {next_step}".rstrip())
