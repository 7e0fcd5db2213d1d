"""Approves exports that waited for the target of an approval rule, once the target accepts approvals.

Each export stores the rule that it waits for, and a batch is one transaction, so a killed worker loses nothing.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from storage.db.engine import connection
from storage.exports.rules.rule_evaluation import ApprovalRules

#: How late at most an export is approved after its target was resumed; a sweep that finds nothing reads one small index.
POLL_S: Final = 2.0

_log: Final = logging.getLogger(__name__)


def decide_waiting(rules: ApprovalRules, now: Callable[[], datetime]) -> bool:
    """Decide on a batch of exports that wait for the targets of rules; return whether there may be more."""
    with connection():
        has_decided = rules.resume(now())
    if has_decided:
        _log.info("exports that waited for the target of an approval rule were decided")
    return has_decided
