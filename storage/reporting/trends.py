"""What the overview shows beside the counts of the menu: severities that wait, new findings by day, rules that stopped."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from peewee import SQL, Select, fn

from schemas.intake.scanner import SEVERITIES
from storage.db.columns import columns, read
from storage.db.engine import database
from storage.db.models import ApprovalRuleRow, ExportRow, FindingRow
from storage.reporting import menu_counts

#: Waiting exports whose severities are counted, as many as the menu counts.
MOST_WAITING: Final = menu_counts.MOST_IN_MENU + 1
#: More new findings than this are not counted by day: the page would wait for them.
MOST_FINDINGS: Final = 20_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class StoppedRule:
    """An approval rule that stopped by itself."""

    id: str
    name: str
    stopped_reason: str


def waiting_by_severity(account_id: int, now: datetime) -> dict[str, int]:
    """Return how many of the worst MOST_WAITING exports that wait for a decision have each severity, the worst first."""
    part = menu_counts.waiting(account_id, now).select(ExportRow.severity_rank).limit(MOST_WAITING).alias("part")
    counted = Select([part], [part.c.severity_rank, fn.COUNT(part.c.severity_rank)]).group_by(part.c.severity_rank)
    found = {int(rank): int(number) for rank, number in counted.bind(database).tuples()}
    return {SEVERITIES[rank]: found[rank] for rank in sorted(found, reverse=True)}


def new_findings(account_id: int, first: datetime, until: datetime) -> Mapping[tuple[int, str], int] | None:
    """Return how many findings were new by day (in milliseconds since 1970) and severity, from `first` to `until`.

    Returns None where there are more than MOST_FINDINGS.
    """
    f = FindingRow
    of_account = f.select(f.first_seen_at, f.severity).where(f.account_id == account_id)
    part = of_account.where(f.first_seen_at >= first, f.first_seen_at < until).limit(MOST_FINDINGS + 1).alias("part")
    day = (part.c.first_seen_at / _DAY_MS).alias("day")
    counted = Select([part], [day, part.c.severity, fn.COUNT(part.c.severity)]).group_by(SQL("day"), part.c.severity)
    found = Counter(
        {(number * _DAY_MS, severity): int(count) for number, severity, count in counted.bind(database).tuples()}
    )
    return found if found.total() <= MOST_FINDINGS else None


def list_stopped_rules(account_id: int, limit: int) -> list[StoppedRule]:
    """Return up to `limit` of an account's approval rules that stopped by themselves."""
    r = ApprovalRuleRow
    found = r.select(*columns(StoppedRule, r)).where(r.account == account_id, r.stopped_reason.is_null(False))
    return read(StoppedRule, found.order_by(r.id.desc()).limit(limit))
