"""Counts of attempts by target and hour: a day of a target is read from a few rows, with any number of attempts.

The transaction that writes the attempts also counts them, so that both agree, even if a write is repeated or stale. Each
worker has its own rows, because two workers that update the same row would wait for each other. An attempt belongs to the
hour in which it began.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from peewee import JOIN, SQL, fn

from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.delivery import DELIVERED, CompletedAttempt
from storage.db.drivers.shared import Row
from storage.db.models import DeliveryHourRow, TargetRow
from storage.db.queries import tuples
from storage.exports.delivery_hours_sql import count

#: Charts show this many hours, including the present one.
DAY_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

_D: Final = DeliveryHourRow
_SUMS: Final = (fn.SUM(_D.delivered), fn.SUM(_D.failed))


@dataclass(frozen=True, slots=True)
class AttemptCounts:
    """How many attempts delivered an export, and how many did not."""

    delivered: int = 0
    failed: int = 0

    @property
    def attempts(self) -> int:
        """The number of all attempts."""
        return self.delivered + self.failed

    @property
    def failure_rate(self) -> float | None:
        """The fraction of attempts that failed, from 0 to 1; None without attempts."""
        return self.failed / self.attempts if self.attempts else None


@dataclass(frozen=True, slots=True)
class DeliveryHour:
    """The counts of attempts that began in the hour or day that starts at `at`."""

    at: datetime
    tally: AttemptCounts


def count_attempts(attempts: Iterable[CompletedAttempt], worker: str) -> None:
    """Count attempts that changed their exports; the caller holds the transaction that writes the attempts."""
    counted = Counter(_place(attempt) for attempt in attempts)
    places = sorted({(target_id, hour_at) for target_id, hour_at, _ in counted})
    count([(*place, worker, counted[(*place, True)], counted[(*place, False)]) for place in places])


def count_last_day(target_ids: Collection[str], now: datetime) -> dict[str, AttemptCounts]:
    """Return the counts of the last DAY_HOURS for each of these targets, with one query."""
    query = _D.select(_D.target, *_SUMS).where(_D.target.in_(target_ids), _D.hour_at.between(*_day_until(now)))
    found = tuples(query.group_by(_D.target)) if target_ids else []
    counts = {target_id: AttemptCounts(int(delivered), int(failed)) for target_id, delivered, failed in found}
    return {target_id: counts.get(target_id, AttemptCounts()) for target_id in target_ids}


def hours(target_id: str, now: datetime) -> list[DeliveryHour]:
    """Return the counts of a target for each of the last DAY_HOURS, the oldest first, including empty hours."""
    first, last = _day_until(now)
    query = _D.select(_D.hour_at, *_SUMS).where(_D.target == target_id, _D.hour_at.between(first, last))
    return _filled(tuples(query.group_by(_D.hour_at)), range(first, last + 1, _HOUR_MS))


def days_of_account(account_id: int, first: datetime, until: datetime) -> list[DeliveryHour]:
    """Return the counts of an account for each day (UTC) from midnight `first` to `until`, including empty days.

    A target has a row for each hour and worker, so the caller caches the result.
    """
    days = range(to_ms(first), to_ms(until), _DAY_MS)
    # Reads targets first, then their rows: only CROSS JOIN makes SQLite keep this order.
    query = TargetRow.select((_D.hour_at / _DAY_MS).alias("day"), *_SUMS).join(_D, JOIN.CROSS)
    within = (TargetRow.account == account_id, _D.target == TargetRow.id, _D.hour_at >= first, _D.hour_at < until)
    found = tuples(query.where(*within).group_by(SQL("day")))
    return _filled([(from_ms(number * _DAY_MS), *counted) for number, *counted in found], days)


def _place(attempt: CompletedAttempt) -> tuple[str, int, bool]:
    at = to_ms(attempt.started_at)
    return attempt.claim.target_id, at - at % _HOUR_MS, attempt.verdict.outcome == DELIVERED


def _day_until(now: datetime) -> tuple[int, int]:
    """Return the first and the last hour of a day; later hours, from a worker whose clock is ahead, are left out."""
    at = to_ms(now)
    last = at - at % _HOUR_MS
    return last - (DAY_HOURS - 1) * _HOUR_MS, last


def _filled(found: Iterable[Row], moments: Iterable[int]) -> list[DeliveryHour]:
    """Return counts for all `moments`, the starts of hours or days; empty counts if none were found."""
    known = {at: AttemptCounts(int(delivered), int(failed)) for at, delivered, failed in found}
    return [DeliveryHour(at, known.get(at, AttemptCounts())) for at in map(from_ms, moments)]
