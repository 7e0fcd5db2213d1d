"""The life cycle of a finding: how each scan run that visited its page changes the finding.

A finding is fixed when enough completed runs have visited its page and did not report it; a report opens it again. Runs are
distinguished by their id, and each run counts once, however often it posts. Dismissed and snoozed are decisions on the
finding's ticket; they neither stop nor hide a fix.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: Only these runs can fix a finding that they do not report; a partial run may have left the finding out.
COMPLETED: Final = "completed"
#: The default of the setting of this name.
FIXED_AFTER_RUNS: Final = 2
#: An entry of `page.rules` that ends with this character stands for all codes with this beginning.
ANY_END: Final = "*"


class FindingState(StrEnum):
    """The state of a finding; a fix takes precedence over a decision on its ticket."""

    OPEN = "open"
    FIXED = "fixed"
    DISMISSED = "dismissed"
    SNOOZED = "snoozed"


class RunOutcome(StrEnum):
    """The result of one scan run for a finding."""

    SEEN = "seen"
    MISSED = "missed"
    FIXED = "fixed"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """How many runs in a row did not report a finding, whether it is fixed, and how often it was reopened."""

    missed_runs: int = 0
    is_fixed: bool = False
    times_reopened: int = 0


class CheckedRules:
    """The rules that a run checked, from `page.rules`: codes, or beginnings with `*`; None stands for every rule."""

    def __init__(self, rules: Iterable[str] | None) -> None:
        self._all = rules is None
        # Built once per page: parsing up to 20,000 rules for each finding would keep the transaction open, and other writers
        # waiting.
        self._codes = frozenset(map(str.strip, rules or ()))
        self._beginnings = frozenset(rule.removesuffix(ANY_END) for rule in self._codes if rule.endswith(ANY_END))

    def __contains__(self, code: str) -> bool:
        """Return whether a run checked the rule with this code."""
        own = code.strip()
        if self._all or own in self._codes:
            return True
        return bool(self._beginnings) and any(own[:end] in self._beginnings for end in range(len(own) + 1))


def counts_as_visit(status: str, status_code: int | None) -> bool:
    """Return whether findings that a postback does not report count as missed: the run is completed and the page responded.

    A page without a status code counts as one that responded.
    """
    return status == COMPLETED and (status_code is None or 200 <= status_code < 300)


def after_report(before: LifeCycle, own: RunOutcome | None, *, has_fixed: bool) -> tuple[LifeCycle, RunOutcome]:
    """Return a finding after a run that reported it, and the outcome of the run; `own` is the run's outcome so far.

    A run may post a page in parts and report in the second part what was missing in the first. If the run `has_fixed` the
    finding, the report takes this fix back. If another run took the fix back, the outcome of this run stays a fix: trends
    count both.
    """
    if not before.is_fixed:
        return replace(before, missed_runs=0), own if own in {RunOutcome.FIXED, RunOutcome.REOPENED} else RunOutcome.SEEN
    if has_fixed:
        return LifeCycle(times_reopened=before.times_reopened), RunOutcome.SEEN
    return LifeCycle(times_reopened=before.times_reopened + 1), RunOutcome.REOPENED


def after_miss(before: LifeCycle, own: RunOutcome | None, fixed_after_runs: int) -> tuple[LifeCycle, RunOutcome | None]:
    """Return a finding after a run that visited its page and did not report it, and the outcome of the run.

    A fixed finding, or a run that already has an outcome, does not change. The finding is fixed after `fixed_after_runs`
    runs.
    """
    if before.is_fixed or own is not None:
        return before, own
    missed = before.missed_runs + 1
    if missed < fixed_after_runs:
        return replace(before, missed_runs=missed), RunOutcome.MISSED
    return replace(before, missed_runs=missed, is_fixed=True), RunOutcome.FIXED
