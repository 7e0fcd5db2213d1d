"""The census: how many exports, targets and workers there are, read at scrape time and shared by all processes of a host.

One process at a time looks, and the others tell what it found: scrapes do not add up to load. What is asked for is answered
by an index in a few milliseconds, but for the exports of each status, which all have to be counted: that goes on from look
to look, a little each time, and stands as it last came to its end. Up to some 50,000 exports every look comes to it.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Final

from peewee import DatabaseError

from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.targets.target import ASKED_FOR, BREAKER_OPEN, RESTORED, TargetStatus
from storage.compliance import requests as compliance_requests
from storage.db.engine import OUTAGES, connection, rows
from storage.exports import worker_heartbeats as workers

#: Until when a look may go on counting exports, from its beginning: with the last part a scrape stays within 100 ms.
COUNT_UNTIL_S: Final = 0.06
#: Exports of one statement: about 5 ms, in which a service answers nobody else.
COUNT_BATCH: Final = 5_000
#: Waiting exports are counted anew up to here, in some 10 ms; what is more is known from the count by status.
MAX_COUNTED_WAITING: Final = 20_000
#: A look is good for a second, or for 40 times what it took, so that looks take a fortieth of the time, however often
#: somebody asks; but no longer than half a minute, since figures are to be worth looking at.
MIN_REST: Final = timedelta(seconds=1)
REST_FACTOR: Final = 40
MAX_REST: Final = timedelta(seconds=30)
#: A look that has not come back for so long waits for a database that does not answer. The pool gives up after as long.
HUNG_AFTER: Final = timedelta(seconds=10)
#: Who does not look because somebody else does tells what is no older than this.
SERVED_FOR: Final = timedelta(minutes=1)
#: A count that nobody went on with for so long begins anew: too much has moved meanwhile.
COUNT_VALID_FOR: Final = timedelta(hours=1)

#: Why nothing is sent to a target for now, although it is to be sent to again.
PAUSED_BY_HAND: Final = "by_hand"
PAUSES: Final = (PAUSED_BY_HAND, RESTORED, *sorted(ASKED_FOR), BREAKER_OPEN)

_BEGINNING: Final = (0, "", "")
_COUNT: Final = """
SELECT account_id, status, COUNT(*), MAX(id) FROM (
    SELECT account_id, status, id FROM exports WHERE (account_id, status, id) > (?, ?, ?)
    ORDER BY account_id, status, id LIMIT ?
) part
GROUP BY account_id, status ORDER BY account_id, status"""
#: What is due or scheduled, a lease that may lapse included.
_ON_ITS_WAY: Final = (ExportStatus.APPROVED, ExportStatus.DELIVERING, ExportStatus.RETRY_SCHEDULED)
_WAITING: Final = "SELECT COUNT(*) FROM (SELECT 1 FROM exports WHERE due_at IS NOT NULL LIMIT ?) waiting"
# One step of the index for each target that may be sent to.
_READY: Final = """
SELECT MIN(CASE WHEN held_until > due_at THEN held_until ELSE due_at END) FROM (
    SELECT t.held_until, (SELECT MIN(e.due_at) FROM exports e WHERE e.target_id = t.id AND e.due_at IS NOT NULL) AS due_at
    FROM targets t WHERE {whose}t.status = 'active'
) ready WHERE due_at IS NOT NULL"""
# Targets are read whole: there are thousands at most, and each of these columns may change with every attempt.
_TARGETS: Final = """
SELECT status, COALESCE(status_reason = ?, FALSE), CASE WHEN held_until > ? THEN held_reason END, COUNT(*)
FROM targets GROUP BY 1, 2, 3"""


@dataclass(frozen=True, slots=True)
class ExportCount:
    """A count of exports by status that is under way; `after` is the last one counted, by account, status and id."""

    began_at: int
    after: tuple[int, str, str] = _BEGINNING
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What one look found; moments are milliseconds since 1970. `is_up` is False where the database did not answer.

    `exports` and `exports_at`, when their count began, are None until they were all counted once.
    """

    at: int
    is_up: bool
    took_s: float = 0.0
    exports: Mapping[str, int] | None = None
    exports_at: int | None = None
    tally: ExportCount | None = None
    waiting: int = 0
    due_age_s: float = 0.0
    targets: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, int] = field(default_factory=dict)
    workers: int = 0
    #: Since a worker was last heard from; None where none was within the last minutes.
    sweep_lag_s: float | None = None
    compliance_overdue: int = 0

    def is_fresh(self, now: datetime) -> bool:
        """Tell whether nobody needs to look again yet."""
        rest = min(MAX_REST, max(MIN_REST, timedelta(seconds=REST_FACTOR * self.took_s)))
        # A clock that was set back must not make a look last until the old time comes again.
        return abs(now - from_ms(self.at)) < rest


class SnapshotCache:
    """Figures that all processes with the same `file` share; where it cannot be written to, each has its own."""

    def __init__(
        self, file: Path, look: Callable[[datetime, MetricsSnapshot | None], MetricsSnapshot] | None = None
    ) -> None:
        self._file = file
        self._look = look or take_snapshot
        self._lock = Lock()
        self._own: MetricsSnapshot | None = None

    def figures(self, now: datetime) -> MetricsSnapshot | None:
        """Return what the last look found, after one more where that is due and nobody else is at it.

        None where somebody is at it and nobody has looked in the last minute.
        """
        with self._turn(now) as is_mine:
            last = self._last()
            if is_mine and (last is None or not last.is_fresh(now)):
                self._own = last = self._look(now, last)
                _write(self._file, last)
        if not is_mine and self._is_lost(now):
            return MetricsSnapshot(to_ms(now), is_up=False)
        return None if last is None or abs(now - from_ms(last.at)) > SERVED_FOR else last

    def _last(self) -> MetricsSnapshot | None:
        """Return the newer of what this process found and what the file holds."""
        found = [each for each in (self._own, _read(self._file)) if each is not None]
        return max(found, key=lambda each: each.at, default=None)

    @contextmanager
    def _turn(self, now: datetime) -> Iterator[bool]:
        """Yield whether it is this caller that may look; nobody waits for who does."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            with _alone(self._file.with_suffix(".lock"), now) as is_alone:
                yield is_alone
        finally:
            self._lock.release()

    def _is_lost(self, now: datetime) -> bool:
        """Tell whether who is looking has been at it for so long that the database does not answer."""
        try:
            began_at = from_ms(int(self._file.with_suffix(".lock").read_text()))
        except (OSError, ValueError):
            return False
        return now - began_at > HUNG_AFTER


def take_snapshot(now: datetime, last: MetricsSnapshot | None, count_until_s: float = COUNT_UNTIL_S) -> MetricsSnapshot:
    """Look at the database, and go on counting exports where the `last` look left off."""
    began = time.monotonic()
    try:
        with connection():
            found = _found(now, last, began + count_until_s)
    except (*OUTAGES, DatabaseError):
        away = MetricsSnapshot(to_ms(now), is_up=False, took_s=time.monotonic() - began)
        # The count goes on when it is back.
        return away if last is None else replace(away, exports=last.exports, exports_at=last.exports_at, tally=last.tally)
    return MetricsSnapshot(to_ms(now), is_up=True, took_s=time.monotonic() - began, **found)


def _found(now: datetime, last: MetricsSnapshot | None, count_until: float) -> dict[str, Any]:
    targets, paused = targets_by_state(now)
    seen_at = workers.last_seen()
    found = {
        "due_age_s": due_age_s(now),
        "targets": targets,
        "paused": paused,
        "workers": workers.count_alive(now),
        "sweep_lag_s": None if seen_at is None else max(0.0, (now - seen_at).total_seconds()),
        "compliance_overdue": compliance_requests.count_overdue(now),
        "waiting": int(rows(_WAITING, (MAX_COUNTED_WAITING,))[0][0]),
        **_exports(now, last, count_until),
    }
    if found["waiting"] == MAX_COUNTED_WAITING and found["exports"]:
        found["waiting"] = max(MAX_COUNTED_WAITING, sum(found["exports"].get(status, 0) for status in _ON_ITS_WAY))
    return found


def due_age_s(now: datetime, account_id: int | None = None) -> float:
    """Return how long the oldest export could have been sent that was not: by no paused target, and by none that is held.

    Of the targets of one account where `account_id` is given; 0 where nothing is late.
    """
    whose, given = ("", ()) if account_id is None else ("t.account_id = ? AND ", (account_id,))
    [(ready_ms,)] = rows(_READY.format(whose=whose), given)
    return 0.0 if ready_ms is None else max(0.0, (now - from_ms(ready_ms)).total_seconds())


def targets_by_state(now: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """Count targets by status, and those that wait by why."""
    by_status, by_pause = dict.fromkeys(map(str, TargetStatus), 0), dict.fromkeys(PAUSES, 0)
    for status, is_restored, held_reason, count in rows(_TARGETS, (RESTORED, to_ms(now))):
        by_status[status] += count
        if status == TargetStatus.PAUSED:
            by_pause[RESTORED if is_restored else PAUSED_BY_HAND] += count
        elif status == TargetStatus.ACTIVE and held_reason in by_pause:
            by_pause[held_reason] += count
    return by_status, by_pause


def _exports(now: datetime, last: MetricsSnapshot | None, until: float) -> dict[str, Any]:
    """Count on until then (monotonic); return how far that came, with the last count that came to its end."""
    tally = ExportCount(to_ms(now))
    if last is not None and last.tally is not None and abs(now - from_ms(last.at)) < COUNT_VALID_FOR:
        tally = last.tally
    while True:
        tally, is_done = _counted_on(tally)
        if is_done:
            return {"exports": tally.counts, "exports_at": tally.began_at, "tally": None}
        if time.monotonic() > until:
            return {"exports": last and last.exports, "exports_at": last and last.exports_at, "tally": tally}
        # The service's other greenlets have their turn between two parts.
        time.sleep(0)


def _counted_on(tally: ExportCount) -> tuple[ExportCount, bool]:
    """Count one part more; tell whether it was the last one."""
    found = rows(_COUNT, (*tally.after, COUNT_BATCH))
    counts = dict(tally.counts)
    for _, status, count, _ in found:
        counts[status] = counts.get(status, 0) + count
    after = (found[-1][0], found[-1][1], found[-1][3]) if found else tally.after
    return ExportCount(tally.began_at, after, counts), sum(row[2] for row in found) < COUNT_BATCH


@contextmanager
def _alone(file: Path, now: datetime) -> Iterator[bool]:
    """Yield whether no other process is at it, and note since when this one is; where nobody can say so, this one is."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True
        return
    try:
        is_taken = _is_taken(descriptor)
        if is_taken:
            _note(descriptor, str(to_ms(now)))
        yield is_taken
        if is_taken:
            _note(descriptor, "")
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _note(descriptor: int, text: str) -> None:
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _read(file: Path) -> MetricsSnapshot | None:
    """Return what the last look of any process found; None where there was none, or one of another version."""
    try:
        known = json.loads(file.read_text())
        if known["tally"]:
            known["tally"] = ExportCount(**{**known["tally"], "after": tuple(known["tally"]["after"])})
        return MetricsSnapshot(**known)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, figures: MetricsSnapshot) -> None:
    beside = file.with_suffix(".new")
    # A full disk: this process has its own figures all the same.
    with suppress(OSError):
        beside.write_text(json.dumps(asdict(figures)), encoding="utf-8")
        beside.replace(file)
