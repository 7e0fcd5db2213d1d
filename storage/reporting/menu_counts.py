"""The counts of the console's menu: one query that reads a bounded part of each index."""

from datetime import datetime
from typing import Any, Final, NamedTuple

from peewee import SQL, Select, fn

from schemas.exports.state_machine import IN_PROGRESS, ExportStatus
from storage.db.engine import database
from storage.db.models import ApprovalRuleRow, ExportRow, FindingRow, TargetRow

#: A larger count is shown as `999+`.
MAX_IN_MENU: Final = 999


class MenuCounts(NamedTuple):
    """Waiting decisions, deliveries in progress, unfixed findings, enabled rules, targets; each at most MAX_IN_MENU + 1."""

    inbox: int
    deliveries: int
    findings: int
    rules: int
    targets: int


def count(account_id: int, now: datetime) -> MenuCounts:
    """Return the counts of an account at `now`."""
    parts = [
        waiting(account_id, now),
        *(of_status(account_id, status) for status in IN_PROGRESS),
        FindingRow.select(SQL("1")).where(FindingRow.account_id == account_id, FindingRow.fixed_at.is_null()),
        ApprovalRuleRow.select(SQL("1")).where(ApprovalRuleRow.account == account_id, ApprovalRuleRow.enabled),
        TargetRow.select(SQL("1")).where(TargetRow.account == account_id, TargetRow.deleted_at.is_null()),
    ]
    counted = [Select([part.limit(MAX_IN_MENU + 1).alias("part")], [fn.COUNT(SQL("*"))]) for part in parts]
    [(inbox, *in_progress, findings, rules, targets)] = Select(columns=counted).bind(database).tuples()
    return MenuCounts(inbox, sum(in_progress), findings, rules, targets)


def waiting(account_id: int, now: datetime) -> Any:
    """Return a query for the exports that wait for a decision at `now`, neither snoozed nor fixed since; the worst first."""
    x = ExportRow
    is_awake = x.snoozed_at.is_null() | (x.snoozed_until <= now)
    is_unfixed = x.findings_total.is_null() | (x.findings_fixed < x.findings_total)
    return of_status(account_id, ExportStatus.PREPARED).where(is_awake, is_unfixed)


def of_status(account_id: int, status: ExportStatus) -> Any:
    """Return a query for the exports with a status, the worst first."""
    # The status has two bounds in place of an equality, and the order is that of the index. Otherwise PostgreSQL reads every
    # export of every account, or the oldest ones until it has found enough; both databases sort all exports of the status.
    x = ExportRow
    found = x.select(SQL("1")).where(x.account == account_id, x.status >= status.value, x.status <= status.value)
    return found.order_by(x.status.desc(), x.severity_rank.desc(), x.id.desc())
