"""What attempts came to, by target and hour: a day of a target is read from a few rows, however many attempts it had.

Counted in the transaction that writes the attempts, so that both say the same whatever is tried again or comes too late.
Each worker counts in rows of its own, since two that counted in one would wait for each other. An attempt belongs to the
hour in which it began.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.delivery import DELIVERED, CompletedAttempt
from storage.db.bulk_sql import execute_over, rows_over
from storage.db.engine import rows

#: What is shown of the past: this many hours, the one that runs among them.
DAY_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000

_COLUMNS: Final = ("TEXT", "BIGINT", "TEXT", "INTEGER", "INTEGER")
_COUNT: Final = """
INSERT INTO delivery_hours (target_id, hour_at, worker, delivered, failed) {rows}
ON CONFLICT (target_id, hour_at, worker) DO UPDATE SET
    delivered = delivery_hours.delivered + excluded.delivered, failed = delivery_hours.failed + excluded.failed"""

_OF_EACH: Final = """
WITH r (id) AS ({rows})
SELECT d.target_id, SUM(d.delivered), SUM(d.failed) FROM r CROSS JOIN delivery_hours d
WHERE d.target_id = r.id AND d.hour_at BETWEEN ? AND ? GROUP BY d.target_id"""
_OF_TARGET: Final = """
SELECT hour_at, SUM(delivered), SUM(failed) FROM delivery_hours
WHERE target_id = ? AND hour_at BETWEEN ? AND ? GROUP BY hour_at"""
_OF_ACCOUNT: Final = """
SELECT d.hour_at, SUM(d.delivered), SUM(d.failed) FROM targets t CROSS JOIN delivery_hours d
WHERE t.account_id = ? AND d.target_id = t.id AND d.hour_at BETWEEN ? AND ? GROUP BY d.hour_at"""


@dataclass(frozen=True, slots=True)
class AttemptCounts:
    """How many attempts arrived and how many did not."""

    delivered: int = 0
    failed: int = 0

    @property
    def attempts(self) -> int:
        """All of them."""
        return self.delivered + self.failed

    @property
    def failure_rate(self) -> float | None:
        """The part that failed, from 0 to 1; None where nothing was tried."""
        return self.failed / self.attempts if self.attempts else None


@dataclass(frozen=True, slots=True)
class DeliveryHour:
    """The attempts that began in the hour from `at` on."""

    at: datetime
    tally: AttemptCounts


def count_attempts(attempts: Iterable[CompletedAttempt], worker: str) -> None:
    """Count attempts that moved their exports; the caller holds the transaction that writes them."""
    counted = Counter(_place(attempt) for attempt in attempts)
    places = sorted({(target_id, hour_at) for target_id, hour_at, _ in counted})
    execute_over(_COUNT, _COLUMNS, [(*place, worker, counted[(*place, True)], counted[(*place, False)]) for place in places])


def count_last_day(target_ids: Collection[str], now: datetime) -> dict[str, AttemptCounts]:
    """Return what the last DAY_HOURS came to for each of these targets; one question for all of them."""
    found = dict.fromkeys(target_ids, AttemptCounts())
    asked = [(target_id,) for target_id in sorted(found)]
    for target_id, delivered, failed in rows_over(_OF_EACH, ("TEXT",), asked, _day_until(now)):
        found[target_id] = AttemptCounts(int(delivered), int(failed))
    return found


def hours(target_id: str, now: datetime) -> list[DeliveryHour]:
    """Return the last DAY_HOURS of a target, the oldest first, empty ones among them."""
    return _filled(rows(_OF_TARGET, (target_id, *_day_until(now))), now)


def hours_of_account(account_id: int, now: datetime) -> list[DeliveryHour]:
    """Return the last DAY_HOURS of all targets of an account, the oldest first, empty ones among them."""
    return _filled(rows(_OF_ACCOUNT, (account_id, *_day_until(now))), now)


def total(shown: Iterable[DeliveryHour]) -> AttemptCounts:
    """Return what hours came to together."""
    tallies = [hour.tally for hour in shown]
    return AttemptCounts(sum(tally.delivered for tally in tallies), sum(tally.failed for tally in tallies))


def _place(attempt: CompletedAttempt) -> tuple[str, int, bool]:
    at = to_ms(attempt.started_at)
    return attempt.claim.target_id, at - at % _HOUR_MS, attempt.verdict.outcome == DELIVERED


def _day_until(now: datetime) -> tuple[int, int]:
    """Return the first and the last hour of a day; what was counted while a clock was ahead is in none yet."""
    at = to_ms(now)
    last = at - at % _HOUR_MS
    return last - (DAY_HOURS - 1) * _HOUR_MS, last


def _filled(found: Sequence[tuple[int, int, int]], now: datetime) -> list[DeliveryHour]:
    known = {int(at): AttemptCounts(int(delivered), int(failed)) for at, delivered, failed in found}
    first, last = _day_until(now)
    return [DeliveryHour(from_ms(at), known.get(at, AttemptCounts())) for at in range(first, last + 1, _HOUR_MS)]
