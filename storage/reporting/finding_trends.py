"""How an account's findings change by day: new, fixed, reported again, and how long fixes take.

Each query reads only an index. A finding that is fixed now counts on the day of its last fix. The earlier fixes of a finding
that was reported again are in the history of its scan runs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from peewee import JOIN, SQL, fn

from schemas.base.timestamps import to_ms
from schemas.findings.life_cycle import RunOutcome
from storage.db.models import FindingRow, FindingSightingRow

_DAY_MS: Final = 86_400_000


class Change(StrEnum):
    """The changes of a finding that trends count by day."""

    NEW = "new"
    FIXED = "fixed"
    REOPENED = "reopened"


@dataclass(frozen=True, slots=True)
class FindingDay:
    """A day (UTC): its changes, and by severity the findings that were not fixed at its end."""

    at: datetime
    changes: Mapping[Change, int]
    unfixed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FindingTrend:
    """Days, the oldest first, and the median time from a finding's first report to its fix; None without a fix."""

    days: tuple[FindingDay, ...]
    median_fix: timedelta | None = field(default=None)


def read_trend(account_id: int, project_id: int | None, first: datetime, days: int) -> FindingTrend:
    """Return the trend of `days` days from midnight `first`, for one or all projects of an account. Runs four queries."""
    first_day = to_ms(first) // _DAY_MS
    changes, unfixed, found = Counter[tuple[int, Change, str]](), Counter[str](), []
    for day, change, severity, number in _present(account_id, project_id):
        changes[int(day), Change(change), severity] += int(number)
        unfixed[severity] += _unfixed_change(Change(change), int(number))
    for day, change, severity, number in _history(account_id, project_id):
        changes[int(day), Change(change), severity] += int(number)
    # Backwards from now to the first day: retention may have deleted the fix of a finding that was reopened later.
    for (day, change, severity), number in changes.items():
        if day >= first_day:
            unfixed[severity] -= _unfixed_change(change, number)
    for day in range(first_day, first_day + days):
        of_day = Counter[Change]()
        for (_, change, severity), number in ((key, number) for key, number in changes.items() if key[0] == day):
            of_day[change] += number
            unfixed[severity] += _unfixed_change(change, number)
        found.append(FindingDay(first + timedelta(days=day - first_day), of_day, Counter(unfixed)))
    fixes = sum(number for (day, change, _), number in changes.items() if change is Change.FIXED and day >= first_day)
    return FindingTrend(tuple(found), median_fix(account_id, project_id, first) if fixes else None)


def median_fix(account_id: int, project_id: int | None, first: datetime, until: datetime | None = None) -> timedelta | None:
    """Return the median time from first report to fix, for findings fixed since `first` and before `until`; None without."""
    f = FindingRow
    fixed = f.select().where(*_of(account_id, project_id), f.fixed_at >= to_ms(first))
    if until is not None:
        fixed = fixed.where(f.fixed_at < to_ms(until))
    number = fixed.count()
    if not number:
        # No query, because PostgreSQL refuses a negative offset.
        return None
    took = (f.fixed_at - f.first_seen_at).alias("took")
    middle: Any = fixed.select(took).order_by(SQL("took")).offset((number - 1) // 2).limit(2 - number % 2).tuples()
    found = [int(each) for (each,) in middle]
    # Another request may have reopened the findings between the two queries.
    return timedelta(milliseconds=sum(found) / len(found)) if found else None


def _present(account_id: int, project_id: int | None) -> Iterator[tuple[Any, ...]]:
    """Yield for each day (since 1970) and severity how many findings were new, and how many were fixed and still are."""
    f, of = FindingRow, _of(account_id, project_id)
    for column, change in ((f.first_seen_at, Change.NEW), (f.fixed_at, Change.FIXED)):
        counted = _by_day(column, SQL(f"'{change}'")).where(*of, column.is_null(False))
        yield from counted.group_by(SQL("day"), f.severity).tuples()


def _history(account_id: int, project_id: int | None) -> Iterator[tuple[Any, ...]]:
    """Yield for each day and severity the number of earlier fixes and of reopenings."""
    f, s = FindingRow, FindingSightingRow
    # CROSS JOIN keeps this order: SQLite might otherwise begin with the history of all accounts.
    found = _by_day(s.seen_at, s.outcome).join(s, JOIN.CROSS).where(s.finding == f.id)
    # If a finding is fixed now, `_present` has already counted its last fix. The conditions below are exactly those of the
    # indexes.
    is_earlier = (s.outcome == RunOutcome.REOPENED.value) | f.fixed_at.is_null() | (s.seen_at != f.fixed_at)
    found = found.where(
        *_of(account_id, project_id), SQL("times_reopened > 0"), SQL("outcome IN ('fixed', 'reopened')"), is_earlier
    )
    yield from found.group_by(SQL("day"), s.outcome, f.severity).tuples()


def _unfixed_change(change: Change, number: int) -> int:
    """Return by how much a change of this many findings increases the number of unfixed ones."""
    return -number if change is Change.FIXED else number


def _by_day(at: Any, change: Any) -> Any:
    return FindingRow.select((at / _DAY_MS).alias("day"), change, FindingRow.severity, fn.COUNT(SQL("1")))


def _of(account_id: int, project_id: int | None) -> tuple[Any, ...]:
    f = FindingRow
    # The sum prevents the use of indexes that begin with the project, because they lack the counted columns.
    return (f.account_id == account_id, *(() if project_id is None else (f.project + 0 == project_id,)))
